"""What a daemon leaves of its dram for the next one, as bytes (docs/restart.md).

Packs and checks bytes, knows no descriptor. Everything is refused for any flaw: dram is worth less
than a doubt.
"""

import struct
from dataclasses import dataclass

import numpy as np

from kvd.format.page import HEAD_BYTES, Refused, damaged, seal, unseal
from kvd.format.rows import LANE, sound_lanes
from kvd.format.superblock import UUID_BYTES
from kvd.identity import digest_of_keyspace_bytes
from kvd.limits import DIGEST_BYTES, GENERATION_MAX, PAGE_BYTES
from kvd.types import CLASS_COUNT

MAGIC = b"kvd-dram"
HANDOVER_FORMAT = 1
DIRECTORY_BYTES = 112
TENANT_BYTES = 64
SLAB_MAX = (1 << 31) - 1  # As with generations: those made behind it have numbers, too.
NO_HOME = bytes(UUID_BYTES)  # Of a daemon without an ssd tier.
_FIELDS = struct.Struct(f"<QQQ{UUID_BYTES}s{DIRECTORY_BYTES}sIIII")
FIELDS_BYTES = _FIELDS.size
_U32 = struct.Struct("<I")

SLAB = np.dtype(
    [
        ("slab", "<u4"),
        ("orphan", "u1"),
        ("zero", "u1", (3,)),
        ("device", "<u8"),
        ("inode", "<u8"),
        ("tenant", f"S{TENANT_BYTES}"),
    ]
)
STRIPS = np.dtype(
    [
        ("lane", "<u4"),
        ("zero", "<u4"),
        ("chain", "u1", (DIGEST_BYTES,)),
        ("parent", "u1", (DIGEST_BYTES,)),
        ("generation", "<u8"),
        ("profile", "<u8"),
        ("heat", "<f8"),
        ("slab", "<u4", (CLASS_COUNT,)),
        ("size", "<u4", (CLASS_COUNT,)),
        ("offset", "<u8", (CLASS_COUNT,)),
        ("root", "<u8", (CLASS_COUNT,)),
    ]
)


@dataclass(frozen=True, slots=True)
class Handover:
    """`directory`: the runtime directory; `home`: the data set's; `keyspaces`: digest, bytes.

    `lanes` of LANE, `slabs` of SLAB, `rows` of STRIPS.
    """

    generation: int
    slab_bytes: int
    home: bytes
    directory: bytes
    keyspaces: tuple[tuple[bytes, bytes], ...]
    lanes: np.ndarray
    slabs: np.ndarray
    rows: np.ndarray


def pack_handover(left: Handover) -> bytes:
    """Return all of it, sealed; what it says must be what a reader takes."""
    assert _problem(left) == "", _problem(left)
    assert len(left.directory) <= DIRECTORY_BYTES and len(left.home) == UUID_BYTES
    packed = [_U32.pack(len(data)) + data for _, data in left.keyspaces]
    tables = (left.lanes, left.slabs, left.rows)
    body = b"".join([b"".join(packed), *(table.tobytes() for table in tables)])
    fields = _FIELDS.pack(
        HEAD_BYTES + _FIELDS.size + len(body), left.generation, left.slab_bytes, left.home,
        left.directory, len(packed), *map(len, tables),
    )  # fmt: skip
    return seal(MAGIC, fields + body, HANDOVER_FORMAT)


def parse_handover(data: bytes) -> Handover | Refused:
    """Return what `pack_handover` packed, or why there is nothing to be believed."""
    body = unseal(data, MAGIC, HANDOVER_FORMAT)
    match body:
        case Refused():
            return body
    if len(body) < _FIELDS.size:
        return damaged("it is short")
    length, generation, slab_bytes, home, directory, *counts = _FIELDS.unpack_from(body)
    if length != len(data):
        return damaged(f"it has {len(data)} bytes and says {length}")
    keyspaces, at = _split(body, _FIELDS.size, counts[0])
    tables = []
    for dtype, count in zip((LANE, SLAB, STRIPS), counts[1:], strict=True):
        end = at + count * dtype.itemsize
        tables.append(np.frombuffer(body[at:end], np.uint8))
        at = end
    if at != len(body):
        return damaged("its tables do not fill it")
    left = Handover(
        generation, slab_bytes, home, directory.rstrip(b"\0"), keyspaces,
        *(table.view(dtype) for table, dtype in zip(tables, (LANE, SLAB, STRIPS), strict=True)),
    )  # fmt: skip
    problem = _problem(left)
    return damaged(problem) if problem else left


