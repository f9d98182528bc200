"""The SDK's fetches against a scripted daemon: promises, slabs, pieces, leases, damaged bytes."""

import os
import time

import numpy as np
import pytest

from kvd.client import EXACT, Arrival, Delivery, KvdError, PlaneClass, Reason
from kvd.errors import ErrorKind
from kvd.v1 import kvd_pb2 as pb
from kvd.wire import FrameKind
from tests.unit.client_peer import (
    CHUNK_TOKENS,
    DEADLINE_S,
    LAYERS,
    LEASE,
    SLAB_BYTES,
    Stage,
    Strips,
    open_mapped,
)
from tests.unit.test_client_session import until

ALL = (0, LAYERS)
PIECE_BYTES = 700


def asked(stage: Stage, strips: Strips, **how):
    """Start a fetch; return its future and its request."""
    opening = stage.start(stage.space.fetch, strips.chain, **how)
    stage.peer.take_keyspace()
    number, request = stage.peer.take(FrameKind.FETCH, pb.FetchRequest)
    return opening, number, request


def pieces(strips: Strips):
    """Yield (place, data) of all strips in small pieces: class, then place in the strip, chunk."""
    for plane_class in range(3):
        for offset in range(0, int(strips.sizes[:, plane_class].max()), PIECE_BYTES):
            for chunk in range(strips.count):
                data = strips.strip(plane_class, chunk)[offset : offset + PIECE_BYTES]
                if data:
                    yield (plane_class, chunk, offset), data


def open_bytes(stage: Stage, strips: Strips, **how):
    """Script byte delivery up to its promise; return fetch and request number."""
    opening, number, request = asked(stage, strips, delivery=Delivery.BYTES, **how)
    assert request.delivery == pb.DELIVERY_BYTES
    stage.peer.promise(number, strips.promise())
    credited, credit = stage.peer.take(FrameKind.CREDIT, pb.Credit)
    assert credited == number and credit.bytes > 0
    return opening.result(DEADLINE_S), number


def decoded(fetch, strips: Strips, planes: int = EXACT):
    """Decode everything; return how many chunks are good, and the targets."""
    targets = strips.targets()
    return fetch.decode(ALL, planes, targets), targets


# ---- mapped ----


def test_mapped_fetch_reads_in_place(stage, strips):
    fetch = open_mapped(stage, strips)
    assert fetch.counts == (3, 3, 3) and fetch.reason == Reason.NONE
    assert list(fetch.arrivals()) == [Arrival(PlaneClass(c), 0, LAYERS) for c in range(3)]
    good, targets = decoded(fetch, strips)
    assert good == 3 and strips.equal(targets)
    fetch.release()
    _, release = stage.peer.take(FrameKind.RELEASE, pb.ReleaseRequest)
    assert release.lease == LEASE and release.corrupt == b""
    assert decoded(fetch, strips)[0] == 0


def test_a_promise_waits_for_the_slab_it_names(stage, strips):
    opening, number, _ = asked(stage, strips)
    stage.peer.promise(number, strips.promise())
    stage.peer.reply(number, pb.FetchDone())
    looking = stage.start(stage.space.lookup, strips.chain)
    looked, _ = stage.peer.take(FrameKind.LOOKUP, pb.LookupRequest)
    stage.peer.reply(looked, pb.LookupReply(counts=bytes(12)))
    looking.result(DEADLINE_S)  # So the promise was taken in before.
    assert not opening.done()
    stage.peer.tell(*strips.given())
    assert decoded(opening.result(DEADLINE_S), strips)[0] == 3


def test_a_slab_that_does_not_come_is_a_miss_by_the_deadline(stage, strips):
    opening, number, _ = asked(stage, strips, deadline_s=0.2)
    stage.peer.promise(number, strips.promise())
    stage.peer.reply(number, pb.FetchDone())
    fetch = opening.result(DEADLINE_S)
    assert fetch.counts == (0, 0, 0) and fetch.reason == Reason.LATE
    assert stage.peer.take(FrameKind.RELEASE, pb.ReleaseRequest)[1].lease == LEASE


def test_a_slab_without_its_descriptor_is_a_miss_and_says_so(stage, strips):
    opening, number, _ = asked(stage, strips)
    stage.peer.tell(strips.given()[0])
    stage.peer.promise(number, strips.promise())
    fetch = opening.result(DEADLINE_S)
    assert fetch.reason == Reason.UNAVAILABLE
    assert "slab 1" in stage.client.status().slab_failure


def test_memory_that_could_shrink_is_not_mapped(stage, strips):
    opening, number, _ = asked(stage, strips)
    loose = os.memfd_create("loose", os.MFD_ALLOW_SEALING)
    os.ftruncate(loose, SLAB_BYTES)
    stage.peer.tell(strips.given()[0], loose)
    os.close(loose)
    stage.peer.promise(number, strips.promise())
    assert opening.result(DEADLINE_S).reason == Reason.UNAVAILABLE


