"""The SDK's puts against a scripted daemon: places, seals, refusals, slabs asked back."""

import mmap
import select
from pathlib import Path

import numpy as np
import pytest

from kvd.arena.memfd import Descriptors, open_slab
from kvd.checksum import strip_root
from kvd.client import Reason
from kvd.format.strip import parse_table
from kvd.identity import chunk_key
from kvd.limits import DIGEST_BYTES
from kvd.table import table_bytes
from kvd.types import Lane, PlaneClass
from kvd.v1 import kvd_pb2 as pb
from kvd.wire import FrameKind
from tests.unit.client_peer import (
    DEADLINE_S,
    DIGEST,
    GRID,
    SLAB_BYTES,
    Stage,
    Strips,
)
from tests.unit.test_client_session import counts_reply, until

COUNT = 4
SLAB, RESERVATION, GENERATION = 3, 8, 21


@pytest.fixture
def strips():
    made = Strips(COUNT)
    yield made
    made.close()


@pytest.fixture
def slab():
    made = open_slab("kvd-put", SLAB_BYTES)
    yield made
    made.close()


def give(stage: Stage, slab: Descriptors, *, writable: bool = True) -> None:
    given = pb.SlabGiven(slab=SLAB, size=SLAB_BYTES, writable=writable)
    stage.peer.tell(pb.ToClient(slab_given=given), slab.writing if writable else slab.reading)


def asked(stage: Stage, strips: Strips, known: int = 0, **how):
    """Start a put and script it up to its Reserve; return future, number, request."""
    putting = stage.start(stage.space.put, strips.chain, strips.tensors, **how)
    stage.peer.take_keyspace()
    number, request = stage.peer.take(FrameKind.LOOKUP, pb.LookupRequest)
    assert request.chain == strips.chain
    stage.peer.reply(number, counts_reply(known, known, known))
    return putting, *stage.peer.take(FrameKind.RESERVE, pb.ReserveRequest)


def reserved(request: pb.ReserveRequest, states=None, **fields) -> pb.ReserveReply:
    """Return an answer that gives places one behind the other."""
    sizes = np.frombuffer(request.sizes, "<u4").astype(np.uint64)
    count = len(sizes) // 3
    states = [pb.RESERVED] * count if states is None else states
    is_open = any(state in (pb.RESERVED, pb.REPLACE) for state in states)
    reply = pb.ReserveReply(
        reservation=RESERVATION if is_open else 0,
        generation=GENERATION,
        states=bytes(states),
        slabs=np.full(3 * count, SLAB, "<u4").tobytes(),
        offsets=(np.cumsum(sizes) - sizes).astype("<u8").tobytes(),
    )
    for name, value in fields.items():
        setattr(reply, name, value)
    return reply


def seals(stage: Stage, verdict=pb.SEALED, durable: bool = False) -> list[pb.SealRequest]:
    """Take seals and answer them, until the last one."""
    taken: list[pb.SealRequest] = []
    while not taken or not taken[-1].last:
        number, request = stage.peer.take(FrameKind.SEAL, pb.SealRequest)
        count = len(request.sizes) // 12
        reply = pb.SealReply(states=bytes([verdict] * count), durable=durable)
        stage.peer.reply(number, reply)
        taken.append(request)
    return taken


def test_strips_lie_where_they_were_reserved_under_their_roots(stage, strips, slab):
    putting, number, request = asked(stage, strips)
    assert request.parent == b"" and request.chain == strips.chain
    give(stage, slab)
    reply = reserved(request)
    stage.peer.reply(number, reply)
    taken = seals(stage)
    stored = putting.result(DEADLINE_S)
    assert (stored.stored, stored.had, stored.refused) == (COUNT, 0, 0)
    assert stored.size_bytes == strips.sizes.sum()
    memory = np.frombuffer(mmap.mmap(slab.writing, SLAB_BYTES), np.uint8)
    offsets = np.frombuffer(reply.offsets, "<u8").reshape(COUNT, 3)
    roots = np.concatenate([np.frombuffer(t.roots, "<u8") for t in taken]).reshape(COUNT, 3)
    assert [t.first for t in taken] == sorted(t.first for t in taken)
    for chunk in range(COUNT):
        chain = strips.chain[chunk * DIGEST_BYTES : (chunk + 1) * DIGEST_BYTES]
        for plane_class in PlaneClass:
            begin, size = int(offsets[chunk, plane_class]), int(strips.sizes[chunk, plane_class])
            strip = memory[begin : begin + size]
            assert parse_table(strip, GRID.cell_count, size) is not None
            head = strip[: table_bytes(GRID.cell_count)].tobytes()
            root = strip_root(chunk_key(DIGEST, chain), Lane(), plane_class, GENERATION, 1, head)
            assert root == roots[chunk, plane_class]