def _split(body: bytes, at: int, count: int) -> tuple[tuple[tuple[bytes, bytes], ...], int]:
    """Return keyspaces with their digests, and where they end; behind the body when short."""
    found = []
    for _ in range(count):
        if at + _U32.size > len(body):
            return (), len(body) + 1
        (size,) = _U32.unpack_from(body, at)
        at += _U32.size
        data = body[at : at + size]
        found.append((digest_of_keyspace_bytes(data), data))
        at += size
    return tuple(found), at


def _problem(left: Handover) -> str:
    """Return what cannot be, or nothing."""
    if left.generation > GENERATION_MAX:
        return f"generation {left.generation} cannot be"
    if not left.slab_bytes or left.slab_bytes % PAGE_BYTES:
        return f"slabs of {left.slab_bytes} bytes cannot be"
    digests = {digest for digest, _ in left.keyspaces}
    named = {lane["keyspace"].tobytes() for lane in left.lanes}
    if not sound_lanes(left.lanes).all() or not named <= digests:
        return "it names a lane that cannot be"
    slabs, rows = left.slabs, left.rows
    numbers = slabs["slab"]
    sound = (numbers != 0) & (slabs["orphan"] <= 1) & ~slabs["zero"].any(axis=1)
    sound &= numbers <= SLAB_MAX
    if not sound.all() or len(np.unique(numbers)) != len(numbers):
        return "it names a slab that cannot be"
    if len(set(slabs[["device", "inode"]].tolist())) != len(slabs):
        return "two slabs of it are one file"
    if not all(map(_is_text, slabs["tenant"].tolist())):
        return "it names a tenant that cannot be"
    if not _sound_rows(left).all():
        return "it names a chunk that cannot be"
    if _meet(rows["slab"].ravel(), rows["offset"].ravel(), rows["size"].ravel()):
        return "two strips of it lie in one place"
    return ""


def _is_text(name: bytes) -> bool:
    try:
        name.decode()
    except UnicodeDecodeError:
        return False
    return True


def _sound_rows(left: Handover) -> np.ndarray:
    rows = left.rows
    there = rows["slab"] != 0
    good = (rows["lane"] < len(left.lanes)) & (rows["zero"] == 0) & ~np.isnan(rows["heat"])
    good &= (rows["generation"] != 0) & (rows["generation"] <= left.generation)
    good &= there.any(axis=1)
    good &= (~there | np.isin(rows["slab"], left.slabs["slab"])).all(axis=1)
    for name in ("size", "offset", "root"):
        good &= (there | (rows[name] == 0)).all(axis=1)
    offsets, sizes = rows["offset"], rows["size"].astype(np.uint64)
    good &= (there == (sizes != 0)).all(axis=1)
    good &= ~((offsets | sizes) % np.uint64(PAGE_BYTES)).any(axis=1)
    limit = np.uint64(left.slab_bytes)
    return good & ((offsets <= limit) & (sizes <= limit - np.minimum(offsets, limit))).all(axis=1)


def _meet(slabs: np.ndarray, offsets: np.ndarray, sizes: np.ndarray) -> bool:
    there = slabs != 0
    slabs, offsets, sizes = slabs[there], offsets[there], sizes[there]
    order = np.lexsort((offsets, slabs))
    slabs, begins = slabs[order], offsets[order]
    ends = begins + sizes[order]
    return bool(((slabs[1:] == slabs[:-1]) & (begins[1:] < ends[:-1])).any())
