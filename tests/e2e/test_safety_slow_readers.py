"""Readers that are slower than their lease, by every way of reading: right bytes or none.

Meanwhile memory is filled again and again, so what they were promised is something else by then.
"""

import asyncio
import itertools
import mmap
import threading
from collections.abc import Callable
from dataclasses import replace

import grpc
import numpy as np
import pytest

from kvd.client import EXACT, AsyncClient, Client, Delivery, Fetch, Reason
from kvd.clock import NS_PER_MS
from kvd.limits import MIB, Limits
from kvd.v1 import kvd_pb2 as pb
from kvd.v1.kvd_pb2_grpc import KvdStub
from kvd.wire import CONTROL_PAGE, FrameKind
from tests.e2e import client_story as story
from tests.e2e.process import DEADLINE_S, in_process
from tests.e2e.rawclient import RawClient, Refused, chain_of, keyspace_message, small_keyspace
from tests.e2e.ssd_node import until
from tests.e2e.strips import Stored, fetch_request, put, read_mapped, register

HASTY = replace(
    Limits(),
    lease_ttl_ns=200 * NS_PER_MS,
    quarantine_ns=50 * NS_PER_MS,
    tick_ns=10 * NS_PER_MS,
    slab_bytes=1 * MIB,
)
MEMORY = 2 * MIB  # A dozen prefixes.
FRESH = itertools.count(100)  # Numbers of chains that nobody has put.


@pytest.fixture
def tenant(short_directory):
    with in_process(short_directory, HASTY, MEMORY) as directory:
        yield directory


@pytest.fixture
def writer(tenant):
    with story.connected(tenant) as client:
        story.store(client)
        yield client


@pytest.fixture
def client(tenant, writer):
    with story.connected(tenant) as client:
        yield client


@pytest.fixture
def filler(writer):
    """Return what fills memory until the story's chunks are gone; who asks for them heats them."""
    space = writer.keyspace(story.KEYSPACE)
    numbers = itertools.count(1)

    def gone() -> bool:
        for number in itertools.islice(numbers, 12):
            chain = space.chain(np.arange(story.TOKENS) + 1000 * number)
            space.put(chain, story.tensors(9))
            for _ in range(4):  # So that it is worth more than what is only held.
                space.fetch(chain).release()
        return space.lookup(story.chain_of(writer)).counts[2] == 0

    return lambda: until(gone, "the chunks are dropped")


def is_right(good: int, targets) -> bool:
    """Compare what is called good."""
    end = good * story.CHUNK_TOKENS
    return all(
        np.array_equal(a[:, :end], b[:, :end])
        for ours, theirs in zip(targets, story.tensors(), strict=True)
        for a, b in zip(ours, theirs, strict=True)
    )


Open = Callable[[Client], Fetch]


def _mapped(client: Client) -> Fetch:
    return client.keyspace(story.KEYSPACE).fetch(story.chain_of(client))


def _by_bytes(client: Client) -> Fetch:
    fetch = client.keyspace(story.KEYSPACE).fetch(story.chain_of(client), delivery=Delivery.BYTES)
    list(fetch.arrivals())
    return fetch


def _by_slow_bytes(client: Client) -> Fetch:
    """So slow that the lease's time passes on the way, were it not for progress."""
    rate = 8 * 300_000
    return client.keyspace(story.KEYSPACE).fetch(
        story.chain_of(client), delivery=Delivery.BYTES, rate_bits=rate
    )


def _behind_a_lookup(client: Client) -> Fetch:
    space, chain = client.keyspace(story.KEYSPACE), story.chain_of(client)
    return space.fetch(chain, lease=space.lookup(chain, lease=True).lease)


def _behind_a_prefetch(client: Client) -> Fetch:
    space, chain = client.keyspace(story.KEYSPACE), story.chain_of(client)
    assert space.prefetch(chain).counts == (story.CHUNKS,) * 3
    return space.fetch(chain)


OPENS = (_mapped, _by_bytes, _by_slow_bytes, _behind_a_lookup, _behind_a_prefetch)


