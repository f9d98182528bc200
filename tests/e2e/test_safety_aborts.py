"""A request given up at any moment, by a client that knows what it does and by one that does not.

Afterwards nothing of it is held: the books of the daemon are what they were before.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import pytest

from kvd.client import Client, Delivery, Fetch, PlaneClass, Space
from kvd.clock import NS_PER_MS
from kvd.config import ServeConfig, SsdSettings, TenantSettings
from kvd.core import invariants
from kvd.limits import MIB, Limits
from kvd.v1 import kvd_pb2 as pb
from kvd.wire import FRAME_HEAD, FrameKind
from tests.e2e import client_story as story
from tests.e2e.process import DEADLINE_S, Here, served
from tests.e2e.rawclient import RawClient, Refused, chain_of, keyspace_message, small_keyspace
from tests.e2e.ssd_node import until
from tests.e2e.strips import Stored, fetch_request, lookup, put, register, reserve_all

LIMITS = replace(Limits(), slab_bytes=4 * MIB, quarantine_ns=200 * NS_PER_MS)
SLOW = 400_000  # Bits a second: of a delivery that is still under way when it is given up.
# What must be nothing when nobody asks for anything; the rest must be what it was.
NOTHING = (
    "kvd_leases", "kvd_lease_bytes", "kvd_reservations", "kvd_pending_fetches",
    "kvd_postponed_fetches", "kvd_open_deliveries", "kvd_ssd_reading_bytes",
    "kvd_ssd_waiting_seals",
)  # fmt: skip
PASSING = ("filling", "freeing", "quarantined")


@dataclass
class Books:
    """The daemon's own numbers, and every invariant derived again, between two of its events."""

    here: Here

    def read(self) -> dict:
        async def read() -> dict:
            invariants.check(self.here.daemon._state)
            return self.here.daemon.read_metrics()

        return asyncio.run_coroutine_threadsafe(read(), self.here.loop).result(DEADLINE_S)

    def open_things(self) -> dict:
        """Return what is held or under way, without what is nothing."""
        reading = self.read()
        found = {(name, key): n for name in NOTHING for key, n in reading.get(name, {}).items()}
        dram = reading["kvd_dram_bytes"]
        found |= {("dram", key): n for key, n in dram.items() if key[1] in PASSING}
        return {name: number for name, number in found.items() if number}

    def ready_bytes(self) -> int:
        dram = self.read()["kvd_dram_bytes"]
        return sum(number for (_, what), number in dram.items() if what == "ready")

    def settle(self) -> None:
        found: list[dict] = []

        def is_nothing() -> bool:
            found[:] = [self.open_things()]
            return not found[0]

        try:
            until(is_nothing, "nothing is held")
        except AssertionError:
            raise AssertionError(f"is held: {found}") from None


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    directory = tmp_path_factory.mktemp("a")
    config = ServeConfig(
        directory / "r", (TenantSettings("default"),), 32 * MIB, frozenset({0}), LIMITS,
        SsdSettings((directory / "data",), 64 * MIB),
    )  # fmt: skip
    with served(config) as here:
        yield here


@pytest.fixture(scope="module")
def tenant(here):
    return here.directory / "default"


@pytest.fixture(scope="module")
def books(here):
    return Books(here)


# ---- the SDK ----


@pytest.fixture(scope="module")
def space(tenant) -> Iterator[Space]:
    with story.connected(tenant) as client:
        space = client.keyspace(story.KEYSPACE)
        until(lambda: _put(client), "there is memory")
        yield space


def _put(client: Client) -> bool:
    stored = client.keyspace(story.KEYSPACE).put(story.chain_of(client), story.tensors())
    return stored.stored + stored.had == story.CHUNKS


Stage = Callable[[Space, bytes, Delivery], None]


def before_lookup(space: Space, chain: bytes, delivery: Delivery) -> None:
    space.fetch(space.chain(range(9000, 9000 + story.TOKENS)), delivery=delivery).release()


def behind_lookup(space: Space, chain: bytes, delivery: Delivery) -> None:
    found = space.lookup(chain, lease=True)
    space.release(found.lease)


def behind_lookup_never_given_back_but_fetched(space, chain, delivery) -> None:
    space.fetch(chain, delivery=delivery, lease=space.lookup(chain, lease=True).lease).release()


def during_prefetch(space: Space, chain: bytes, delivery: Delivery) -> None:
    space.prefetch(chain)
    space.fetch(chain, delivery=delivery).release()


