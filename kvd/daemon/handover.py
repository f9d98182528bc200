"""Dram between two daemons: the core's words as columns of the format, and back.

Pure; a slab is known by its file (device and inode), as descriptors change their numbers.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from kvd.core.disk_effects import LaneName, RowKeys
from kvd.core.dram import LeftDram, LeftRows, LeftSlab
from kvd.errors import KvdError
from kvd.format.handover import SLAB, STRIPS, Handover
from kvd.format.keyspaces import pack_keyspace, parse_keyspace
from kvd.format.page import Refused, damaged
from kvd.format.rows import LANE, lane_of, put_lane
from kvd.limits import DIGEST_BYTES
from kvd.shape import cell_grid

INDEX_NAME, SLABS_NAME = "kvd-dram", "kvd-slabs"  # In the service manager's store.
_NO_DIGEST = bytes(DIGEST_BYTES)

FileKey = tuple[int, int]  # Device and inode.


@dataclass(frozen=True, slots=True)
class Whose:
    """Which daemon dram belongs to: `home` is the uuid of its data set, zeros without one."""

    directory: bytes
    home: bytes


def handover_of(left: LeftDram, whose: Whose, files: Mapping[int, FileKey]) -> Handover:
    """Return what the next daemon is to find; `files` of each slab."""
    keyspaces = tuple(pack_keyspace(*each) for each in left.keyspaces.values())
    names, rows = left.rows.keys.names, left.rows
    lanes = np.zeros(len(names), LANE)
    for at, name in enumerate(names):
        put_lane(lanes[at : at + 1], name.keyspace, name.lane)
    slabs = np.zeros(len(left.slabs), SLAB)
    for row, slab in zip(slabs, left.slabs, strict=True):
        row["slab"], row["orphan"], row["tenant"] = slab.slab, slab.orphan, slab.tenant.encode()
        row["device"], row["inode"] = files[slab.slab]
    strips = np.zeros(len(rows.parents), STRIPS)
    strips["lane"], strips["chain"] = rows.keys.name_of, _digests(rows.keys.chain)
    strips["parent"] = _digests([parent or _NO_DIGEST for parent in rows.parents])
    strips["generation"], strips["profile"] = rows.generations, rows.profiles
    strips["heat"], strips["slab"], strips["size"] = rows.heats, rows.slabs, rows.sizes
    strips["offset"], strips["root"] = rows.offsets, rows.roots
    return Handover(
        left.generation, left.slab_bytes, whose.home, whose.directory, keyspaces,
        lanes, slabs, strips,
    )  # fmt: skip


def left_of(found: Handover) -> tuple[LeftDram, dict[int, FileKey]] | Refused:
    """Return what `handover_of` made, with the files of its slabs, or why it cannot be."""
    keyspaces = {}
    for digest, data in found.keyspaces:
        keyspace = parse_keyspace(digest, data)
        match keyspace:
            case Refused():
                return keyspace
        keyspaces[digest] = keyspace
    names = []
    for row in found.lanes:
        digest, lane = row["keyspace"].tobytes(), lane_of(row)
        try:
            grid = cell_grid(keyspaces[digest][0].shape, lane)
        except KvdError as error:
            return damaged(f"it names a lane that its keyspace has not: {error.message}")
        names.append(LaneName(digest, lane, grid.cell_count))
    rows, files = found.rows, {}
    for slab in found.slabs:
        files[int(slab["slab"])] = int(slab["device"]), int(slab["inode"])
    parents = [b"" if digest == _NO_DIGEST else digest for digest in _listed(rows["parent"])]
    left = LeftDram(
        found.generation,
        found.slab_bytes,
        keyspaces,
        tuple(
            LeftSlab(int(slab["slab"]), slab["tenant"].decode(), bool(slab["orphan"]))
            for slab in found.slabs
        ),
        LeftRows(
            RowKeys(tuple(names), rows["lane"].copy(), _listed(rows["chain"])),
            parents,
            *(np.ascontiguousarray(rows[name]) for name in (
                "generation", "profile", "heat", "slab", "offset", "size", "root",
            )),
        ),
    )  # fmt: skip
    return left, files


def _digests(digests: list[bytes]) -> np.ndarray:
    return np.frombuffer(b"".join(digests), np.uint8).reshape(len(digests), DIGEST_BYTES)


def _listed(digests: np.ndarray) -> list[bytes]:
    return np.ascontiguousarray(digests).view(f"V{DIGEST_BYTES}").reshape(-1).tolist()