@pytest.mark.parametrize("opened", OPENS, ids=lambda opened: opened.__name__)
def test_a_slow_reader_reads_right_bytes_or_none(client, filler, opened: Open):
    fetch = opened(client)
    assert fetch.counts == (story.CHUNKS,) * 3
    filler()
    list(fetch.arrivals())
    for _ in range(2):
        targets = story.blanks()
        good = fetch.decode(story.ALL, EXACT, targets)
        assert is_right(good, targets)
        verified = fetch.verify(3)
        if opened in (_by_bytes, _by_slow_bytes):
            assert good == verified == story.CHUNKS, "they are here"
        else:
            assert good == verified == 0, "the lease is lost"
    fetch.release()
    assert client.status().counters.checksum_failures == 0


@pytest.mark.parametrize("delivery", list(Delivery))
def test_a_lease_lost_before_its_fetch_is_no_lease_and_no_lie(client, filler, delivery):
    """Looked up, then slept: the fetch finds what is there then, or says why not."""
    space, chain = client.keyspace(story.KEYSPACE), story.chain_of(client)
    lease = space.lookup(chain, lease=True).lease
    assert lease
    filler()
    with space.fetch(chain, lease=lease, delivery=delivery) as fetch:
        list(fetch.arrivals())
        targets = story.blanks()
        good = fetch.decode(story.ALL, EXACT, targets) if fetch.counts[2] else 0
        assert is_right(good, targets)
        assert fetch.reason in (Reason.LOST, Reason.NOT_STORED, Reason.NONE)
        assert good == 0 or fetch.reason == Reason.NONE
    story.store(client)
    assert story.read_all(client)


@pytest.mark.parametrize("step", ("_trusted", "_check_block", "decode"))
@pytest.mark.parametrize("harm", ("filled", "cleared"))
def test_what_goes_between_two_steps_of_a_read_is_not_called_good(
    client, writer, filler, step, harm
):
    """Behind the look at tables, at cells, at values: each time the memory is another's then."""
    with _mapped(client) as fetch:
        strips, gone = fetch.hold.granted.strips, []
        real = getattr(strips, step)

        def slow(*arguments):
            found = real(*arguments)
            if not gone:
                gone.append(step)
                if harm == "cleared":
                    assert writer.keyspace(story.KEYSPACE).clear().held == story.CHUNKS
                filler()
                until(lambda: client.status().counters.leases_lost == 1, "the lease is lost")
            return found

        setattr(strips, step, slow)
        assert fetch.decode(story.ALL, EXACT, story.blanks()) == 0 and gone == [step]
    assert client.status().counters.checksum_failures == 0


class Asker(threading.Thread):
    """Looks up with a lease, sleeps, fetches: what was found must come, or there is a reason."""

    def __init__(self, tenant, seed: int) -> None:
        super().__init__()
        self.tenant, self.rng = tenant, np.random.default_rng(seed)
        self.kept = self.short = 0
        self.failure = ""

    def run(self) -> None:
        with story.connected(self.tenant) as client:
            space = client.keyspace(story.KEYSPACE)
            for _ in range(25):
                number = int(self.rng.integers(16))
                chain = space.chain(np.arange(story.TOKENS) + 1000 * number)
                self.ask(space, chain, story.tensors(number))

    def ask(self, space, chain: bytes, ours) -> None:
        found = space.lookup(chain, lease=True)
        threading.Event().wait(float(self.rng.random()) * 0.05)
        delivery = Delivery(int(self.rng.integers(2)))
        with space.fetch(chain, delivery=delivery, lease=found.lease) as fetch:
            list(fetch.arrivals())
            targets = story.blanks()
            good = fetch.decode(story.ALL, EXACT, targets) if fetch.counts[2] else 0
            end = good * story.CHUNK_TOKENS
            for row, wanted in zip(targets, ours, strict=True):
                for target, tensor in zip(row, wanted, strict=True):
                    if not np.array_equal(target[:, :end], tensor[:, :end]):
                        self.failure = f"{good} chunks called good are not"
            if good >= found.counts[2]:
                self.kept += 1
            elif fetch.reason != Reason.NONE or fetch.error is not None:
                self.short += 1
            else:
                self.failure = f"{good} of {found.counts[2]} came, and nobody says why"
        space.put(chain, ours)


def test_what_a_lookup_promised_comes_or_there_is_a_reason(tenant):
    """Many ask for more than memory holds, and each sleeps between its question and its read."""
    askers = [Asker(tenant, seed) for seed in range(6)]
    for asker in askers:
        asker.start()
    for asker in askers:
        asker.join(2 * DEADLINE_S)
        assert not asker.is_alive() and not asker.failure, asker.failure
    assert sum(asker.kept for asker in askers) > 25


