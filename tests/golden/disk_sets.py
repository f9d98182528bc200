"""Sets of data directories that every reader must read, by name: the same bytes every time.

Made with kvd's own code, but for LMDB: of a catalog there are its records.
"""

from dataclasses import dataclass, field, replace

import numpy as np

from kvd.disk.canary import MAGIC as CANARY
from kvd.format.keyspaces import pack_keyspace
from kvd.format.page import seal_page
from kvd.format.records import (
    META_KEY,
    SEGMENT_KEY_BYTES,
    Meta,
    empty_segments,
    pack_meta,
    seal_segments,
)
from kvd.format.rows import KEY_BYTES, empty_rows, put_lane, seal_rows
from kvd.format.segment import SegmentHead, pack_segment_head, segment_name
from kvd.format.superblock import Superblock, pack_superblock
from kvd.identity import Keyspace, chain_digests, chunk_key
from kvd.limits import DIGEST_BYTES, PAGE_BYTES
from kvd.shape import BlockShape, KvGroup, TensorShape
from kvd.types import CLASS_COUNT, Dtype, Lane, Part, PlaneClass, Role, SegmentState, Shard
from kvd.types import ShardScheme as Scheme
from tests.golden.accepted import chunk_of
from tests.golden.writer import Written, write_chunk

MARK = 500
TENANT = "demo"
Record = tuple[str, bytes, bytes]  # Database, key, value.


@dataclass(slots=True)
class Image:
    """Files by path, whose first part is the directory's name, and records of the catalog.

    `records` is None where there is no catalog, and one of them where it is gone; `classes` and
    `values` are of each chunk, by its shard and chain.
    """

    covers: str
    directories: tuple[str, ...]
    files: dict[str, bytes]
    records: list[Record | None] | None
    classes: dict[str, int] = field(default_factory=dict)
    values: dict[str, bytes] = field(default_factory=dict)


@dataclass(slots=True)
class Draft:
    """A set while it is made: segments of `pages`, each a head and strips at given pages."""

    covers: str
    uuids: dict[str, bytes]
    pages: int
    segments: dict[tuple[int, int], tuple[SegmentHead, dict[int, bytes]]] = field(
        default_factory=dict
    )
    states: dict[tuple[int, int], SegmentState] = field(default_factory=dict)
    rows: list[np.ndarray] = field(default_factory=list)
    keyspaces: dict[bytes, bytes] = field(default_factory=dict)
    classes: dict[str, int] = field(default_factory=dict)
    values: dict[str, bytes] = field(default_factory=dict)

    @property
    def segment_bytes(self) -> int:
        return self.pages * PAGE_BYTES

    def segment(self, at: tuple[int, int], epoch: int, c: PlaneClass, state: SegmentState) -> None:
        directory, number = at
        uuid = list(self.uuids.values())[directory]
        head = SegmentHead(uuid, number, epoch, c, self.segment_bytes)
        self.segments[at], self.states[at] = (head, {}), state

    def chunk(
        self, keyspace: Keyspace, lane: Lane, chain: list[bytes], generation: int,
        places: list[tuple[int, int, int]],
    ) -> None:  # fmt: skip
        """Add the last chunk of `chain`, with one place (directory, segment, page) per class."""
        digest, self.keyspaces[digest] = self._keyspace(keyspace)
        made = replace(
            chunk_of(f"disk {generation}", keyspace.shape, keyspace.chunk_tokens, lane),
            first=len(chain) == 1, key=chunk_key(digest, chain[-1]), generation=generation,
        )  # fmt: skip
        written: Written = write_chunk(made)
        row = empty_rows(1)
        put_lane(row, digest, lane)
        row["chain"] = np.frombuffer(chain[-1], np.uint8)
        row["parent"] = np.frombuffer([bytes(DIGEST_BYTES), *chain][-2], np.uint8)
        row["generation"], row["profile"], row["heat"] = generation, 1, generation / 8
        for c, (directory, segment, page) in enumerate(places):
            head, strips = self.segments[directory, segment]
            assert head.plane_class == c
            strips[page] = bytes(written.strips[c].body)
            row["root"][0, c], row["directory"][0, c] = written.strips[c].root, directory
            row["segment"][0, c], row["epoch"][0, c] = segment, head.epoch
            row["page"][0, c], row["pages"][0, c] = page, written.strips[c].size // PAGE_BYTES
        seal_rows(row)
        self.rows.append(row)
        name = f"{lane.shard.index} {chain[-1].hex()}"
        self.classes[name] = len(places)
        if len(places) == CLASS_COUNT:
            self.values[name] = b"".join(cell.tobytes() for cell in made.cells)

    def _keyspace(self, keyspace: Keyspace) -> tuple[bytes, bytes]:
        return pack_keyspace(keyspace, TENANT)

    def files(self) -> dict[str, bytes]:
        names, home = list(self.uuids), next(iter(self.uuids.values()))
        out = {}
        for number, name in enumerate(names):
            superblock = Superblock(self.uuids[name], home, self.segment_bytes)
            out[f"{name}/superblock"] = pack_superblock(superblock)
            out[f"{name}/canary"] = seal_page(CANARY, bytes(range(16)))
            out[f"{name}/lock"] = b""
            for (directory, segment), (head, strips) in sorted(self.segments.items()):
                if directory == number:
                    data = bytearray(pack_segment_head(head).ljust(self.segment_bytes, b"\0"))
                    for page, strip in strips.items():
                        data[page * PAGE_BYTES : page * PAGE_BYTES + len(strip)] = strip
                    assert len(data) == self.segment_bytes
                    out[f"{name}/segments/{segment_name(segment)}"] = bytes(data)
        return out

    def image(self) -> Image:
        segments = empty_segments(len(self.segments))
        for row, ((directory, segment), (head, _)) in zip(
            segments, sorted(self.segments.items()), strict=True
        ):
            row["directory"], row["segment"] = directory, segment
            row["plane_class"], row["epoch"] = head.plane_class, head.epoch
            row["state"] = self.states[directory, segment]
        seal_segments(segments)
        meta = pack_meta(Meta(MARK, tuple(self.uuids.values()), 20_000, 123_456))
        records: list[Record] = [("meta", META_KEY, meta)]
        records += [("keyspaces", digest, data) for digest, data in sorted(self.keyspaces.items())]
        for database, rows, size in (
            ("segments", segments, SEGMENT_KEY_BYTES),
            ("rows", np.concatenate(self.rows) if self.rows else empty_rows(0), KEY_BYTES),
        ):
            whole = sorted(row.tobytes() for row in rows)
            records += [(database, each[:size], each[size:]) for each in whole]
        return Image(
            self.covers, tuple(self.uuids), self.files(), records, self.classes, self.values
        )


