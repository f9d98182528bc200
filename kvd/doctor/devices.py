"""Block devices under file systems: which drive, of what kind, with what scheduler."""

from dataclasses import dataclass
from pathlib import Path

from kvd.host.reading import Host


@dataclass(frozen=True, slots=True)
class Disk:
    """A whole drive; `number` MAJOR:MINOR; `under` the drives that a mapped one stands on."""

    name: str
    number: str
    rotational: bool
    scheduler: str
    block_bytes: int
    under: tuple[str, ...]

    @property
    def drives(self) -> tuple[str, ...]:
        return self.under or (self.name,)


def disk_of(host: Host, number: str) -> Disk | None:
    """Return the drive of a device number; None where a file system has none of its own."""
    place = host.path(f"sys/dev/block/{number}")
    if not place.exists():
        return None
    directory = place.resolve()
    if (directory / "partition").exists():
        directory = directory.parent
    queue = directory / "queue"
    scheduler = _word(queue / "scheduler")
    return Disk(
        directory.name,
        _word(directory / "dev") or number,
        _word(queue / "rotational") == "1",
        scheduler.partition("[")[2].partition("]")[0] or scheduler,
        int(_word(queue / "logical_block_size") or 0),
        tuple(_drives_under(directory)),
    )


def _drives_under(directory: Path) -> list[str]:
    """Return the drives at the bottom of a mapped device or a raid, sorted."""
    try:
        slaves = sorted((directory / "slaves").iterdir())
    except OSError:
        return []
    found: set[str] = set()
    for slave in slaves:
        whole = slave.resolve()
        whole = whole.parent if (whole / "partition").exists() else whole
        found.update(_drives_under(whole) or [whole.name])
    return sorted(found)


def _word(path: Path) -> str:
    """Return a file's text, or nothing: not every kind of device has every file."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""