def _grown(promise: pb.Promise) -> None:
    promise.counts = np.array([2, 3, 3], "<u4").tobytes()


def _odd_size(promise: pb.Promise) -> None:
    promise.lanes[0].sizes = np.full(9, 4097, "<u4").tobytes()


def _outside(promise: pb.Promise) -> None:
    promise.lanes[0].offsets = np.full(9, SLAB_BYTES, "<u8").tobytes()


def _short_column(promise: pb.Promise) -> None:
    promise.lanes[0].roots = promise.lanes[0].roots[:-1]


def _no_lease(promise: pb.Promise) -> None:
    promise.lease = 0


def _beyond_the_chain(promise: pb.Promise) -> None:
    promise.counts = np.array([4, 4, 4], "<u4").tobytes()


@pytest.mark.parametrize(
    "damage", [_grown, _odd_size, _outside, _short_column, _no_lease, _beyond_the_chain]
)
def test_a_promise_that_cannot_be_meant_is_a_miss(stage, strips, damage):
    opening, number, _ = asked(stage, strips)
    promise = strips.promise()
    damage(promise)
    stage.peer.tell(*strips.given())
    stage.peer.promise(number, promise)
    fetch = opening.result(DEADLINE_S)
    assert fetch.counts == (0, 0, 0)
    assert fetch.reason in (Reason.INCOMPATIBLE, Reason.LOST)


def test_an_unknown_codec_profile_is_a_miss(stage, strips):
    opening, number, _ = asked(stage, strips)
    promise = strips.promise()
    promise.lanes[0].profiles = np.full(3, 999, "<u8").tobytes()
    stage.peer.promise(number, promise)
    assert opening.result(DEADLINE_S).reason == Reason.INCOMPATIBLE
    assert stage.peer.take(FrameKind.CANCEL, pb.Cancel)[0] == number
    assert stage.peer.take(FrameKind.RELEASE, pb.ReleaseRequest)[1].lease == LEASE


@pytest.mark.parametrize("plane_class", [0, 1, 2])
def test_a_flipped_bit_ends_what_is_good_and_is_reported(stage, strips, plane_class):
    fetch = open_mapped(stage, strips)
    end = int(strips.offsets[1, plane_class] + strips.sizes[1, plane_class])
    place = max(np.flatnonzero(strips.memory[:end]))  # The last byte that is no padding.
    strips.memory[place] ^= 1
    good, _ = decoded(fetch, strips)
    assert good == 1
    assert stage.client.status().counters.checksum_failures == 1
    fetch.release()
    _, release = stage.peer.take(FrameKind.RELEASE, pb.ReleaseRequest)
    assert np.frombuffer(release.corrupt, "<u4").tolist() == [1]


def test_a_strip_of_another_place_is_refused_by_its_root(stage, strips):
    opening, number, _ = asked(stage, strips)
    promise = strips.promise()
    offsets = strips.offsets.T.copy()
    offsets[0, 0], offsets[0, 1] = offsets[0, 1], offsets[0, 0]
    promise.lanes[0].offsets = offsets.astype("<u8").tobytes()
    stage.peer.tell(*strips.given())
    stage.peer.promise(number, promise)
    stage.peer.reply(number, pb.FetchDone())
    assert decoded(opening.result(DEADLINE_S), strips)[0] == 0


# ---- leases ----


def test_a_lost_lease_gives_no_good_byte_and_says_that_its_views_are_dropped(stage, strips):
    fetch = open_mapped(stage, strips)
    stage.peer.send(FrameKind.NOTICE, 0, pb.Notice(lease_lost=LEASE).SerializeToString())
    assert stage.peer.take(FrameKind.RELEASE, pb.ReleaseRequest)[1].lease == LEASE
    assert decoded(fetch, strips)[0] == 0
    until(lambda: stage.client.status().counters.leases_lost == 1, "the loss is counted")


def test_a_revoke_counter_that_moved_is_asked_about(stage, strips):
    fetch = open_mapped(stage, strips)
    stage.peer.page.revoke(1)
    reading = stage.start(decoded, fetch, strips)
    number, renew = stage.peer.take(FrameKind.RENEW, pb.RenewRequest)
    assert renew.lease == LEASE and not reading.done()
    stage.peer.reply(number, pb.RenewReply(lease_ms=60_000))
    good, targets = reading.result(DEADLINE_S)
    assert good == 3 and strips.equal(targets)  # Another lease of the session was meant.
    assert decoded(fetch, strips)[0] == 3


