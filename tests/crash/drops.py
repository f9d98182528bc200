"""What a daemon drops of its own accord, told as it happens, so that a loss can be told from it.

One entry for each strip, written before the drop: when (monotonic), chain digest, class.
"""

import os
import struct
import time
from dataclasses import dataclass
from pathlib import Path

from kvd.core import drops
from kvd.core.state import State
from kvd.core.story import Why
from tests.crash.seam import replace_everywhere

ENTRY = struct.Struct("<Q32sB")
CONDEMNED = 255


@dataclass(frozen=True, slots=True)
class Drop:
    at_ns: int
    chain: bytes
    plane_class: int


def read_drops(path: Path, begin: int) -> list[Drop]:
    """Return the entries from the `begin`th on."""
    if not path.exists():
        return []
    with open(path, "rb") as file:
        file.seek(begin * ENTRY.size)
        data = file.read()
    return [Drop(*each) for each in ENTRY.iter_unpack(data[: len(data) // ENTRY.size * ENTRY.size])]


def tell_drops(path: Path) -> None:
    """Have this process tell its drops in a file."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def tell(state: State, row: int, plane_class: int) -> None:
        digest = state.index.chain[row]
        os.write(descriptor, ENTRY.pack(time.monotonic_ns(), digest, plane_class))

    drop_class, condemn = drops.drop_class, drops.condemn

    def told_drop(state: State, row: int, plane_class: int, why: Why) -> int:
        tell(state, row, plane_class)
        return drop_class(state, row, plane_class, why)

    def told_condemn(state: State, row: int, why: Why) -> None:
        tell(state, row, CONDEMNED)
        condemn(state, row, why)

    replace_everywhere(drop_class, told_drop)
    replace_everywhere(condemn, told_condemn)
