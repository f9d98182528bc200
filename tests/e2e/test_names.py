"""Names of any characters stay names: no path, no other name, no end of a text or of a log line."""

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kvd.cli.admin import main
from kvd.client import EXACT, BlockShape, Client, Dtype, Keyspace, KvdError
from kvd.errors import ErrorKind
from kvd.identity import chain_digests
from kvd.limits import MIB, Limits
from kvd.rpc.wishes import TEXT_BYTES_MAX
from kvd.types import Lane
from tests.e2e.process import DEADLINE_S, in_process, running

LAYERS, HEADS, WIDTH, CHUNK_TOKENS = 1, 1, 16, 16
SHAPE = BlockShape.of_attention(LAYERS, HEADS, WIDTH, Dtype.BF16)
NAMES = (
    "m", "m ", " m", "M", "m\0", "\0m", "m\n", "m\r\nkvd: WARNING root: all is lost",
    "../m", "../../../../tmp/kvd-was-here", "/etc/passwd", "..", ".", "m/", "C:\\m", "~", "$HOME",
    "%s%n", "{0}", "'; --", "m\u0301", "\u00e9", "e\u0301", "\u043c", "\uff4d", "m\u200b",
    "\u202em", "\U0001f600", "\ufeffm", "m\u2028", "\x1b[2J",
    "m" * TEXT_BYTES_MAX, "m" * (TEXT_BYTES_MAX - 1),
)  # fmt: skip
ODD = "[/]\x1b[2J\n\nkvd: WARNING root: all is lost"  # Of a client, for people.
FIELDS = ("model", "weight_revision", "tokenizer", "layout", "rope", "adapter")
TOKENS = np.arange(CHUNK_TOKENS)
LIMITS = replace(Limits(), slab_bytes=4 * MIB)


def keyspaces() -> list[Keyspace]:
    """Return the names as models; then the oddest ones in every other field, and shifted."""
    made = [Keyspace(name, "r", SHAPE, chunk_tokens=CHUNK_TOKENS) for name in NAMES]
    for field in FIELDS[1:]:
        for name in ("../m", "m\0", "m\n"):
            words = {"model": "m", "weight_revision": "r", field: name}
            made.append(Keyspace(shape=SHAPE, chunk_tokens=CHUNK_TOKENS, **words))
    # The end of one field that is the beginning of the next.
    for first, second in (("a", "bc"), ("ab", "c"), ("a\0b", "c"), ("a", "\0bc")):
        made.append(Keyspace(first, second, SHAPE, chunk_tokens=CHUNK_TOKENS))
    return made


def values(number: int) -> list:
    return [[np.full((HEADS, CHUNK_TOKENS, WIDTH), 0x3F80 + number, np.uint16) for _ in range(2)]]


def assert_all_there(client: Client) -> None:
    for number, keyspace in enumerate(keyspaces()):
        space = client.keyspace(keyspace)
        targets = [[np.zeros((HEADS, CHUNK_TOKENS, WIDTH), np.uint16) for _ in range(2)]]
        with space.fetch(space.chain(TOKENS)) as fetch:
            list(fetch.arrivals())
            assert fetch.decode((0, LAYERS), EXACT, targets) == 1, keyspace
        assert (targets[0][0] == 0x3F80 + number).all(), keyspace


def files(directory: Path) -> set[str]:
    return {str(path.relative_to(directory)) for path in directory.rglob("*")}


def test_every_name_is_a_keyspace_of_its_own(short_directory, capsys):
    data = short_directory / "data"
    flags = ("--data", str(data), "--ssd", "64MiB")
    with running(short_directory / "run", *flags) as daemon, Client(daemon.tenant, ODD) as client:
        assert client.wait_connected(DEADLINE_S)
        for number, keyspace in enumerate(keyspaces()):
            space = client.keyspace(keyspace)
            chain = space.chain(TOKENS)
            assert space.lookup(chain).counts == (0, 0, 0), keyspace
            made = space.put(chain, values(number), durability="disk", deadline_s=DEADLINE_S)
            assert made.stored == 1 and made.durable, (keyspace, made)
        assert_all_there(client)
        told = _admin(capsys, "keyspaces", "--json", "--directory", str(daemon.directory))
        assert {k["keyspace"]["model"] for k in json.loads(told)["keyspaces"]} >= set(NAMES)
        for words in (("keyspaces",), ("explain",), ("sessions",), ("top", "--count", "1")):
            shown = _admin(capsys, *words, "--directory", str(daemon.directory))
            assert "\x1b" not in shown and "\0" not in shown and "\nkvd: WARNING" not in shown
        assert not [line for line in daemon.lines if "all is lost" in line]
        daemon.process.kill()
        daemon.wait()
    names = files(data)
    assert not [name for name in names if not name.isascii() or ".." in name]
    assert {os.path.dirname(name) for name in names} <= {"", "segments", "catalog"}
    assert set(os.listdir(short_directory)) == {"data", "run"}
    with running(short_directory / "run", *flags) as daemon, Client(daemon.tenant) as client:
        assert client.wait_connected(DEADLINE_S)
        assert_all_there(client)


def _admin(capsys, *words: str) -> str:
    assert main(list(words)) == 0
    return capsys.readouterr().out


def test_what_is_too_long_or_no_text_is_the_callers_mistake(short_directory):
    with in_process(short_directory, LIMITS, 4 * MIB) as tenant, Client(tenant) as client:
        assert client.wait_connected(DEADLINE_S)
        chain = chain_digests(TOKENS, CHUNK_TOKENS)
        for field in FIELDS:
            for name in (
                "m" * (TEXT_BYTES_MAX + 1),
                "\u00e9" * TEXT_BYTES_MAX,
                "\ud800",
                b"m",
                None,
            ):
                words = {"model": "m", "weight_revision": "r", field: name}
                with pytest.raises(KvdError) as raised:
                    client.keyspace(Keyspace(shape=SHAPE, **words)).lookup(chain)
                assert raised.value.kind == ErrorKind.INVALID and field in raised.value.message
        for name in ("\ud800", b"client"):
            with pytest.raises(KvdError, match="name is"):
                Client(tenant, name)
        good = client.keyspace(Keyspace("m", "r", SHAPE, chunk_tokens=CHUNK_TOKENS))
        assert good.lookup(chain).counts == (0, 0, 0)
        for group in (-1, 1 << 32):
            with pytest.raises(KvdError) as raised:
                good.lookup(chain, lanes=[Lane(group)])
            assert raised.value.kind == ErrorKind.INVALID
        with pytest.raises(KvdError, match="deadline_s is nan"):
            good.lookup(chain, deadline_s=float("nan"))