def test_a_revoked_lease_gives_no_good_byte(stage, strips):
    fetch = open_mapped(stage, strips)
    stage.peer.page.revoke(1)
    reading = stage.start(decoded, fetch, strips)
    stage.peer.refuse(stage.peer.take(FrameKind.RENEW, pb.RenewRequest)[0], pb.LOST)
    assert reading.result(DEADLINE_S)[0] == 0
    assert stage.client.status().counters.checksum_failures == 0


def test_a_lease_whose_time_has_passed_unnoticed_is_asked_about(stage, strips):
    begin = time.monotonic()
    fetch = open_mapped(stage, strips, lease_ms=300)
    until(lambda: time.monotonic() - begin > 0.6, "the time has passed")
    reading = stage.start(decoded, fetch, strips)
    number, _ = stage.peer.take(FrameKind.RENEW, pb.RenewRequest)
    stage.peer.refuse(number, pb.LOST)
    assert reading.result(DEADLINE_S)[0] == 0


def test_progress_renews_and_idleness_does_not(stage, strips):
    fetch = open_mapped(stage, strips, lease_ms=600)
    assert decoded(fetch, strips)[0] == 3
    number, renew = stage.peer.take(FrameKind.RENEW, pb.RenewRequest)
    assert renew.lease == LEASE
    stage.peer.reply(number, pb.RenewReply(lease_ms=600))
    # Nothing is read any more: the next thing heard of is its end.
    stage.peer.send(FrameKind.NOTICE, 0, pb.Notice(lease_lost=LEASE).SerializeToString())
    assert stage.peer.receive()[0] == FrameKind.RELEASE


def test_a_dead_daemon_gives_no_good_byte_of_its_slabs(stage, strips):
    fetch = open_mapped(stage, strips)
    stage.peer.hang_up()
    until(lambda: not stage.client.status().connected, "the loss is noticed")
    assert decoded(fetch, strips)[0] == 0
    fetch.release()


def test_a_lookups_lease_is_taken_over_once(stage, strips):
    looking = stage.start(stage.space.lookup, strips.chain, lease=True)
    stage.peer.take_keyspace()
    number, request = stage.peer.take(FrameKind.LOOKUP, pb.LookupRequest)
    assert request.lease
    counts = np.full(3, 3, "<u4").tobytes()
    stage.peer.reply(number, pb.LookupReply(counts=counts, lease=42))
    lease = looking.result(DEADLINE_S).lease
    for expected in (42, 0):
        opening = stage.start(stage.space.fetch, strips.chain, lease=lease)
        number, request = stage.peer.take(FrameKind.FETCH, pb.FetchRequest)
        assert request.lease == expected
        stage.peer.refuse(number, pb.UNAVAILABLE)
        assert opening.result(DEADLINE_S).reason == Reason.UNAVAILABLE
        if expected:  # Given to a fetch that came to nothing, it goes back.
            assert stage.peer.take(FrameKind.RELEASE, pb.ReleaseRequest)[1].lease == expected


# ---- bytes ----


def test_pieces_are_put_together(stage, strips):
    fetch, number = open_bytes(stage, strips)
    for place, data in pieces(strips):
        stage.peer.piece(number, place, data)
    stage.peer.reply(number, pb.FetchDone())
    arrivals = list(fetch.arrivals())
    assert fetch.error is None
    seen = [(a.plane_class, layer) for a in arrivals for layer in range(a.layer_begin, a.layer_end)]
    assert seen == [(c, layer) for c in range(3) for layer in range(LAYERS)]
    good, targets = decoded(fetch, strips)
    assert good == 3 and strips.equal(targets)
    assert fetch.delivered_bytes == int(strips.sizes.sum())


def test_layers_are_good_as_soon_as_they_have_arrived(stage, strips):
    fetch, number = open_bytes(stage, strips)
    targets = strips.targets()
    assert fetch.decode((0, 1), 4, targets[:1]) == 0
    sent = iter(pieces(strips))
    heard: list[Arrival] = []
    fetch.on_arrival(heard.append)
    for _ in range(2 * strips.count):  # The first layers of all anchors, and no residual.
        stage.peer.piece(number, *next(sent))
    until(lambda: heard, "a layer has arrived")
    assert fetch.decode((0, 1), 4, targets[:1]) == 3
    assert fetch.decode(ALL, EXACT, targets) == 0
    assert stage.client.status().counters.checksum_failures == 0
    fetch.release()
    assert stage.peer.take(FrameKind.CANCEL, pb.Cancel)[0] == number


