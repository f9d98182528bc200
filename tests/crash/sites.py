"""The boundaries at which a daemon can be ended or made to fail, by name.

A site is what is acted on and how: `strips.write` is a pwritev of strips into a segment,
`segments.sync` the sync of the directory of segments.
"""

import os
from pathlib import PurePath

BEFORE, MIDDLE, AFTER, INSIDE = "before", "middle", "after", "inside"

# What happens while a daemon serves.
SERVING = (
    ("segment.open", (BEFORE, AFTER)),
    ("segment.create", (BEFORE, AFTER)),
    ("segment.allocate", (BEFORE, MIDDLE, AFTER)),
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
# What happens only when it starts: in the order of a first start.
STARTING = (
    ("canary.create", (BEFORE, AFTER)),
    ("root.sync", (BEFORE, AFTER)),
    ("canary.allocate", (BEFORE, AFTER)),
    ("superblock.create", (BEFORE, AFTER)),
    ("superblock.write", (BEFORE, MIDDLE, AFTER)),
    ("superblock.sync", (BEFORE, AFTER)),
    ("superblock.rename", (BEFORE, AFTER)),
    ("catalog.make", (BEFORE, AFTER)),
    ("catalog.space", (BEFORE, AFTER)),
    ("catalog.sync", (BEFORE, AFTER)),
    ("catalog.remove", (BEFORE, AFTER)),
    ("catalog.open", (BEFORE, AFTER)),
)


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
