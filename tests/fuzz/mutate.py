"""Other bytes than those that are right: each change is one that files and peers really make.

Chance is an argument: hypothesis's can be shrunk, the fuzzer's comes from its own number.
"""

import random
from collections.abc import Callable, Sequence

from tests.fuzz.parser import Parser, seeds_of
from tests.fuzz.wire import mutate_message

LONGEST = 1 << 16
EXTREMES = (0, 1, 2, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x7FFF_FFFF, 0x8000_0000,
            0xFFFF_FFFF, 0x7FFF_FFFF_FFFF_FFFF, 0x8000_0000_0000_0000,
            0xFFFF_FFFF_FFFF_FFFF)  # fmt: skip
Change = Callable[[random.Random, bytearray, Sequence[bytes]], None]


def mutated(rng: random.Random, parser: Parser, data: bytes | None = None) -> bytes:
    """Return a seed of the parser, or `data`, changed in one to four ways, mended half the time."""
    seeds = seeds_of(parser)
    out = bytearray(rng.choice(seeds) if data is None else data)
    for _ in range(rng.choice((1, 1, 2, 4))):
        if parser.protobuf and rng.random() < 0.7:
            head = min(parser.head, len(out))
            out[head:] = mutate_message(rng, bytes(out[head:]))
        else:
            rng.choice(CHANGES)(rng, out, seeds)
        del out[LONGEST:]
    mend = parser.mend if rng.random() < 0.5 else bytes
    return mend(bytes(out))


def _place(rng: random.Random, out: bytearray) -> int:
    return rng.randint(0, len(out))


def flip(rng: random.Random, out: bytearray, seeds: Sequence[bytes]) -> None:
    for _ in range(rng.randint(1, 3)):
        if out:
            out[rng.randrange(len(out))] ^= 1 << rng.randrange(8)


def cut(rng: random.Random, out: bytearray, seeds: Sequence[bytes]) -> None:
    del out[_place(rng, out) :]


def drop(rng: random.Random, out: bytearray, seeds: Sequence[bytes]) -> None:
    at = _place(rng, out)
    del out[at : at + rng.choice((1, 2, 4, 8, 16, 64))]


def repeat(rng: random.Random, out: bytearray, seeds: Sequence[bytes]) -> None:
    at = _place(rng, out)
    part = out[at : at + rng.choice((1, 4, 8, 16, 64, 256))]
    out[at:at] = part * rng.choice((1, 1, 2, 7))


def move(rng: random.Random, out: bytearray, seeds: Sequence[bytes]) -> None:
    at, other, size = _place(rng, out), _place(rng, out), rng.choice((1, 4, 8, 16, 64))
    part = out[other : other + size]
    out[at : at + len(part)] = part


def splice(rng: random.Random, out: bytearray, seeds: Sequence[bytes]) -> None:
    """Go on with another input from about the same place."""
    other = rng.choice(seeds)
    at = _place(rng, out)
    out[at:] = other[max(0, at + rng.choice((-8, -1, 0, 0, 0, 1, 8))) :]


def noise(rng: random.Random, out: bytearray, seeds: Sequence[bytes]) -> None:
    at = _place(rng, out)
    out[at:at] = bytes(rng.randrange(256) for _ in range(rng.randint(1, 16)))


def extreme(rng: random.Random, out: bytearray, seeds: Sequence[bytes]) -> None:
    """Set what may be a length, a count or a place to an edge, or near one that is there."""
    size = rng.choice((1, 2, 4, 4, 8))
    if len(out) < size:
        return
    at = rng.randint(0, len(out) - size)
    at -= at % size if rng.random() < 0.7 else 0
    value = rng.choice(EXTREMES)
    if rng.random() < 0.3:
        value = int.from_bytes(out[at : at + size], "little") + rng.choice((-1, 1, 16, 4096))
    out[at : at + size] = (value % (1 << 8 * size)).to_bytes(size, "little")


def zeros(rng: random.Random, out: bytearray, seeds: Sequence[bytes]) -> None:
    at = _place(rng, out)
    size = min(rng.choice((1, 4, 8, 16, 32)), len(out) - at)
    out[at : at + size] = bytes(size)


CHANGES: tuple[Change, ...] = (
    flip, flip, cut, drop, repeat, move, splice, noise, extreme, extreme, zeros,
)  # fmt: skip
