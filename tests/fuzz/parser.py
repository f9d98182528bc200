"""What the table of parsers is made of, and the one way to try bytes on a row of it.

A row is data: hypothesis (`test_parsers`) and the coverage-guided fuzzer (`deep`) try the same.
"""

import contextlib
import os
import signal
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

CORPUS = Path(__file__).parent / "corpus"
# Of the processor, not of the clock: machines stall, and a hang does not.
HANG_SECONDS = 10.0
# Where files are made to be read: on a disk they would be most of what it costs to try an input.
scratch_home = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


class Hang(Exception):
    """A parser took more time than any input of its size can be worth."""


@dataclass(frozen=True, slots=True)
class Length:
    """A length or a count in the first seed; its maximum in that place must be refused."""

    at: int
    form: str  # Of `struct`.

    def most(self, data: bytes) -> bytes:
        """Return data with the maximum there."""
        most = b"\xff" * struct.calcsize(self.form)
        return data[: self.at] + most + data[self.at + len(most) :]


def _as_it_is(data: bytes) -> bytes:
    return data


@dataclass(frozen=True, slots=True)
class Parser:
    """One parser of bytes that come from outside.

    `parse` returns whether it took them, or raises one of `refuses`; whatever else it raises is a
    defect. It compares what it took with what it was made from, and with its bounds. `covers`
    names the functions under test as `path:function`; `mend` makes checksums fit, so that what
    lies behind them is tried too.
    """

    name: str
    parse: Callable[[bytes], bool]
    seeds: Callable[[], Sequence[bytes]]
    covers: tuple[str, ...]
    refuses: tuple[type[Exception], ...] = ()
    mend: Callable[[bytes], bytes] = _as_it_is
    lengths: tuple[Length, ...] = ()
    protobuf: bool = False  # Its bytes are a message, or a head of `head` bytes and one.
    head: int = 0
    room_bytes: int = 1 << 18  # That it may take for the largest of lengths.
    tries: int = 100  # In `make test`; fewer for one that takes milliseconds.


@cache
def seeds_of(parser: Parser) -> tuple[bytes, ...]:
    """Return the valid inputs of a parser, made once."""
    return tuple(parser.seeds())


def taken(parser: Parser, data: bytes) -> bool:
    """Try one input; return whether it was taken, and raise what must not be."""
    try:
        with _no_hang():
            return parser.parse(data)
    except parser.refuses:
        return False


@contextlib.contextmanager
def _no_hang() -> Iterator[None]:
    def stop(number: int, frame: object) -> None:
        raise Hang(f"more than {HANG_SECONDS:g} s of the processor")

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, HANG_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def kept(parser: Parser) -> list[bytes]:
    """Return the inputs that were found to be taken wrong once."""
    return [path.read_bytes() for path in sorted((CORPUS / parser.name).glob("*"))]