def test_coroutines_are_no_quicker(tenant, client, filler):
    async def main() -> int:
        other = AsyncClient(tenant, "async", DEADLINE_S)
        assert await other.wait_connected(DEADLINE_S)
        fetch = await other.keyspace(story.KEYSPACE).fetch(story.chain_of(client))
        assert fetch.counts == (story.CHUNKS,) * 3
        await asyncio.to_thread(filler)
        targets = story.blanks()
        good = await fetch.decode(story.ALL, EXACT, targets)
        assert is_right(good, targets)
        await other.close()
        return good

    assert asyncio.run(main()) == 0


def test_a_stream_of_grpc_that_is_read_slowly_brings_right_bytes_or_an_error(tenant):
    raw = RawClient(tenant)
    keyspace = register(raw, keyspace_message(small_keyspace("grpc")))
    stored = put(raw, keyspace, chain_of(4), 4, 20_000)
    metadata = (("authorization", f"Bearer {raw.welcome.token}"),)
    request = fetch_request(stored, delivery=pb.DELIVERY_BYTES)
    seen = []
    with grpc.insecure_channel(f"unix:{tenant / 'grpc.sock'}") as channel:
        stream = KvdStub(channel).Fetch(request, metadata=metadata, timeout=DEADLINE_S)
        try:
            for reply in stream:
                if not seen:
                    fill_raw(raw)
                seen.append(reply)
        except grpc.RpcError as error:
            assert error.code() in (grpc.StatusCode.ABORTED, grpc.StatusCode.DEADLINE_EXCEEDED)
    pieces = [reply.piece for reply in seen if reply.HasField("piece")]
    for piece in pieces:
        strip = stored.strips[piece.chunk, piece.plane_class]
        end = piece.offset + len(piece.data)
        assert piece.data == strip[piece.offset : end].tobytes()
    assert pieces
    raw.close()


def fill_raw(client: RawClient, rounds: int = 30) -> None:
    """Fill memory several times over."""
    keyspace = register(client, keyspace_message(small_keyspace("filler")))
    for number in itertools.islice(FRESH, rounds):
        put(client, keyspace, chain_of(2, 100 * number), 4, 20_000)


def test_a_raw_reader_is_told_before_its_bytes_change(tenant):
    """By its control page: while that stands, what it maps is what it was promised."""
    raw, reader = RawClient(tenant), RawClient(tenant)
    keyspace = register(raw, keyspace_message(small_keyspace("raw")))
    stored = put(raw, keyspace, chain_of(3), 4, 9_000)
    assert register(reader, keyspace_message(small_keyspace("raw"))) == keyspace
    promise = read_mapped(reader, stored)
    before = CONTROL_PAGE.unpack_from(reader.page)[2]
    places = list(_places(reader, stored, promise))
    moved = False
    for _ in range(200):
        fill_raw(raw, 2)
        same = all(memory[begin:end] == strip for memory, begin, end, strip in places)
        moved = CONTROL_PAGE.unpack_from(reader.page)[2] != before
        assert same or moved, "bytes changed first"
        if not same:
            break
    assert moved and reader.notice().lease_lost == promise.lease
    with pytest.raises(Refused) as refused:
        reader.call(FrameKind.RENEW, pb.RenewRequest(lease=promise.lease))
    assert refused.value.kind == pb.LOST
    for client in (raw, reader):
        client.close()


def _places(client: RawClient, stored: Stored, promise: pb.Promise):
    """Yield mapping, begin and end of each strip, and what it holds."""
    counts = np.frombuffer(promise.counts, "<u4").tolist()
    names = [(chunk, c) for c in range(3) for chunk in range(counts[c])]
    lane = promise.lanes[0]
    slabs, offsets = np.frombuffer(lane.slabs, "<u4"), np.frombuffer(lane.offsets, "<u8")
    for name, slab, begin in zip(names, slabs.tolist(), offsets.tolist(), strict=True):
        size, descriptor, _ = client.channel.slab(slab)
        strip = stored.strips[name].tobytes()
        memory = mmap.mmap(descriptor, size, prot=mmap.PROT_READ)
        yield memory, begin, begin + len(strip), strip
