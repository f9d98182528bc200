"""Strips whose every byte is a function of its place, put by a raw client and read back."""

import mmap
import time
from dataclasses import dataclass

import numpy as np

from kvd.format.strip import pack_table
from kvd.table import padded, table_bytes
from kvd.v1 import kvd_pb2 as pb
from kvd.wire import FrameKind
from tests.e2e.rawclient import DEADLINE_S, RawClient


def make_strip(cell_count: int, cell_bytes: int, seed: int) -> np.ndarray:
    """Return a padded strip (u8) of equal cells with random contents."""
    begin = padded_cell(table_bytes(cell_count))
    step = padded_cell(cell_bytes)
    offsets = begin + step * np.arange(cell_count)
    strip = np.zeros(padded(int(begin + step * cell_count)), np.uint8)
    lengths = np.full(cell_count, cell_bytes, np.uint32)
    raw = np.zeros(cell_count, bool)
    table = pack_table(offsets.astype(np.uint32), lengths, raw, np.zeros(cell_count, np.uint64))
    strip[: table_bytes(cell_count)] = table.view(np.uint8)
    values = np.random.default_rng(seed).integers(0, 256, (cell_count, cell_bytes), np.uint8)
    for offset, cell in zip(offsets.tolist(), values, strict=True):
        strip[offset : offset + cell_bytes] = cell
    return strip


def padded_cell(size: int) -> int:
    return -(-size // 8) * 8


def end_of_cells(strip: np.ndarray, cell_count: int) -> int:
    table = strip[: table_bytes(cell_count)].view([("o", "<u4"), ("n", "<u4"), ("c", "<u8")])
    return int(table["o"][-1] + table["n"][-1])


@dataclass(frozen=True)
class Stored:
    """What was put: the strips by (chunk, class)."""

    keyspace: int
    chain: bytes
    strips: dict[tuple[int, int], np.ndarray]


def register(client: RawClient, message: pb.RegisterKeyspaceRequest) -> int:
    return client.call(FrameKind.REGISTER_KEYSPACE, message).keyspace


def put(client: RawClient, keyspace: int, chain: bytes, cell_count: int, cell_bytes: int) -> Stored:
    """Reserve, fill and seal a chain of new chunks."""
    count = len(chain) // 32
    strips = {
        (chunk, c): make_strip(cell_count, cell_bytes, 3 * chunk + c)
        for chunk in range(count)
        for c in range(3)
    }
    sizes = np.array([[strips[n, c].size for c in range(3)] for n in range(count)], "<u4")
    request = pb.ReserveRequest(
        keyspace=keyspace, lane=pb.Lane(), chain=chain, sizes=sizes.tobytes()
    )
    reserved = reserve_all(client, request)
    slabs = np.frombuffer(reserved.slabs, "<u4").reshape(-1, 3)
    offsets = np.frombuffer(reserved.offsets, "<u8").reshape(-1, 3)
    maps = {}
    for (chunk, c), strip in strips.items():
        slab, offset = int(slabs[chunk, c]), int(offsets[chunk, c])
        if slab not in maps:
            size, descriptor, writable = client.channel.slab(slab)
            assert writable
            maps[slab] = mmap.mmap(descriptor, size)
        maps[slab][offset : offset + strip.size] = strip.tobytes()
    roots = np.arange(3 * count, dtype="<u8") + 7
    sealed = client.call(
        FrameKind.SEAL,
        pb.SealRequest(
            reservation=reserved.reservation, sizes=sizes.tobytes(), roots=roots.tobytes(),
            profile=1, last=True,
        ),
    )  # fmt: skip
    assert set(sealed.states) == {pb.SEALED}
    return Stored(keyspace, chain, strips)


def reserve_all(client: RawClient, request: pb.ReserveRequest) -> pb.ReserveReply:
    """Ask until all is reserved: slabs may still be growing, or a dead writer not noticed yet."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        reserved = client.call(FrameKind.RESERVE, request)
        if set(reserved.states) == {pb.RESERVED}:
            return reserved
        assert time.monotonic() < deadline, (list(reserved.states), reserved.reason)
        if reserved.reservation:
            client.call(FrameKind.ABORT, pb.AbortRequest(reservation=reserved.reservation))


def lookup(client: RawClient, stored: Stored, lease: bool = False) -> tuple[list[int], int]:
    reply = client.call(
        FrameKind.LOOKUP,
        pb.LookupRequest(
            keyspace=stored.keyspace, lanes=[pb.Lane()], chain=stored.chain, lease=lease
        ),
    )
    return np.frombuffer(reply.counts, "<u4").tolist(), reply.lease


def read_mapped(client: RawClient, stored: Stored) -> pb.Promise:
    """Fetch by mapping and compare every byte promised; return the promise."""
    number = client.start(FrameKind.FETCH, fetch_request(stored))
    promise = client.answer(number, FrameKind.FETCH)
    assert isinstance(client.answer(number, FrameKind.FETCH), pb.FetchDone)
    counts = np.frombuffer(promise.counts, "<u4").tolist()
    places = [(chunk, c) for c in range(3) for chunk in range(counts[c])]
    lane = promise.lanes[0]
    columns = zip(
        places,
        np.frombuffer(lane.slabs, "<u4").tolist(),
        np.frombuffer(lane.offsets, "<u8").tolist(),
        np.frombuffer(lane.sizes, "<u4").tolist(),
        strict=True,
    )
    for place, slab, offset, size in columns:
        total, descriptor, _ = client.channel.slab(slab)
        with mmap.mmap(descriptor, total, prot=mmap.PROT_READ) as seen:
            assert seen[offset : offset + size] == stored.strips[place].tobytes(), place
    return promise


def fetch_request(stored: Stored, **more) -> pb.FetchRequest:
    return pb.FetchRequest(
        keyspace=stored.keyspace, lanes=[pb.Lane()], chain=stored.chain, class_count=3, **more
    )
