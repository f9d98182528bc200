"""Mounts of a host as /proc/PID/mountinfo tells them, and which one a path lies on."""

import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from kvd.host.reading import Host, Unseen

_OCTAL = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class Mount:
    """`device` is MAJOR:MINOR; `root` what of the file system is mounted; `kind` its type."""

    device: str
    root: str
    point: str
    options: frozenset[str]
    kind: str
    source: str


def mounts_of(host: Host) -> list[Mount]:
    """Return the mounts of the process that counts, in their order; raise Unseen."""
    found = []
    for line in host.of_process("mountinfo").splitlines():
        before, _, behind = line.partition(" - ")
        first, last = before.split(), behind.split()
        if len(first) < 6 or len(last) < 3:
            continue
        options = frozenset(first[5].split(",")) | frozenset(last[2].split(","))
        root, point, source = (_plain(word) for word in (first[3], first[4], last[1]))
        found.append(Mount(first[2], root, point, options, last[0], source))
    return found


def mount_under(mounts: list[Mount], path: Path) -> Mount:
    """Return the mount that a path without symbolic links lies on; raise Unseen."""
    best = None
    for mount in mounts:
        is_under = PurePosixPath(path).is_relative_to(mount.point)
        # Of two at one point the later one covers the other.
        if is_under and (best is None or len(mount.point) >= len(best.point)):
            best = mount
    if best is None:
        raise Unseen(f"mountinfo: no mount holds {path}")
    return best


def _plain(word: str) -> str:
    """Return a word of mountinfo with its spaces, which the kernel writes in octal."""
    return _OCTAL.sub(lambda found: chr(int(found[1], 8)), word)