def test_a_daemon_that_dies_ends_the_arrivals_and_what_came_stays_good(stage, strips):
    fetch, number = open_bytes(stage, strips)
    for place, data in pieces(strips):
        if place[0] == 0:
            stage.peer.piece(number, place, data)
    seen = iter(fetch.arrivals())
    while next(seen).layer_end < LAYERS:
        pass
    stage.peer.hang_up()
    assert list(seen) == []
    assert fetch.error is not None and fetch.error.kind == ErrorKind.LOST
    assert fetch.decode(ALL, 4, strips.targets()) == 3
    fetch.release()


def test_the_deadline_ends_the_arrivals(stage, strips):
    fetch, number = open_bytes(stage, strips, deadline_s=0.3)
    assert list(fetch.arrivals()) == []
    assert fetch.error.kind == ErrorKind.LATE
    assert stage.peer.take(FrameKind.CANCEL, pb.Cancel)[0] == number
    assert stage.client.status().connected


def test_an_end_before_everything_is_an_error(stage, strips):
    fetch, number = open_bytes(stage, strips)
    stage.peer.reply(number, pb.FetchDone())
    assert list(fetch.arrivals()) == []
    assert fetch.error.kind == ErrorKind.INCOMPATIBLE


@pytest.mark.parametrize("place", [(0, 3, 0), (3, 0, 0), (0, 0, 1 << 30)])
def test_a_piece_of_nothing_promised_ends_the_session(stage, strips, place):
    fetch, number = open_bytes(stage, strips)
    stage.peer.piece(number, place, b"x")
    assert list(fetch.arrivals()) == []
    assert fetch.error is not None
    until(lambda: not stage.client.status().connected, "the session ended")


def test_damaged_pieces_are_not_good(stage, strips):
    fetch, number = open_bytes(stage, strips)
    for place, data in pieces(strips):
        if place[:2] == (1, 2):
            data = bytes(len(data))
        stage.peer.piece(number, place, data)
    stage.peer.reply(number, pb.FetchDone())
    list(fetch.arrivals())
    targets = strips.targets()
    assert fetch.decode(ALL, 4, targets) == 3
    assert fetch.decode(ALL, 8, targets) == 2
    fetch.release()
    _, release = stage.peer.take(FrameKind.RELEASE, pb.ReleaseRequest)
    assert np.frombuffer(release.corrupt, "<u4").tolist() == [2]


def test_callbacks_hear_what_was_and_what_comes(stage, strips):
    fetch, number = open_bytes(stage, strips)
    heard: list[Arrival] = []
    fetch.on_arrival(heard.append)
    for place, data in pieces(strips):
        stage.peer.piece(number, place, data)
    stage.peer.reply(number, pb.FetchDone())
    arrivals = list(fetch.arrivals())
    until(lambda: len(heard) == len(arrivals), "all is heard")
    late: list[Arrival] = []
    fetch.on_arrival(late.append)
    until(lambda: len(late) == len(arrivals), "all is heard afterwards")
    assert heard == late == arrivals


# ---- the caller's own mistakes ----


@pytest.mark.parametrize(
    "arguments",
    [
        {"layers": (0, LAYERS + 1)},
        {"layers": (1, 1)},
        {"planes": 0},
        {"planes": 9},
        {"chunks": (0, 4)},
        {"chunks": (-1, 2)},
        {"token_begin": 1},
        {"token_begin": -CHUNK_TOKENS},
    ],
)
def test_ranges_that_were_not_promised_are_refused(stage, strips, arguments):
    fetch = open_mapped(stage, strips)
    call = {"layers": ALL, "planes": EXACT, "targets": strips.targets()} | arguments
    with pytest.raises(KvdError) as raised:
        fetch.decode(**call)
    assert raised.value.kind == ErrorKind.INVALID


def test_a_range_of_chunks_goes_to_its_own_tokens(stage, strips):
    fetch = open_mapped(stage, strips)
    targets = strips.targets()
    assert fetch.decode(ALL, EXACT, targets, chunks=(1, 2)) == 1
    middle = slice(CHUNK_TOKENS, 2 * CHUNK_TOKENS)
    for ours, theirs in zip(targets, strips.tensors, strict=True):
        for target, tensor in zip(ours, theirs, strict=True):
            assert np.array_equal(target[:, middle], tensor[:, middle])
            assert not target[:, :CHUNK_TOKENS].any() and not target[:, 2 * CHUNK_TOKENS :].any()


def test_a_callback_that_raises_harms_nothing(stage, strips, caplog):
    fetch, number = open_bytes(stage, strips)

    def broken(arrival: Arrival) -> None:
        raise ValueError(f"no use for {arrival}")

    fetch.on_arrival(broken)
    for place, data in pieces(strips):
        stage.peer.piece(number, place, data)
    stage.peer.reply(number, pb.FetchDone())
    assert list(fetch.arrivals()) and fetch.error is None
    assert fetch.decode(ALL, EXACT, strips.targets()) == 3
    until(lambda: "no use for" in caplog.text, "it is logged")
