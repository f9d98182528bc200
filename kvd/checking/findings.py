"""What a check finds: each with its kind, how bad it is, where, and what repair does about it."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice

KEPT_OF_A_KIND = 100  # Of others of the same kind only their number is kept.


class Level(StrEnum):
    """WRONG: something durable is not right. LEFT: a crash leaves it, and it harms nobody."""

    WRONG = "wrong"
    LEFT = "left"


class Kind(StrEnum):
    SUPERBLOCK = "superblock"
    CANARY = "canary"
    CATALOG = "catalog"  # Its file as a whole.
    ROW = "row"  # One record of it, of any table.
    CHAIN = "chain"  # A chunk without the one before it.
    SEGMENT = "segment"  # A file that the catalog knows.
    STRIP = "strip"
    CELL = "cell"
    FILE = "file"  # One that nothing refers to.
    SPACE = "space"


@dataclass(frozen=True, slots=True)
class Finding:
    kind: Kind
    level: Level
    where: str
    what: str
    repair: str


class Findings:
    """All findings by number, and the first ones of each kind in words."""

    def __init__(self) -> None:
        self.kept: list[Finding] = []
        self._counts: Counter[tuple[Kind, Level]] = Counter()

    def add(self, finding: Finding) -> None:
        self.add_all(finding.kind, finding.level, 1, [finding])

    def add_all(self, kind: Kind, level: Level, count: int, words: Iterable[Finding]) -> None:
        """Add `count` findings, and as many of their `words` as are kept."""
        room = max(0, KEPT_OF_A_KIND - self._counts[kind, level])
        self.kept += islice(words, room)
        self._counts[kind, level] += count

    def of(self, level: Level) -> dict[Kind, int]:
        """Return how many of a level there are, by kind."""
        return {kind: n for (kind, at), n in sorted(self._counts.items()) if at == level and n}

    def count(self, level: Level) -> int:
        return sum(self.of(level).values())

    @property
    def left_out(self) -> int:
        """Return how many are not in words."""
        return self._counts.total() - len(self.kept)
