"""Messages and the core's words: nothing is lost, renamed or renumbered between them."""

import re
from dataclasses import replace

import numpy as np
import pytest

from kvd.clock import NS_PER_MS
from kvd.core import effects
from kvd.core.effects import LaneColumns, Promise, Shortfall
from kvd.core.events import ClearWanted, Delivery, FetchWanted, PrefetchWanted
from kvd.errors import ErrorKind, KvdError
from kvd.limits import Limits
from kvd.rpc.grpc_call import STATUS
from kvd.rpc.grpc_service import take_over_deadline
from kvd.rpc.replies import (
    PLACE_BYTES,
    PROMISE_HEAD_BYTES_MAX,
    promise_of,
    ready_of,
    reply_of,
)
from kvd.rpc.wishes import WISHES, Asker, parse_message, wish_of
from kvd.shape import HitRule
from kvd.types import Dtype, Lane, Role, ShardScheme
from kvd.v1 import kvd_pb2 as pb
from kvd.wire import WHOLE, FrameKind

LIMITS = Limits()
ASKER = Asker(request=1, session=2, now_ns=1000, limits=LIMITS)


@pytest.mark.parametrize(
    ("words", "enum", "prefix"),
    [
        (ErrorKind, pb.ErrorKind, ""),
        (Role, pb.Role, "ROLE_"),
        (Dtype, pb.Dtype, "DTYPE_"),
        (HitRule, pb.HitRule, "HIT_RULE_"),
        (ShardScheme, pb.ShardScheme, "SHARD_SCHEME_"),
        (Delivery, pb.Delivery, "DELIVERY_"),
        (effects.ReserveState, pb.ReserveState, ""),
        (effects.SealState, pb.SealState, ""),
        (effects.Shortfall, pb.ShortfallReason, "SHORTFALL_REASON_"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_words_have_the_numbers_of_the_messages(words, enum, prefix):
    known = {name.removeprefix(prefix): value for name, value in enum.items()}
    known.pop("UNSPECIFIED", None)
    known = {name: value for name, value in known.items() if not name.endswith("UNSPECIFIED")}
    assert {word.name: word.value for word in words} == known


def test_every_error_kind_has_a_status_of_its_own():
    assert set(STATUS) == set(ErrorKind) and len(set(STATUS.values())) == len(STATUS)


def test_every_request_frame_is_a_wish_or_the_streams_own():
    own = {FrameKind.BIND, FrameKind.CANCEL, FrameKind.CREDIT}
    assert set(WISHES) | own == {kind for kind in FrameKind if kind < 64}


def test_core_and_clients_say_whole_alike():
    assert effects.WHOLE == WHOLE


@pytest.mark.parametrize(
    ("durability", "durable"), [(pb.DURABILITY_MEMORY, False), (pb.DURABILITY_DISK, True)]
)
def test_durability_is_the_cores_to_grant(durability, durable):
    request = pb.ReserveRequest(chain=bytes(range(32)), sizes=bytes(12), durability=durability)
    assert wish_of(FrameKind.RESERVE, request, ASKER).durable is durable


SHORT = bytes(range(1, 9))


@pytest.mark.parametrize(
    "digest",
    [bytes(32), SHORT + bytes(24), bytes(24) + SHORT, 2 * SHORT + bytes(16), 4 * SHORT],
    ids=["zero", "padded behind", "padded before", "16 bytes", "repeated"],
)
def test_nothing_is_stored_under_a_shorter_hash(digest):
    good = bytes(range(32))
    request = pb.ReserveRequest(chain=good + digest, sizes=bytes(24))
    with pytest.raises(KvdError, match="chunk 1 of chain .* 32 bytes") as refused:
        wish_of(FrameKind.RESERVE, request, ASKER)
    assert refused.value.kind == ErrorKind.INVALID


def of_lanes(lanes: int, chunks: int) -> pb.FetchRequest:
    said = [pb.Lane(shard_scheme=1, shard_index=n, shard_count=lanes + 1) for n in range(lanes)]
    return pb.FetchRequest(lanes=said, chain=bytes(32 * chunks), class_count=3)


def test_a_durability_of_nobody_is_refused():
    request = pb.ReserveRequest(chain=bytes(range(32)), sizes=bytes(12), durability=2)
    with pytest.raises(KvdError, match="durability is 2") as refused:
        wish_of(FrameKind.RESERVE, request, ASKER)
    assert refused.value.kind == ErrorKind.INVALID


@pytest.mark.parametrize(
    ("deadline_ms", "expected_ns"),
    [
        (0, LIMITS.deadline_ns),
        (1, NS_PER_MS),
        (0xFFFF_FFFF, LIMITS.deadline_ns_max),
    ],
)
def test_deadlines_are_absolute_and_bounded(deadline_ms, expected_ns):
    request = pb.FetchRequest(
        lanes=[pb.Lane()], chain=bytes(32), class_count=2, deadline_ms=deadline_ms
    )
    wish = wish_of(FrameKind.FETCH, request, ASKER)
    assert isinstance(wish, FetchWanted) and wish.deadline_ns == 1000 + expected_ns


@pytest.mark.parametrize(("lanes", "chunks"), [(64, 1500), (2, 50_000), (2, 65_536)])
def test_a_fetch_whose_promise_would_pass_a_frame_is_refused(lanes, chunks):
    request = of_lanes(lanes, chunks)
    with pytest.raises(KvdError, match=f"{chunks} chunks x {lanes} lanes") as refused:
        wish_of(FrameKind.FETCH, request, ASKER)
    assert refused.value.kind == ErrorKind.INVALID and "frame_bytes_max" in refused.value.message
    fits = int(re.search(r"fetch (\d+) chunks", refused.value.message)[1])
    assert wish_of(FrameKind.FETCH, of_lanes(lanes, fits), ASKER)
    with pytest.raises(KvdError):
        wish_of(FrameKind.FETCH, of_lanes(lanes, fits + 1), ASKER)


@pytest.mark.parametrize("lanes", [1, 2, 64])
def test_the_largest_promise_of_a_fetch_that_is_taken_is_a_frame(lanes):
    chunks = LIMITS.chunks_per_request_max
    fits = (LIMITS.frame_bytes_max - PROMISE_HEAD_BYTES_MAX) // (lanes * PLACE_BYTES)
    chunks = min(chunks, fits)
    assert wish_of(FrameKind.FETCH, of_lanes(lanes, chunks), ASKER)
    words, halves = np.full(chunks, 2**64 - 1, np.uint64), np.full(chunks, 2**32 - 1, np.uint32)
    columns = LaneColumns(words, words, (halves,) * 3, (words,) * 3, (halves,) * 3, (words,) * 3)
    most = Promise(
        2**64 - 1, (2**32 - 1,) * 3, (columns,) * lanes, Shortfall.READ_FAILED,
        (2**32 - 1) * NS_PER_MS, (254,) * 3,
    )  # fmt: skip
    reply = pb.FetchReply(promise=promise_of(most))
    assert reply.ByteSize() <= LIMITS.frame_bytes_max
    assert reply.ByteSize() <= chunks * lanes * PLACE_BYTES + PROMISE_HEAD_BYTES_MAX


@pytest.mark.parametrize(
    ("deadline_ms", "expected_ns"), [(0, LIMITS.deadline_ns), (5, 5 * NS_PER_MS)]
)
def test_a_seal_and_a_clear_have_deadlines_too(deadline_ms, expected_ns):
    seal = wish_of(FrameKind.SEAL, pb.SealRequest(deadline_ms=deadline_ms), ASKER)
    assert seal.deadline_ns == 1000 + expected_ns
    clear = wish_of(FrameKind.CLEAR, pb.ClearRequest(keyspace=3, deadline_ms=deadline_ms), ASKER)
    assert clear == ClearWanted(1, 2, 3, 1000 + expected_ns)


def test_a_grpc_calls_own_deadline_is_taken_where_none_is_stated():
    for stated, remaining_s, expected in ((0, 1.5, 1500), (7, 1.5, 7), (0, None, 0), (0, 0.0, 1)):
        for request in (pb.SealRequest, pb.ClearRequest, pb.FetchRequest):
            message = request(deadline_ms=stated)
            take_over_deadline(message, remaining_s)
            assert message.deadline_ms == expected
    take_over_deadline(pb.AbortRequest(), 1.5)


def test_a_prefetch_asks_as_a_fetch_does():
    request = pb.PrefetchRequest(keyspace=3, lanes=[pb.Lane()], chain=bytes(64), class_count=2)
    wish = wish_of(FrameKind.PREFETCH, request, ASKER)
    assert wish == PrefetchWanted(1, 2, 3, (Lane(),), bytes(64), 2)
    request.chain = b"x"
    with pytest.raises(KvdError, match="chain"):
        wish_of(FrameKind.PREFETCH, request, ASKER)


def test_a_seals_columns_are_chunk_major():
    sizes = np.arange(6, dtype="<u4")
    roots = np.arange(6, dtype="<u8") + 100
    request = pb.SealRequest(sizes=sizes.tobytes(), roots=roots.tobytes())
    wish = wish_of(FrameKind.SEAL, request, ASKER)
    assert wish.sizes.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert wish.roots.tolist() == [[100, 101, 102], [103, 104, 105]]


def test_a_promises_columns_are_class_major():
    def column(dtype: str, base: int) -> tuple[np.ndarray, ...]:
        return tuple(
            np.arange(count, dtype=dtype) + base + 10 * c for c, count in enumerate((3, 2, 1))
        )

    lane = effects.LaneColumns(
        np.arange(3, dtype="<u8"), np.full(3, 9, "<u8"),
        column("<u4", 100), column("<u8", 200), column("<u4", 300), column("<u8", 400),
    )  # fmt: skip
    promise = effects.Promise(5, (3, 2, 1), (lane,), effects.Shortfall.NOT_STORED, 30 * NS_PER_MS)
    message = promise_of(promise)
    assert np.frombuffer(message.counts, "<u4").tolist() == [3, 2, 1]
    assert (message.lease, message.reason, message.lease_ms) == (5, pb.NOT_STORED, 30)
    for name, dtype, base in (
        ("slabs", "<u4", 100),
        ("offsets", "<u8", 200),
        ("roots", "<u8", 400),
    ):
        values = np.frombuffer(getattr(message.lanes[0], name), dtype) - base
        assert values.tolist() == [0, 1, 2, 10, 11, 20]


def test_what_is_ready_is_said_only_where_not_all_is():
    promise = effects.Promise(5, (0, 0, 0), (), effects.Shortfall.NONE, 1)
    assert promise_of(promise).ready == b""
    assert promise_of(replace(promise, ready=(WHOLE, 7, 0))).ready == b"\xff\x07\x00"
    assert ready_of((WHOLE, WHOLE, WHOLE)).ready == b"\xff\xff\xff"


@pytest.mark.parametrize(
    ("outcome", "message"),
    [
        (effects.KeyspaceGranted(3, b"d"), pb.RegisterKeyspaceReply(keyspace=3, digest=b"d")),
        (effects.Sealed(np.array([1, 2], np.uint8)), pb.SealReply(states=b"\x01\x02")),
        (effects.Sealed(np.array([2]), durable=True), pb.SealReply(states=b"\x02", durable=True)),
        (effects.Aborted(), pb.AbortReply()),
        (effects.Found((1, 0, 0), 7), pb.LookupReply(counts=b"\1\0\0\0" + bytes(8), lease=7)),
        (effects.FetchDone(8), pb.FetchDone(delivered_bytes=8)),
        (
            effects.FetchDone(0, (1, 0, 0), effects.Shortfall.READ_FAILED),
            pb.FetchDone(counts=b"\1\0\0\0" + bytes(8), reason=pb.READ_FAILED),
        ),
        (effects.Cleared(9, 2), pb.ClearReply(chunks=9, held=2)),
        (effects.Released(), pb.ReleaseReply()),
        (effects.Renewed(5 * NS_PER_MS), pb.RenewReply(lease_ms=5)),
        (
            KvdError(ErrorKind.LOST, "gone", 4),
            pb.Error(kind=pb.LOST, message="gone", retry_after_ms=4),
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_outcomes_become_their_messages(outcome, message):
    assert reply_of(FrameKind.LOOKUP, outcome) == message


def test_what_is_found_is_said_in_the_words_of_the_question():
    found = reply_of(FrameKind.PREFETCH, effects.Found((1, 0, 0), 0))
    assert found == pb.PrefetchReply(counts=b"\1\0\0\0" + bytes(8))


# ---- of another version ----


def registration(**tensor) -> pb.RegisterKeyspaceRequest:
    of = pb.TensorShape(role=pb.ROLE_K, heads=1, width=8, dtype=pb.DTYPE_BF16)
    of.MergeFrom(pb.TensorShape(**tensor))
    group = pb.KvGroup(layers=1, tensors=[of])
    return pb.RegisterKeyspaceRequest(
        keyspace=pb.Keyspace(model="m", chunk_tokens=4, groups=[group])
    )


def of_hit_rule(rule: int) -> pb.RegisterKeyspaceRequest:
    request = registration()
    request.keyspace.groups[0].hit_rule = rule
    return request


FETCH = {"keyspace": 1, "chain": bytes(32), "class_count": 3}


@pytest.mark.parametrize(
    ("kind", "message", "words"),
    [
        (FrameKind.REGISTER_KEYSPACE, registration(role=99), "tensor.role is 99; .*1 .K."),
        (FrameKind.REGISTER_KEYSPACE, registration(dtype=99), "tensor.dtype is 99; .*1 .BF16."),
        (FrameKind.REGISTER_KEYSPACE, of_hit_rule(99), "group.hit_rule is 99; .*0 .ALL."),
        (FrameKind.FETCH, pb.FetchRequest(**FETCH, lanes=[pb.Lane()], delivery=99),
         "delivery is 99; .*1 .BYTES."),
        (FrameKind.FETCH, pb.FetchRequest(**FETCH, lanes=[pb.Lane(shard_scheme=99)]),
         "lane.shard_scheme is 99; .*0 .REPLICATED."),
        (FrameKind.RESERVE, pb.ReserveRequest(durability=99), "durability is 99; .*1 .DISK."),
    ],
    ids=["role", "dtype", "hit rule", "delivery", "shard scheme", "durability"],
)  # fmt: skip
def test_unknown_values_of_enums_are_invalid_by_name(kind, message, words):
    with pytest.raises(KvdError, match=words) as refused:
        wish_of(kind, message, ASKER)
    assert refused.value.kind == ErrorKind.INVALID


def test_unknown_fields_change_nothing():
    later = b"\xfa\x3e\x03new\xf0\x3e\x07"  # Fields 1007 and 1006, of a version to come.
    messages = {
        FrameKind.FETCH: pb.FetchRequest(**FETCH, lanes=[pb.Lane()]),
        FrameKind.RENEW: pb.RenewRequest(lease=3),
        FrameKind.REGISTER_KEYSPACE: registration(),
    }
    for kind, message in messages.items():
        body = message.SerializeToString()
        parsed = parse_message(kind, body + later)
        assert parsed.ByteSize() > len(body)
        assert wish_of(kind, parsed, ASKER) == wish_of(kind, message, ASKER)
