"""Codec profiles: how a block shape's tensors are grouped and split into planes, by a u64 id.

An id, once used, never changes its meaning: it stands under every strip's root. Also the upper
bounds of strips, which follow from profile and shape alone.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from kvd.codec.layout import (
    SINKS_MAX,
    CellSpec,
    Grouping,
    cell_aligned,
    cell_bytes_max,
    cell_bytes_max_joint,
)
from kvd.errors import ErrorKind, KvdError
from kvd.limits import PAGE_BYTES
from kvd.shape import CellGrid
from kvd.table import padded, table_bytes
from kvd.types import CLASS_COUNT, Role


@dataclass(frozen=True, slots=True)
class RoleCode:
    """How the tensors of one role are coded; group 0 is the grouping's default."""

    grouping: Grouping
    anchor_planes: int = 4
    group: int = 0


@dataclass(frozen=True, slots=True)
class CodecProfile:
    """What a profile id means: a code per role, and the sinks of a sequence's first chunk."""

    id: int
    k: RoleCode = RoleCode(Grouping.PER_CHANNEL)
    v: RoleCode = RoleCode(Grouping.PER_TOKEN)
    latent: RoleCode = RoleCode(Grouping.PER_TOKEN)
    state: RoleCode = RoleCode(Grouping.PER_TOKEN)
    sinks: int = SINKS_MAX

    def code_of(self, role: Role) -> RoleCode:
        match role:
            case Role.K:
                return self.k
            case Role.V:
                return self.v
            case Role.LATENT:
                return self.latent
            case Role.STATE:
                return self.state


PROFILE_DEFAULT = CodecProfile(id=1)
PROFILES: dict[int, CodecProfile] = {PROFILE_DEFAULT.id: PROFILE_DEFAULT}


def profile_by_id(profile_id: int) -> CodecProfile:
    """Return the profile of an id; raise INCOMPATIBLE when this version does not know it."""
    profile = PROFILES.get(profile_id)
    if profile is None:
        known = ", ".join(str(known) for known in sorted(PROFILES))
        message = f"codec profile {profile_id} is not known; this version knows {known}"
        raise KvdError(ErrorKind.INCOMPATIBLE, message)
    return profile


class GridSpecs(NamedTuple):
    """The distinct specs of a strip's cells, and per cell, in strip order, the index of its own."""

    specs: tuple[CellSpec, ...]
    spec_index: np.ndarray


@lru_cache(maxsize=256)
def cell_specs(profile: CodecProfile, grid: CellGrid, tokens: int, first_chunk: bool) -> GridSpecs:
    """Return the specs of all cells of `grid` for a chunk of `tokens`; index u8[cell_count].

    `first_chunk` says that the chunk begins its sequence, whose sinks are then kept apart.
    """
    assert tokens >= 0
    specs: list[CellSpec] = []
    row = np.empty(len(grid.row), np.uint8)
    for place, (_, index) in enumerate(grid.row):
        tensor = grid.tensors[index]
        code = profile.code_of(tensor.role)
        sinks = profile.sinks if first_chunk else 0
        spec = CellSpec(
            tensor.dtype, tokens, tensor.width, code.grouping, sinks, code.anchor_planes, code.group
        )
        if spec not in specs:
            specs.append(spec)
        row[place] = specs.index(spec)
    spec_index = np.tile(row, grid.layers)
    assert spec_index.shape == (grid.cell_count,)
    spec_index.flags.writeable = False
    return GridSpecs(tuple(specs), spec_index)


@lru_cache(maxsize=256)
def strip_bytes_max(grid: CellGrid, tokens: int, profile: CodecProfile) -> tuple[int, int, int]:
    """Return the largest anchor, residual and exact strip of a chunk, each on its own."""
    table = table_bytes(grid.cell_count)
    largest = [0, 0, 0]
    for first_chunk in (False, True):
        specs, spec_index = cell_specs(profile, grid, tokens, first_chunk)
        counts = np.bincount(spec_index, minlength=len(specs)).tolist()
        for index in range(CLASS_COUNT):
            cells = sum(
                count * cell_aligned(cell_bytes_max(spec)[index])
                for spec, count in zip(specs, counts, strict=True)
            )
            largest[index] = max(largest[index], padded(table + cells))
    return largest[0], largest[1], largest[2]


@lru_cache(maxsize=256)
def chunk_bytes_max(grid: CellGrid, tokens: int, profile: CodecProfile) -> int:
    """Return the largest sum of a chunk's three strips: tables, cells, padding to pages.

    About the raw size, as a cell that coding does not make smaller is stored raw.
    """
    largest = 0
    for first_chunk in (False, True):
        specs, spec_index = cell_specs(profile, grid, tokens, first_chunk)
        counts = np.bincount(spec_index, minlength=len(specs)).tolist()
        cells = sum(
            count * cell_bytes_max_joint(spec) for spec, count in zip(specs, counts, strict=True)
        )
        largest = max(largest, cells)
    # Each strip is padded apart: at most a page less one byte three times, in whole pages.
    total = largest + CLASS_COUNT * (table_bytes(grid.cell_count) + PAGE_BYTES - 1)
    return min(total // PAGE_BYTES * PAGE_BYTES, sum(strip_bytes_max(grid, tokens, profile)))
