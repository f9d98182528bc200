"""kvd reads a chunk that a manifest describes: every check of a reader, with kvd's own parts."""

import numpy as np

from kvd.checksum import strip_root
from kvd.codec import (
    EXACT,
    CellColumns,
    CodecProfile,
    cell_specs,
    check_cells,
    decode_cells,
    profile_by_id,
)
from kvd.errors import KvdError
from kvd.format.strip import parse_table
from kvd.shape import cell_grid
from kvd.table import LENGTH_MASK, RAW_FLAG
from kvd.types import CLASS_COUNT, PlaneClass
from tests.golden.descriptions import lane_of, shape_of


class Refusal(Exception):
    """What kvd found wrong: profile, table, root, sum or cell."""

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.kind = kind


def _profile(known: dict, profiles: dict[int, CodecProfile]) -> CodecProfile:
    if known["profile"] in profiles:
        return profiles[known["profile"]]
    try:
        return profile_by_id(known["profile"])
    except KvdError as error:
        raise Refusal("profile") from error


def read_chunk(
    known: dict, strips: dict[str, bytes], planes: int, profiles: dict[int, CodecProfile]
) -> bytes:
    """Return the bits of all cells at 1 to 8 planes or EXACT, joined; raise Refusal."""
    profile = _profile(known, profiles)
    lane = lane_of(known["lane"])
    grid = cell_grid(shape_of(known["shape"]), lane)
    specs, index = cell_specs(profile, grid, known["tokens"], known["first_chunk"])
    needed = 1 if all(planes <= spec.anchor_planes for spec in specs) else 2
    needed = CLASS_COUNT if planes == EXACT else needed
    lengths = np.zeros((CLASS_COUNT, grid.cell_count), np.uint32)
    raw = np.zeros(grid.cell_count, np.bool_)
    addresses: list[np.ndarray | None] = [None] * CLASS_COUNT
    datas = [np.frombuffer(strips[c.name.lower()], np.uint8) for c in PlaneClass]
    for plane_class in list(PlaneClass)[:needed]:
        data, name = datas[plane_class], plane_class.name.lower()
        table = parse_table(data, grid.cell_count, len(data))
        if table is None:
            raise Refusal("table")
        key = bytes.fromhex(known["chunk_key"])
        root = strip_root(key, lane, plane_class, known["generation"], profile.id, table.tobytes())
        if root != int(known["strips"][name]["root"], 16):
            raise Refusal("root")
        lengths[plane_class] = table["length"] & LENGTH_MASK
        if plane_class == PlaneClass.ANCHOR:
            raw = table["length"] & RAW_FLAG != 0
        offsets, sums = table["offset"].astype(np.uint64), table["checksum"].copy()
        if len(check_cells(data, offsets, lengths[plane_class].copy(), sums)):
            raise Refusal("sum")
        addresses[plane_class] = offsets + np.uint64(data.ctypes.data)
    anchors, residuals, exacts = addresses
    assert anchors is not None
    columns = CellColumns(index, anchors, residuals, exacts, lengths, raw)
    sizes = [specs[i].raw_bytes for i in index]
    # Eight bytes around every cell stay as they are.
    begins = np.cumsum([8, *(size + 8 for size in sizes)])
    out = np.full(int(begins[-1]), 0xA5, np.uint8)
    targets = (begins[:-1] + out.ctypes.data).astype(np.uint64)
    strides = np.array([specs[i].width for i in index], np.int64)
    malformed = decode_cells(specs, columns, targets, strides, planes)
    values = [out[at : at + size] for at, size in zip(begins[:-1], sizes, strict=True)]
    outside = np.concatenate(
        [out[:8], *(out[at + size :][:8] for at, size in zip(begins[:-1], sizes, strict=True))]
    )
    assert (outside == 0xA5).all(), "bytes outside of the targets were written"
    if len(malformed):
        raise Refusal("cell")
    return b"".join(value.tobytes() for value in values)
