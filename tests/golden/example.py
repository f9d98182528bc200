"""The worked example of docs/format.md: one tiny chunk, coded by kvd.

`python -m tests.golden.example` prints the hex blocks as the document holds them.
"""

from dataclasses import dataclass

import numpy as np

from kvd.codec import PROFILE_DEFAULT
from kvd.identity import Keyspace, chain_digests, chunk_key, keyspace_digest
from kvd.limits import DIGEST_BYTES
from kvd.shape import BlockShape, KvGroup, TensorShape
from kvd.types import Dtype, Lane, PlaneClass, Role
from tests.golden.writer import Chunk, Written, write_chunk

TENANT = "demo"
GENERATION = 7
TOKENS = range(101, 117)  # Two chunks of eight; the second one is stored.
BYTES_OF_A_LINE = 16

KEYSPACE = Keyspace(
    model="tiny",
    weight_revision="r1",
    shape=BlockShape(
        (
            KvGroup(
                1,
                (TensorShape(Role.K, 1, 8, Dtype.BF16), TensorShape(Role.V, 1, 4, Dtype.BF16)),
            ),
        )
    ),
    chunk_tokens=8,
)

# By channel, so that a line is a group.
K_CHANNELS = (
    (0.3125, -1.0, 2.75, 1.0, -0.5, 2.0, 1.5234375, -0.75),
    (0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5),
    (-3.0, -2.5, -1.25, -3.5, -2.0, -4.0, -3.25, -1.5),
    (-0.0, 1.0, 0.5, 0.75, 0.0, 2.0, 1.5, 1.25),
    (100, 101, 99, 103, 98, 110, 104, 102),
    (8, 9, 10, 11, 12, 13, 14, 15),
    (0.0625, 0.078125, 0.09375, 0.109375, 0.125, 0.15625, 0.1875, 0.21875),
    (-20, -10, 10, 20, 30, -30, 40, -5),
)
V_TOKENS = tuple(tuple(token / 4 + channel for channel in range(4)) for token in range(8))


def bfloat16(numbers: tuple[tuple[float, ...], ...]) -> np.ndarray:
    """Return the u16 patterns of numbers that BF16 holds exactly."""
    bits = np.array(numbers, np.float32).view(np.uint32)
    assert (bits & 0xFFFF == 0).all()
    return (bits >> 16).astype(np.uint16)


@dataclass(frozen=True, slots=True)
class Example:
    chunk: Chunk
    written: Written
    blocks: dict[str, bytes]


def worked_example() -> Example:
    """Return the chunk, its strips, and the named byte strings of the document."""
    digest = keyspace_digest(KEYSPACE, TENANT)
    chain = chain_digests(list(TOKENS), KEYSPACE.chunk_tokens)
    first, second = chain[:DIGEST_BYTES], chain[DIGEST_BYTES:]
    key = chunk_key(digest, second)
    k = bfloat16(tuple(zip(*K_CHANNELS, strict=True)))
    v = bfloat16(V_TOKENS)
    chunk = Chunk(
        KEYSPACE.shape, Lane(), PROFILE_DEFAULT, KEYSPACE.chunk_tokens, False, key, GENERATION,
        (k, v),
    )  # fmt: skip
    written = write_chunk(chunk)
    blocks = {
        "tokens": np.array(TOKENS[8:], "<u4").tobytes(),
        "keyspace-digest": digest,
        "chain-before": first,
        "chain-digest": second,
        "chunk-key": key,
        "values-k": k.tobytes(),
    }
    for plane_class in PlaneClass:
        strip = written.strips[plane_class]
        name = plane_class.name.lower()
        blocks[f"{name}-strip"] = bytes(strip.body[: strip.end()])
        blocks[f"{name}-root"] = strip.root.to_bytes(8, "little")
    return Example(chunk, written, blocks)


def hex_lines(data: bytes) -> str:
    """Return data as lines of hex, sixteen bytes each."""
    lines = [data[at : at + BYTES_OF_A_LINE] for at in range(0, len(data), BYTES_OF_A_LINE)]
    return "\n".join(line.hex(" ") for line in lines)


def main() -> None:
    for name, data in worked_example().blocks.items():
        print(f"```hex {name}\n{hex_lines(data)}\n```\n")


if __name__ == "__main__":
    main()
