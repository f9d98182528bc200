"""Byte delivery over the message stream: order, credit, pace, and how it ends."""

import time

import numpy as np
import pytest

from kvd.limits import KIB, MIB, Limits
from kvd.v1 import kvd_pb2 as pb
from kvd.wire import FRAME_HEAD, PIECE_HEAD, FrameKind
from tests.e2e.process import running
from tests.e2e.rawclient import RawClient, Refused, chain_of, keyspace_message, small_keyspace
from tests.e2e.strips import end_of_cells, fetch_request, lookup, put, register

LAYERS = 8
CELLS = 2 * LAYERS
CELL_BYTES = 6000  # So that a layer is 12 KB, and a band of three layers makes a piece.
CHUNKS = 7
PLENTY = pb.Credit(bytes=1 << 40).SerializeToString()
HEAD_BYTES = FRAME_HEAD.size + PIECE_HEAD.size


@pytest.fixture(scope="module")
def daemon(tmp_path_factory):
    with running(tmp_path_factory.mktemp("d")) as daemon:
        yield daemon


@pytest.fixture(scope="module")
def stored(daemon):
    client = RawClient(daemon.tenant)
    keyspace = register(client, keyspace_message(small_keyspace("delivery", LAYERS)))
    yield put(client, keyspace, chain_of(CHUNKS), CELLS, CELL_BYTES)
    client.close()


@pytest.fixture
def client(daemon, stored):
    client = RawClient(daemon.tenant)
    assert register(client, keyspace_message(small_keyspace("delivery", LAYERS))) == stored.keyspace
    yield client
    client.close()


def start(client: RawClient, stored, **more) -> tuple[int, pb.Promise]:
    request = fetch_request(stored, delivery=pb.DELIVERY_BYTES, **more)
    number = client.start(FrameKind.FETCH, request)
    return number, client.answer(number, FrameKind.FETCH)


def credit(client: RawClient, number: int, size: int) -> None:
    client.stream.send(FrameKind.CREDIT, number, pb.Credit(bytes=size).SerializeToString())


def collect(client: RawClient, number: int) -> tuple[list[tuple], pb.FetchDone]:
    """Return [(class, chunk, offset, data)] in the order of arrival, and the final answer."""
    pieces = []
    while True:
        got = client.answer(number, FrameKind.FETCH)
        if isinstance(got, pb.FetchDone):
            return pieces, got
        (plane_class, lane, pad, chunk, offset), data = got
        assert (lane, pad) == (0, 0)
        pieces.append((plane_class, chunk, offset, data))


def assert_complete(pieces, stored) -> None:
    """Every byte up to the last cell arrived, right and once; nothing behind it."""
    for (chunk, c), strip in stored.strips.items():
        mine = sorted((o, d) for k, n, o, d in pieces if (n, k) == (chunk, c))
        at = 0
        for offset, data in mine:
            # Cells end on any byte and begin on multiples of eight: only such a gap is left out.
            assert 0 <= offset - at < 8, (chunk, c, at, offset)
            assert data == strip[offset : offset + len(data)].tobytes(), (chunk, c, offset)
            at = offset + len(data)
        assert at == end_of_cells(strip, CELLS), (chunk, c)


def test_pieces_come_by_class_then_band_then_chunk(client, stored):
    number, promise = start(client, stored)
    assert np.frombuffer(promise.counts, "<u4").tolist() == [CHUNKS] * 3
    client.stream.send(FrameKind.CREDIT, number, PLENTY)
    pieces, done = collect(client, number)
    assert_complete(pieces, stored)
    assert done.delivered_bytes == sum(len(data) for *_, data in pieces)
    order = [(c, offset, chunk) for c, chunk, offset, _ in pieces]
    assert order == sorted(order)
    assert all(len(data) <= Limits().piece_bytes_max for *_, data in pieces)
    bands = len(pieces) // (3 * CHUNKS)
    assert bands == 3 and len(pieces) == 3 * CHUNKS * bands
    for c in range(3):
        firsts = [p for p in pieces if p[0] == c][:CHUNKS]
        assert [(chunk, offset) for _, chunk, offset, _ in firsts] == [
            (chunk, 0) for chunk in range(CHUNKS)
        ]
        assert all(len(data) >= 32 * KIB for *_, data in firsts)


