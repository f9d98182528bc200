"""What repair does: only what is named here, in this order, and nothing of it is a guess."""

from dataclasses import dataclass, field
from pathlib import Path

from kvd.catalog.contract import Changes
from kvd.disk.directories import DataDirectory


@dataclass(slots=True)
class Plan:
    """Superblocks are put back first, then the catalog changes, then files do.

    `purge` is what the catalog's loader would not believe, `records` keys of segments that the
    catalog forgets, `generation` a higher mark or 0; with `new_catalog` it goes as a whole.
    `resized` segments (directory, number) get their size back, `remains` are removed.
    """

    superblocks: list[DataDirectory] = field(default_factory=list)
    purge: Changes = field(default_factory=Changes)
    records: list[bytes] = field(default_factory=list)
    generation: int = 0
    new_catalog: bool = False
    resized: list[tuple[DataDirectory, int]] = field(default_factory=list)
    remains: list[Path] = field(default_factory=list)
    canaries: list[DataDirectory] = field(default_factory=list)
