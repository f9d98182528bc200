"""Keys: the same in every process, refused when they cannot be told apart."""

import os
import subprocess
import sys

import numpy as np
import pytest

from kvd.errors import KvdError
from kvd.identity import CHAIN_START, Keyspace, chain_digests, chunk_key, keyspace_digest
from kvd.shape import BlockShape
from kvd.types import Dtype

SHAPE = BlockShape.of_attention(2, 2, 8, Dtype.BF16)
SPACE = Keyspace("model", "revision", SHAPE)

PRINT_KEYS = """
from kvd.identity import *
from kvd.shape import BlockShape
from kvd.types import Dtype
space = Keyspace("model", "revision", BlockShape.of_attention(2, 2, 8, Dtype.BF16))
digest = keyspace_digest(space, "tenant")
chain = chain_digests(range(640), 64)
print(digest.hex(), *(chunk_key(digest, chain[at : at + 32]).hex() for at in range(0, 320, 32)))
"""


def test_the_same_keys_in_fresh_processes() -> None:
    printed = set()
    for seed in ("0", "1", "random", None):
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONHASHSEED"}
        if seed is not None:
            environment["PYTHONHASHSEED"] = seed
        run = subprocess.run(
            [sys.executable, "-c", PRINT_KEYS],
            env=environment, capture_output=True, text=True, check=True, timeout=60,
        )  # fmt: skip
        printed.add(run.stdout)
    assert len(printed) == 1 and len(printed.pop().split()) == 11


def test_every_field_of_a_keyspace_counts() -> None:
    others = [
        Keyspace("model2", "revision", SHAPE),
        Keyspace("model", "revision2", SHAPE),
        Keyspace("modelrevision", "", SHAPE),
        Keyspace("model", "revision", SHAPE, tokenizer="t"),
        Keyspace("model", "revision", SHAPE, chain="sha256 seed 0"),
        Keyspace("model", "revision", SHAPE, layout="l"),
        Keyspace("model", "revision", SHAPE, rope="r"),
        Keyspace("model", "revision", SHAPE, adapter="a"),
        Keyspace("model", "revision", SHAPE, chunk_tokens=32),
        Keyspace("model", "revision", BlockShape.of_attention(2, 2, 8, Dtype.FP16)),
        Keyspace("model", "revision", BlockShape.of_attention(2, 4, 4, Dtype.BF16)),
    ]
    digests = [keyspace_digest(space, "tenant") for space in (SPACE, *others)]
    digests.append(keyspace_digest(SPACE, "other"))
    assert len(set(digests)) == len(digests)


@pytest.mark.parametrize("count", [0, 1, 63, 64, 65, 127, 128, 2049])
def test_tails_shorter_than_a_chunk_have_no_digest(count: int) -> None:
    assert len(chain_digests(list(range(count)), 64)) == count // 64 * 32


def test_a_digest_covers_all_tokens_before_it() -> None:
    one = chain_digests(np.arange(128), 64)
    two = chain_digests([7, *range(1, 128)], 64)
    assert one[:32] != two[:32] and one[32:] != two[32:]
    assert chain_digests(np.arange(64, 128), 64, after=one[:32]) == one[32:]
    assert chain_digests(np.arange(128), 64, after=CHAIN_START) == one


def test_many_extras_give_as_many_digests() -> None:
    digests = {chain_digests(range(64), 64, number.to_bytes(8, "little")) for number in range(5000)}
    assert len(digests) == 5000


@pytest.mark.parametrize("tokens", [[-1] * 64, [1 << 32] * 64, [0.5] * 64, [[1] * 64]])
def test_what_is_no_token_id_is_refused(tokens: list) -> None:
    with pytest.raises(KvdError, match="token"):
        chain_digests(tokens, 64)


def test_chunk_keys_of_two_keyspaces_differ() -> None:
    chain = chain_digests(range(64), 64)
    assert chunk_key(keyspace_digest(SPACE, "a"), chain) != chunk_key(
        keyspace_digest(SPACE, "b"), chain
    )