def test_only_the_layers_asked_for_come_behind_the_table(client, stored):
    number, _ = start(client, stored, layer_begin=5, layer_end=6)
    client.stream.send(FrameKind.CREDIT, number, PLENTY)
    pieces, _ = collect(client, number)
    assert len(pieces) == 2 * 3 * CHUNKS
    strip = stored.strips[0, 0]
    table, band = (p for p in pieces if p[:2] == (0, 0))
    assert (table[2], len(table[3])) == (0, 16 * CELLS)
    entries = strip[: 16 * CELLS].view("<u4").reshape(-1, 4)
    assert band[2] == entries[10, 0]
    assert band[2] + len(band[3]) == entries[11, 0] + entries[11, 1]


def test_fewer_classes_are_fewer_pieces(client, stored):
    request = fetch_request(stored, delivery=pb.DELIVERY_BYTES)
    request.class_count = 1
    number = client.start(FrameKind.FETCH, request)
    promise = client.answer(number, FrameKind.FETCH)
    assert np.frombuffer(promise.counts, "<u4").tolist() == [CHUNKS, 0, 0]
    client.stream.send(FrameKind.CREDIT, number, PLENTY)
    pieces, _ = collect(client, number)
    assert {c for c, *_ in pieces} == {0}


def test_nothing_comes_without_credit_and_one_piece_passes_it(client, stored):
    number, _ = start(client, stored)
    lookup(client, stored)  # An answer overtakes the delivery that waits.
    credit(client, number, 1)
    (_, data) = client.answer(number, FrameKind.FETCH)
    assert len(data) > 1
    lookup(client, stored)
    credit(client, number, len(data) - 1)  # Paid back, but for a byte: still nothing.
    lookup(client, stored)
    credit(client, number, 1)
    client.answer(number, FrameKind.FETCH)
    client.stream.send(FrameKind.CANCEL, number, b"")
    with pytest.raises(Refused) as refused:
        client.answer(number, FrameKind.FETCH)
    assert refused.value.kind == pb.LATE


def test_credit_of_another_or_an_answered_request_changes_nothing(client, stored):
    credit(client, 4000, 1 << 40)
    number, _ = start(client, stored)
    client.stream.send(FrameKind.CREDIT, number, PLENTY)
    collect(client, number)
    credit(client, number, 1 << 63)
    client.stream.send(FrameKind.CANCEL, number, b"")
    assert lookup(client, stored)[0] == [CHUNKS] * 3


def test_two_deliveries_of_one_session_both_end(client, stored):
    first, _ = start(client, stored)
    second, _ = start(client, stored)
    for number in (first, second):
        client.stream.send(FrameKind.CREDIT, number, PLENTY)
    ended, delivered_bytes = set(), {first: 0, second: 0}
    while ended != {first, second}:
        kind, number, body = client.stream.receive()
        if kind == FrameKind.PIECE:
            delivered_bytes[number] += len(body) - PIECE_HEAD.size
        else:
            assert kind == FrameKind.REPLY
            ended.add(number)
    assert len(set(delivered_bytes.values())) == 1


def test_a_rate_bounds_what_has_come_at_any_moment(client, stored):
    rate_bits = 40_000_000
    began_ns = time.monotonic_ns()
    number, _ = start(client, stored, rate_bits=rate_bits)
    client.stream.send(FrameKind.CREDIT, number, PLENTY)
    seen_bytes, pieces = 0, 0
    while True:
        got = client.answer(number, FrameKind.FETCH)
        if isinstance(got, pb.FetchDone):
            break
        seen_bytes, pieces = seen_bytes + len(got[1]) + HEAD_BYTES, pieces + 1
        elapsed_ns = time.monotonic_ns() - began_ns
        # However the machine stalls, a link of this speed carries no more.
        assert seen_bytes * 8 <= rate_bits * elapsed_ns / 1e9
    assert pieces == 9 * CHUNKS