def _chain(keyspace: Keyspace, count: int, first: int) -> list[bytes]:
    tokens = range(first, first + count * keyspace.chunk_tokens)
    joined = chain_digests(list(tokens), keyspace.chunk_tokens)
    return [joined[at : at + DIGEST_BYTES] for at in range(0, len(joined), DIGEST_BYTES)]


_ATTENTION = BlockShape(
    (KvGroup(1, (TensorShape(Role.K, 2, 8, Dtype.BF16), TensorShape(Role.V, 2, 4, Dtype.BF16))),)
)
_HYBRID = BlockShape(
    (
        KvGroup(2, (TensorShape(Role.LATENT, 1, 6, Dtype.FP8_E4M3),)),
        KvGroup(1, (TensorShape(Role.K, 4, 6, Dtype.FP16),)),
    )
)
_PLAIN = Keyspace("tiny", "r1", _ATTENTION, chunk_tokens=8)
_OTHER = Keyspace("größer", "r2", _HYBRID, "tok", adapter="a/b", chunk_tokens=4)


def plain() -> Draft:
    draft = Draft("one directory, a chain of three chunks", {"a": bytes(range(1, 17))}, 4)
    for c in PlaneClass:
        draft.segment((0, c + 1), 1, c, SegmentState.OPEN)
    chain = _chain(_PLAIN, 3, 100)
    for at in range(3):
        places = [(0, c + 1, at + 1) for c in PlaneClass]
        draft.chunk(_PLAIN, Lane(), chain[: at + 1], 10 + at, places)
    return draft


def drives() -> Draft:
    uuids = {"a": bytes(range(1, 17)), "b": bytes(range(101, 117))}
    draft = Draft(
        "two directories, two keyspaces, shards and a part, chunks without exact and without "
        "residual, a segment with holes that is full, one that is free, epochs",
        uuids, 5,
    )  # fmt: skip
    draft.segment((0, 1), 1, PlaneClass.ANCHOR, SegmentState.FULL)
    draft.segment((1, 1), 7, PlaneClass.ANCHOR, SegmentState.OPEN)
    draft.segment((1, 12), 2, PlaneClass.RESIDUAL, SegmentState.OPEN)
    draft.segment((0, 99_999_999), 1, PlaneClass.EXACT, SegmentState.OPEN)
    draft.segment((1, 3), 3, PlaneClass.EXACT, SegmentState.FREE)
    chain = _chain(_OTHER, 2, 7)
    for index in range(2):
        lane = Lane(1, Shard(Scheme.HEADS, index, 2), Part(b"profile!", 3))
        places = [(0, 1, 1 + 3 * index), (1, 12, 1 + index), (0, 99_999_999, 1 + index)]
        draft.chunk(_OTHER, lane, chain[:1], 20 + index, places)
        draft.chunk(_OTHER, lane, chain, 30 + index, [(1, 1, 1 + index), (1, 12, 3 + index)])
    chain = _chain(_PLAIN, 2, 5)
    draft.chunk(_PLAIN, Lane(), chain[:1], 40, [(1, 1, 3)])
    draft.chunk(_PLAIN, Lane(), chain, 41, [(1, 1, 4)])
    latent = _chain(_OTHER, 1, 900)
    draft.chunk(_OTHER, Lane(), latent, 42, [(0, 1, 2)])
    return draft


def new() -> Image:
    made = Draft("a directory that was just made", {"a": bytes(range(1, 17))}, 2)
    return replace(made.image(), records=None)


def begun() -> Image:
    made = Draft("a catalog that was just made", {"a": bytes(range(1, 17))}, 2)
    return replace(made.image(), records=[("meta", META_KEY, pack_meta(Meta()))])


def crashed() -> Image:
    """What is left by crashes at several steps, and harms nobody."""
    made = drives().image()
    made.covers = "what crashes leave: a newer head of a free segment, a torn canary, two files"
    head = SegmentHead(bytes(range(101, 117)), 3, 4, PlaneClass.ANCHOR, 5 * PAGE_BYTES)
    path = "b/segments/00000003"
    made.files[path] = pack_segment_head(head) + made.files[path][PAGE_BYTES:]
    made.files["a/segments/00000077"] = bytes(5 * PAGE_BYTES)
    made.files["a/superblock.new"] = b"half"
    made.files["b/canary"] = made.files["b/canary"][:100] + bytes([1] * 412) + bytes(3584)
    return made


ACCEPTED = {
    "plain": lambda: plain().image(), "drives": lambda: drives().image(), "new": new,
    "begun": begun, "crashed": crashed,
}  # fmt: skip
