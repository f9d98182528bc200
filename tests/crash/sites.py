"""The boundaries at which a daemon can be ended or made to fail, by name.

A site is what is acted on and how: `strips.write` is a pwritev of strips into a segment,
`segments.sync` the sync of the directory of segments.
"""

import os
from dataclasses import dataclass
from pathlib import PurePath

BEFORE, MIDDLE, AFTER, INSIDE = "before", "middle", "after", "inside"


@dataclass(frozen=True, slots=True, order=True)
class Point:
    """The `nth` time that a process meets a site; whether it is killed or power fails is the same.

    What it is counted from is the process's beginning, whatever it did until then.
    """

    site: str
    when: str
    nth: int


# What happens while a daemon serves.
SERVING = (
    ("segment.open", (BEFORE, AFTER)),
    ("segment.create", (BEFORE, AFTER)),
    ("segment.allocate", (BEFORE, MIDDLE, AFTER)),
    ("head.read", (BEFORE, AFTER)),
    ("head.write", (BEFORE, MIDDLE, AFTER)),
    ("head.sync", (BEFORE, AFTER)),
    ("segments.sync", (BEFORE, AFTER)),
    ("strips.write", (BEFORE, MIDDLE, AFTER)),
    ("strips.sync", (BEFORE, AFTER)),
    ("strips.read", (BEFORE, AFTER)),
    ("segment.unlink", (BEFORE, AFTER)),
    ("canary.write", (BEFORE, MIDDLE, AFTER)),
    ("canary.sync", (BEFORE, AFTER)),
    ("commit", (BEFORE, INSIDE, MIDDLE, AFTER)),
)
# What happens to data directories only when it starts: in the order of a first start.
STARTING = (
    ("canary.create", (BEFORE, AFTER)),
    ("root.sync", (BEFORE, AFTER)),
    ("canary.allocate", (BEFORE, AFTER)),
    ("superblock.create", (BEFORE, AFTER)),
    ("superblock.write", (BEFORE, MIDDLE, AFTER)),
    ("superblock.sync", (BEFORE, AFTER)),
    ("superblock.rename", (BEFORE, AFTER)),
    ("catalog.read", (BEFORE, AFTER)),
    ("catalog.make", (BEFORE, AFTER)),
    ("catalog.space", (BEFORE, AFTER)),
    ("catalog.sync", (BEFORE, AFTER)),
    ("catalog.rename", (BEFORE, AFTER)),
    ("catalog.remove", (BEFORE, MIDDLE, AFTER)),
    ("catalog.open", (BEFORE, AFTER)),
)
# What a start does beside its data directories.
BESIDE = (
    ("lock.take", (BEFORE, AFTER)),
    ("instance.lock", (BEFORE, AFTER)),
    ("socket.remove", (BEFORE, AFTER)),
    ("socket.listen", (BEFORE, AFTER)),
    ("slab.create", (BEFORE, AFTER)),
    ("page.create", (BEFORE, AFTER)),
)
# What happens when dram goes from one daemon to the next, under a service manager.
KEEPING = (
    ("kept.index", (BEFORE, AFTER)),
    ("kept.store", (BEFORE, AFTER)),
    ("kept.heard", (BEFORE, AFTER)),
    ("kept.claim", (BEFORE, AFTER)),
    ("slab.adopt", (BEFORE, AFTER)),
    ("kept.forget", (BEFORE, AFTER)),
)
ALL = (*SERVING, *STARTING, *BESIDE, *KEEPING)


def subject(path: str) -> str:
    """Return what a path under a data directory is."""
    pure = PurePath(path.removesuffix(" (deleted)"))
    if pure.parent.name == "segments":
        return "segment"
    if pure.name == "segments":
        return "segments"
    if pure.name.startswith("superblock"):
        return "superblock"
    return "canary" if pure.name == "canary" else "root"


def path_of(descriptor: int) -> str:
    return os.readlink(f"/proc/self/fd/{descriptor}")