def test_a_reader_that_stops_bounds_what_the_daemon_holds(tmp_path_factory):
    """The socket's buffer, the bound on unsent bytes and one piece: not the 40 MB promised."""
    with running(tmp_path_factory.mktemp("d")) as daemon:
        client = RawClient(daemon.tenant)
        keyspace = register(client, keyspace_message(small_keyspace("big", LAYERS)))
        stored = put(client, keyspace, chain_of(20), CELLS, 40_000)
        before = resident_bytes(daemon)
        numbers = [start(client, stored)[0] for _ in range(3)]
        for number in numbers:
            client.stream.send(FrameKind.CREDIT, number, PLENTY)
        other = RawClient(daemon.tenant)
        register(other, keyspace_message(small_keyspace("big", LAYERS)))
        for _ in range(50):
            assert lookup(other, stored)[0] == [20, 20, 20]
        assert resident_bytes(daemon) - before < 12 * MIB
        # And it goes on where it stopped.
        ended = 0
        while ended < len(numbers):
            ended += client.stream.receive()[0] == FrameKind.REPLY


def resident_bytes(daemon) -> int:
    """Return the private memory of the daemon; slabs, being shared, do not count."""
    with open(f"/proc/{daemon.process.pid}/status") as status:
        lines = dict(line.split(":", 1) for line in status)
    return int(lines["RssAnon"].split()[0]) * KIB


def test_a_deadline_ends_a_delivery_nobody_takes(client, stored):
    number, promise = start(client, stored, deadline_ms=1)
    with pytest.raises(Refused) as refused:
        client.answer(number, FrameKind.FETCH)
    assert refused.value.kind == pb.LATE
    client.call(FrameKind.RELEASE, pb.ReleaseRequest(lease=promise.lease))


def test_a_session_that_ends_in_a_delivery_leaves_the_daemon_well(daemon, client, stored):
    leaver = RawClient(daemon.tenant)
    register(leaver, keyspace_message(small_keyspace("delivery", LAYERS)))
    number, _ = start(leaver, stored)
    leaver.stream.send(FrameKind.CREDIT, number, PLENTY)
    leaver.stream.receive()
    leaver.close()
    number, _ = start(client, stored)
    client.stream.send(FrameKind.CREDIT, number, PLENTY)
    assert_complete(collect(client, number)[0], stored)


def test_a_strip_without_a_table_ends_the_delivery_as_corrupt(daemon):
    """Its writer still has the slab, and spoils what it sealed."""
    import mmap

    client = RawClient(daemon.tenant)
    keyspace = register(client, keyspace_message(small_keyspace("spoilt", LAYERS)))
    stored = put(client, keyspace, chain_of(2), CELLS, CELL_BYTES)
    number, promise = start(client, stored)
    lane = promise.lanes[0]
    slab = int(np.frombuffer(lane.slabs, "<u4")[3])
    offset = int(np.frombuffer(lane.offsets, "<u8")[3])
    size, descriptor, _ = client.channel.slab(slab)
    with mmap.mmap(descriptor, size) as slab_bytes:
        slab_bytes[offset : offset + 16] = bytes([255]) * 16
    client.stream.send(FrameKind.CREDIT, number, PLENTY)
    seen = set()
    with pytest.raises(Refused) as refused:
        while True:
            (plane_class, _, _, chunk, _), _ = client.answer(number, FrameKind.FETCH)
            seen.add((plane_class, chunk))
    assert refused.value.kind == pb.CORRUPT
    assert "residual strip of chunk 1" in refused.value.message
    assert seen == {(0, 0), (0, 1), (1, 0)}
    client.close()