def before_any_arrival(space: Space, chain: bytes, delivery: Delivery) -> None:
    _begun(space, chain, delivery).release()


def mid_anchor(space: Space, chain: bytes, delivery: Delivery) -> None:
    fetch = _begun(space, chain, delivery)
    if delivery == Delivery.BYTES:
        until(lambda: fetch.delivered_bytes > 0, "some of it is here")
        assert fetch.delivered_bytes < fetch.class_bytes[0]
    fetch.release()


def between_anchor_and_residual(space: Space, chain: bytes, delivery: Delivery) -> None:
    fetch = _begun(space, chain, delivery, rate=30 * SLOW)
    for arrival in fetch.arrivals():
        if arrival.plane_class == PlaneClass.ANCHOR and arrival.layer_end == story.LAYERS:
            break
    fetch.release()


def mid_residual(space: Space, chain: bytes, delivery: Delivery) -> None:
    fetch = _begun(space, chain, delivery, rate=30 * SLOW)
    if delivery == Delivery.BYTES:
        until(lambda: fetch.delivered_bytes > fetch.class_bytes[0], "some residual is here")
    fetch.decode(story.ALL, 8, story.blanks())
    fetch.release()


def twice(space: Space, chain: bytes, delivery: Delivery) -> None:
    fetch = _begun(space, chain, delivery)
    fetch.release()
    fetch.release()


def behind_the_end(space: Space, chain: bytes, delivery: Delivery) -> None:
    fetch = space.fetch(chain, delivery=delivery)
    list(fetch.arrivals())
    assert fetch.verify(3) == story.CHUNKS
    fetch.release()
    assert fetch.verify(3) == 0


def at_its_deadline(space: Space, chain: bytes, delivery: Delivery) -> None:
    rate = SLOW if delivery == Delivery.BYTES else 0
    fetch = space.fetch(chain, delivery=delivery, rate_bits=rate, deadline_s=0.2)
    list(fetch.arrivals())
    fetch.release()


def by_an_exception(space: Space, chain: bytes, delivery: Delivery) -> None:
    with contextlib.suppress(RuntimeError), _begun(space, chain, delivery):
        raise RuntimeError("of the caller's own")


def _begun(space: Space, chain: bytes, delivery: Delivery, rate: int = SLOW) -> Fetch:
    fetch = space.fetch(chain, delivery=delivery, rate_bits=rate if delivery else 0)
    assert fetch.counts == (story.CHUNKS,) * 3, fetch.reason
    return fetch


STAGES = (
    before_lookup, behind_lookup, behind_lookup_never_given_back_but_fetched, during_prefetch,
    before_any_arrival, mid_anchor, between_anchor_and_residual, mid_residual, twice,
    behind_the_end, at_its_deadline, by_an_exception,
)  # fmt: skip


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.__name__)
@pytest.mark.parametrize("delivery", list(Delivery))
def test_a_fetch_given_up_holds_nothing(books, space, stage: Stage, delivery):
    chain = space.chain(range(story.TOKENS))
    books.settle()
    before = books.ready_bytes()
    stage(space, chain, delivery)
    books.settle()
    assert books.ready_bytes() == before
    assert space.lookup(chain).counts == (story.CHUNKS,) * 3


# ---- raw ----


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """Yield a daemon without a disk, whose hand would find that roots are not what they say."""
    directory = tmp_path_factory.mktemp("b")
    config = ServeConfig(
        directory / "r", (TenantSettings("default"),), 16 * MIB, frozenset({0}), LIMITS
    )
    with served(config) as here:
        yield here


@pytest.fixture(scope="module")
def bare_books(bare):
    return Books(bare)


@pytest.fixture(scope="module")
def raw(bare):
    client = RawClient(bare.directory / "default")
    yield client
    client.close()


@pytest.fixture(scope="module")
def stored(raw) -> Stored:
    keyspace = register(raw, keyspace_message(small_keyspace("aborts")))
    return put(raw, keyspace, chain_of(3), 4, 20_000)


def answers(client: RawClient, number: int) -> list[int]:
    """Return the kinds of frames about a request, up to its one final answer (I10)."""
    kinds = []
    while not kinds or kinds[-1] not in (FrameKind.REPLY, FrameKind.ERROR):
        kind, about, _ = client.stream.receive()
        assert about == number or kind == FrameKind.NOTICE
        kinds += [kind] if about == number else []
    return kinds