def test_what_is_complete_is_neither_encoded_nor_reserved(stage, strips, slab):
    putting, number, request = asked(stage, strips, known=3)
    assert request.chain == strips.chain[3 * DIGEST_BYTES :]
    assert request.parent == strips.chain[2 * DIGEST_BYTES : 3 * DIGEST_BYTES]
    give(stage, slab)
    stage.peer.reply(number, reserved(request))
    seals(stage)
    stored = putting.result(DEADLINE_S)
    assert (stored.stored, stored.had) == (1, 3)


def test_runs_between_chunks_that_are_had_are_sealed_apart(stage, strips, slab):
    putting, number, request = asked(stage, strips)
    give(stage, slab)
    states = [pb.RESERVED, pb.HAVE, pb.REPLACE, pb.HAVE]
    stage.peer.reply(number, reserved(request, states))
    taken = seals(stage)
    assert [(t.first, len(t.sizes) // 12, t.last) for t in taken] == [(0, 1, False), (2, 1, True)]
    stored = putting.result(DEADLINE_S)
    assert (stored.stored, stored.had, stored.refused) == (2, 2, 0)


@pytest.mark.parametrize(
    ("reason", "expected"),
    [(pb.CAPACITY, Reason.CAPACITY), (pb.PREFIX_BROKEN, Reason.PREFIX_BROKEN)],
)
def test_what_is_not_admitted_is_refused_with_its_reason(stage, strips, slab, reason, expected):
    putting, number, request = asked(stage, strips)
    give(stage, slab)
    states = [pb.RESERVED, pb.RESERVED, pb.NOT_ADMITTED, pb.NOT_ADMITTED]
    stage.peer.reply(number, reserved(request, states, reason=reason))
    seals(stage)
    stored = putting.result(DEADLINE_S)
    assert (stored.stored, stored.refused, stored.reason) == (2, 2, expected)


def test_while_the_daemon_grows_the_rest_is_asked_for_again(stage, strips, slab):
    putting, number, request = asked(stage, strips)
    give(stage, slab)
    states = [pb.RESERVED, pb.NOT_ADMITTED, pb.NOT_ADMITTED, pb.NOT_ADMITTED]
    stage.peer.reply(number, reserved(request, states, reason=pb.GROWING))
    number, seal = stage.peer.take(FrameKind.SEAL, pb.SealRequest)
    stage.peer.reply(number, pb.SealReply(states=bytes([pb.SEALED])))
    number, request = stage.peer.take(FrameKind.RESERVE, pb.ReserveRequest)
    assert request.chain == strips.chain[DIGEST_BYTES:]
    stage.peer.reply(number, reserved(request))
    seals(stage)
    assert putting.result(DEADLINE_S).stored == COUNT


def test_growing_beyond_the_deadline_is_refused(stage, strips):
    putting, number, request = asked(stage, strips, deadline_s=0.3)
    while True:
        states = [pb.NOT_ADMITTED] * COUNT
        stage.peer.reply(number, reserved(request, states, reason=pb.GROWING))
        until(lambda: putting.done() or _readable(stage), "the next step")
        if putting.done():
            break
        kind, number, body = stage.peer.receive()
        if kind != FrameKind.RESERVE:
            break
        request = pb.ReserveRequest.FromString(body)
    stored = putting.result(DEADLINE_S)
    assert stored.refused == COUNT and stored.reason in (Reason.GROWING, Reason.LATE)


def _readable(stage: Stage) -> bool:
    return bool(select.select([stage.peer.stream], [], [], 0)[0])


@pytest.mark.parametrize(
    ("verdict", "expected"),
    [(pb.COALESCED, (0, COUNT, Reason.NONE)), (pb.ORPHANED, (0, 0, Reason.ORPHANED))],
)
def test_seals_say_what_became_of_it(stage, strips, slab, verdict, expected):
    putting, number, request = asked(stage, strips)
    give(stage, slab)
    stage.peer.reply(number, reserved(request))
    seals(stage, verdict)
    result = putting.result(DEADLINE_S)
    assert (result.stored, result.had, result.reason) == expected


# ---- answers that cannot be meant ----


def _outside(reply: pb.ReserveReply) -> None:
    reply.offsets = np.full(3 * COUNT, SLAB_BYTES, "<u8").tobytes()


def _wrapped(reply: pb.ReserveReply) -> None:
    reply.offsets = np.full(3 * COUNT, (1 << 64) - 4096, "<u8").tobytes()


def _unaligned(reply: pb.ReserveReply) -> None:
    reply.offsets = np.full(3 * COUNT, 64, "<u8").tobytes()


def _strange_state(reply: pb.ReserveReply) -> None:
    reply.states = bytes([7] * COUNT)


def _short(reply: pb.ReserveReply) -> None:
    reply.slabs = reply.slabs[:-4]


def _without_number(reply: pb.ReserveReply) -> None:
    reply.reservation = 0


@pytest.mark.parametrize("damage", [_outside, _wrapped, _unaligned])
def test_a_place_outside_of_its_slab_is_not_written_but_aborted(stage, strips, slab, damage):
    putting, number, request = asked(stage, strips)
    give(stage, slab)
    reply = reserved(request)
    damage(reply)
    stage.peer.reply(number, reply)
    _, abort = stage.peer.take(FrameKind.ABORT, pb.AbortRequest)
    assert abort.reservation == RESERVATION
    stored = putting.result(DEADLINE_S)
    assert stored.refused == COUNT and stored.reason == Reason.INCOMPATIBLE


@pytest.mark.parametrize("damage", [_strange_state, _short, _without_number])
def test_an_answer_that_cannot_be_meant_is_refused(stage, strips, slab, damage):
    putting, number, request = asked(stage, strips)
    give(stage, slab)
    reply = reserved(request)
    damage(reply)
    stage.peer.reply(number, reply)
    stored = putting.result(DEADLINE_S)
    assert stored.refused == COUNT and stored.reason == Reason.INCOMPATIBLE
    if reply.reservation:
        assert stage.peer.take(FrameKind.ABORT, pb.AbortRequest)[1].reservation == RESERVATION


def test_a_daemon_that_dies_refuses_what_was_not_sealed(stage, strips, slab):
    putting, number, request = asked(stage, strips)
    give(stage, slab)
    stage.peer.reply(number, reserved(request))
    stage.peer.take(FrameKind.SEAL, pb.SealRequest)
    stage.peer.hang_up()
    stored = putting.result(DEADLINE_S)
    assert (stored.stored, stored.refused, stored.reason) == (0, COUNT, Reason.LOST)


def test_a_reserve_answered_too_late_is_aborted(stage, strips):
    putting, number, request = asked(stage, strips, deadline_s=0.3)
    assert putting.result(DEADLINE_S).reason == Reason.LATE
    assert stage.peer.take(FrameKind.CANCEL, pb.Cancel)[0] == number
    stage.peer.reply(number, reserved(request))
    assert stage.peer.take(FrameKind.ABORT, pb.AbortRequest)[1].reservation == RESERVATION


# ---- slabs that are asked back ----


def permissions() -> set[str]:
    """Return how this process has mapped the slab."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return {line.split()[1] for line in lines if "memfd:kvd-put" in line}


def test_a_slab_asked_back_is_only_read_from_then_on(stage, strips, slab):
    give(stage, slab)
    stage.peer.tell(pb.ToClient(slab_recalled=pb.SlabRecalled(slab=SLAB)))
    assert stage.peer.detached() == SLAB
    assert permissions() == {"r--s"}
    # It can be given again.
    give(stage, slab)
    putting, number, request = asked(stage, strips)
    stage.peer.reply(number, reserved(request))
    seals(stage)
    assert putting.result(DEADLINE_S).stored == COUNT


def test_a_slab_never_heard_of_is_given_back_all_the_same(stage):
    stage.peer.tell(pb.ToClient(slab_recalled=pb.SlabRecalled(slab=99)))
    assert stage.peer.detached() == 99


def test_a_put_into_a_slab_asked_back_is_aborted_and_the_slab_given_back(stage, strips, slab):
    give(stage, slab)
    stage.peer.tell(pb.ToClient(slab_recalled=pb.SlabRecalled(slab=SLAB)))
    assert stage.peer.detached() == SLAB
    putting, number, request = asked(stage, strips, deadline_s=1.0)
    stage.peer.reply(number, reserved(request))
    _, abort = stage.peer.take(FrameKind.ABORT, pb.AbortRequest)
    assert abort.reservation == RESERVATION
    assert stage.peer.detached() == SLAB
    stored = putting.result(DEADLINE_S)
    assert stored.refused == COUNT and stored.stored == 0


def test_a_client_that_leaves_gives_its_slabs_back(stage, slab):
    give(stage, slab)
    looking = stage.start(stage.space.lookup, bytes(32))
    stage.peer.take_keyspace()
    stage.peer.reply(stage.peer.take(FrameKind.LOOKUP, pb.LookupRequest)[0], counts_reply(0, 0, 0))
    looking.result(DEADLINE_S)
    closing = stage.start(stage.client.close)
    assert stage.peer.detached() == SLAB
    closing.result(DEADLINE_S)
    assert stage.peer.channel.recv(1) == b""