@pytest.mark.parametrize("pieces", (0, 1, 5, 9), ids="behind {} pieces".format)
@pytest.mark.parametrize("times", (1, 2))
def test_a_raw_delivery_cancelled_is_answered_once(bare_books, raw, stored, pieces, times):
    bare_books.settle()
    before = bare_books.ready_bytes()
    request = fetch_request(stored, delivery=pb.DELIVERY_BYTES)
    number = raw.start(FrameKind.FETCH, request)
    promise = raw.answer(number, FrameKind.FETCH)
    owed = 1  # A piece goes while there is any credit, so that the last one passes it.
    for _ in range(pieces):
        raw.stream.send(FrameKind.CREDIT, number, pb.Credit(bytes=owed).SerializeToString())
        kind, _, body = raw.stream.receive()
        assert kind == FrameKind.PIECE
        owed = len(body) + FRAME_HEAD.size
    for _ in range(times):
        raw.stream.send(FrameKind.CANCEL, number, b"")
    assert answers(raw, number)[-1] == FrameKind.ERROR
    raw.call(FrameKind.RELEASE, pb.ReleaseRequest(lease=promise.lease))
    assert lookup(raw, stored)[0] == [3, 3, 3], "nothing more was said of the request"
    bare_books.settle()
    assert bare_books.ready_bytes() == before


def test_what_was_answered_cannot_be_cancelled(bare_books, raw, stored):
    number = raw.start(FrameKind.FETCH, fetch_request(stored))
    promise = raw.answer(number, FrameKind.FETCH)
    raw.answer(number, FrameKind.FETCH)
    for about in (number, number, 4_000_000_000, 0):
        raw.stream.send(FrameKind.CANCEL, about, b"")
    assert lookup(raw, stored)[0] == [3, 3, 3]
    for refused in (False, True):
        with pytest.raises(Refused) if refused else contextlib.nullcontext():
            raw.call(FrameKind.RELEASE, pb.ReleaseRequest(lease=promise.lease))
    bare_books.settle()


@pytest.mark.parametrize("half", (False, True), ids=("nothing sealed", "half sealed"))
def test_a_put_given_up_leaves_what_was_sealed_and_nothing_else(bare_books, raw, stored, half):
    bare_books.settle()
    before = bare_books.ready_bytes()
    chain = chain_of(2, 4000 + 100 * half)
    sizes = bytes([0, 16, 0, 0] * 6)  # Pages.
    request = pb.ReserveRequest(keyspace=stored.keyspace, lane=pb.Lane(), chain=chain, sizes=sizes)
    reserved = reserve_all(raw, request)
    assert bare_books.open_things()
    if half:
        seal = pb.SealRequest(
            reservation=reserved.reservation, sizes=sizes[:12], roots=bytes(24), profile=1
        )
        assert list(raw.call(FrameKind.SEAL, seal).states) == [pb.SEALED]
    raw.call(FrameKind.ABORT, pb.AbortRequest(reservation=reserved.reservation))
    with pytest.raises(Refused):
        raw.call(FrameKind.ABORT, pb.AbortRequest(reservation=reserved.reservation))
    bare_books.settle()
    assert bare_books.ready_bytes() == before + half * 3 * 4096


@pytest.mark.parametrize("first", ("stream", "channel"))
@pytest.mark.parametrize("delivery", (pb.DELIVERY_MAP, pb.DELIVERY_BYTES), ids=("map", "bytes"))
def test_a_session_that_breaks_owns_nothing(bare_books, bare, stored, first, delivery):
    """Its process lives, so that its places are set aside for a while; then they are free."""
    bare_books.settle()
    before = bare_books.ready_bytes()
    client = RawClient(bare.directory / "default")
    assert register(client, keyspace_message(small_keyspace("aborts"))) == stored.keyspace
    assert lookup(client, stored, lease=True)[1]
    sizes = bytes([0, 16, 0, 0] * 6)
    request = pb.ReserveRequest(
        keyspace=stored.keyspace, lane=pb.Lane(), chain=chain_of(2, 7000), sizes=sizes
    )
    assert reserve_all(client, request).reservation
    number = client.start(FrameKind.FETCH, fetch_request(stored, delivery=delivery))
    client.answer(number, FrameKind.FETCH)
    getattr(client, first).close()
    bare_books.settle()
    getattr(client, "channel" if first == "stream" else "stream").close()
    assert bare_books.ready_bytes() == before
    assert bare_books.read()["kvd_sessions"] == {("default",): 1}
