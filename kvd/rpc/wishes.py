"""Messages of clients -> wishes of the core. Checks every field; trusts none; decides nothing."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import TypeVar

import numpy as np
from google.protobuf.message import DecodeError, Message

from kvd.clock import NS_PER_MS
from kvd.core.events import (
    AbortWanted,
    ClearWanted,
    Delivery,
    Event,
    FetchWanted,
    KeyspaceWanted,
    LookupWanted,
    PrefetchWanted,
    ReleaseWanted,
    RenewWanted,
    ReserveWanted,
    SealWanted,
)
from kvd.errors import ErrorKind, KvdError
from kvd.identity import Keyspace
from kvd.limits import DIGEST_BYTES, Limits
from kvd.rpc.replies import PLACE_BYTES, PROMISE_HEAD_BYTES_MAX
from kvd.shape import BlockShape, HitRule, KvGroup, TensorShape
from kvd.types import CLASS_COUNT, Dtype, Lane, Part, Role, Shard, ShardScheme
from kvd.v1 import kvd_pb2 as pb
from kvd.wire import FrameKind

TEXT_BYTES_MAX = 1024  # Of one field of a keyspace.
SHAPE_ITEMS_MAX = 64  # Of kv groups and of tensors; the core's own bounds are lower.

Word = TypeVar("Word", bound=IntEnum)
Parsed = TypeVar("Parsed", bound=Message)


@dataclass(frozen=True, slots=True)
class Asker:
    """Who wishes, and under which number and bounds."""

    request: int
    session: int
    now_ns: int
    limits: Limits


def invalid(message: str) -> KvdError:
    return KvdError(ErrorKind.INVALID, message)


def wish_of(kind: FrameKind, message: Message, asker: Asker) -> Event:
    """Return the wish that a message means; raise INVALID naming field, value and limit."""
    _, convert = WISHES[kind]
    return convert(message, asker)


def parse_message(kind: FrameKind, body: bytes) -> Message:
    """Return the message of a request; raise INVALID when it is none."""
    return parse(WISHES[kind][0], body)


def parse(message_type: type[Parsed], body: bytes) -> Parsed:
    try:
        return message_type.FromString(body)
    except DecodeError:
        raise invalid(f"{len(body)} bytes are no {message_type.__name__}") from None


# ---- fields ----


def _known(words: type[Word], value: int, field: str) -> Word:
    try:
        return words(value)
    except ValueError:
        allowed = ", ".join(f"{word.value} ({word.name})" for word in words)
        raise invalid(f"{field} is {value}; allowed are {allowed}") from None


def _text(value: str, field: str) -> str:
    size = len(value.encode())
    if size > TEXT_BYTES_MAX:
        raise invalid(f"{field} has {size} bytes, the limit is {TEXT_BYTES_MAX}")
    return value


def chain_of(data: bytes, limits: Limits) -> bytes:
    count, rest = divmod(len(data), DIGEST_BYTES)
    if rest or not count:
        raise invalid(
            f"chain has {len(data)} bytes; it is one or more digests of {DIGEST_BYTES} bytes"
        )
    if count > limits.chunks_per_request_max:
        raise invalid(
            f"chain has {count} chunks, the limit chunks_per_request_max is "
            f"{limits.chunks_per_request_max}"
        )
    return data


def _stored_chain_of(data: bytes, limits: Limits) -> bytes:
    """Return a chain that something is to be stored under; raise INVALID for padded short hashes.

    A digest is all that tells chunks apart, so what somebody can make collide must not become one.
    """
    words = np.frombuffer(chain_of(data, limits), "<u8").reshape(-1, 4)
    padded = ~words[:, :2].any(axis=1) | ~words[:, 2:].any(axis=1)
    repeated = (words == words[:, :1]).all(axis=1)
    short = np.flatnonzero(padded | repeated)
    if len(short):
        raise invalid(
            f"chunk {short[0]} of chain has a digest of 16 bytes or fewer, padded or repeated; it "
            f"must be {DIGEST_BYTES} bytes of a hash without collisions, as BLAKE2b or SHA-256"
        )
    return data


def _columns(data: bytes, dtype: str, field: str, limits: Limits) -> np.ndarray:
    """Return a chunk-major column of all classes as [n, 3]."""
    row = CLASS_COUNT * np.dtype(dtype).itemsize
    if len(data) % row or len(data) > limits.chunks_per_request_max * row:
        raise invalid(
            f"{field} has {len(data)} bytes; it is {row} for each of at most "
            f"{limits.chunks_per_request_max} chunks"
        )
    return np.frombuffer(data, dtype).reshape(-1, CLASS_COUNT)


def lane_of(message: pb.Lane) -> Lane:
    return _checked_lane(
        message.kv_group,
        message.shard_scheme,
        message.shard_index,
        message.shard_count or 1,
        message.part_profile or Part().profile,
        message.part_index,
    )


@lru_cache(maxsize=1024)  # A client asks for the same few lanes all day.
def _checked_lane(
    kv_group: int, scheme: int, index: int, count: int, profile: bytes, part_index: int
) -> Lane:
    known = _known(ShardScheme, scheme, "lane.shard_scheme")
    if not index < count <= 0xFFFF:
        raise invalid(f"lane.shard_index is {index} of shard_count {count}; at most 65535 shards")
    if known == ShardScheme.REPLICATED and count != 1:
        raise invalid(f"lane.shard_count is {count}; a replicated lane has 1 shard")
    if part_index > 0xFFFF:
        raise invalid(f"lane.part_index is {part_index}, the limit is 65535")
    if len(profile) != len(Part().profile):
        raise invalid(f"lane.part_profile has {len(profile)} bytes; it is 8, or empty for all")
    return Lane(kv_group, Shard(known, index, count), Part(profile, part_index))


def _lanes(messages: "list[pb.Lane]", limits: Limits) -> tuple[Lane, ...]:
    if not 1 <= len(messages) <= limits.lanes_per_request_max:
        raise invalid(
            f"lanes has {len(messages)} entries, allowed are 1 to {limits.lanes_per_request_max}"
        )
    return tuple(lane_of(message) for message in messages)


def _deadline_ns(deadline_ms: int, asker: Asker) -> int:
    limits = asker.limits
    wanted_ns = deadline_ms * NS_PER_MS or limits.deadline_ns
    return asker.now_ns + min(wanted_ns, limits.deadline_ns_max)


# ---- messages ----


def _shape(message: pb.Keyspace) -> BlockShape:
    if len(message.groups) > SHAPE_ITEMS_MAX:
        raise invalid(f"keyspace.groups has {len(message.groups)} entries, limit {SHAPE_ITEMS_MAX}")
    groups = []
    for group in message.groups:
        if len(group.tensors) > SHAPE_ITEMS_MAX:
            raise invalid(f"a kv group has {len(group.tensors)} tensors, limit {SHAPE_ITEMS_MAX}")
        tensors = tuple(
            TensorShape(
                _known(Role, tensor.role, "tensor.role"),
                tensor.heads,
                tensor.width,
                _known(Dtype, tensor.dtype, "tensor.dtype"),
            )
            for tensor in group.tensors
        )
        rule = _known(HitRule, group.hit_rule, "group.hit_rule")
        groups.append(KvGroup(group.layers, tensors, rule, group.trailing_chunks))
    return BlockShape(tuple(groups))


def _keyspace(message: pb.RegisterKeyspaceRequest, asker: Asker) -> Event:
    said = message.keyspace
    texts = {
        name: _text(getattr(said, name), f"keyspace.{name}")
        for name in (
            "model", "weight_revision", "tokenizer", "chain", "layout", "rope", "adapter",
        )
    }  # fmt: skip
    keyspace = Keyspace(shape=_shape(said), chunk_tokens=said.chunk_tokens, **texts)
    return KeyspaceWanted(asker.request, asker.session, keyspace)


def _reserve(message: pb.ReserveRequest, asker: Asker) -> Event:
    limits = asker.limits
    if message.durability not in (pb.DURABILITY_MEMORY, pb.DURABILITY_DISK):
        raise invalid(f"durability is {message.durability}; allowed are 0 (MEMORY), 1 (DISK)")
    if len(message.parent) not in (0, DIGEST_BYTES):
        raise invalid(f"parent has {len(message.parent)} bytes; it is {DIGEST_BYTES}, or empty")
    return ReserveWanted(
        asker.request,
        asker.session,
        message.keyspace,
        lane_of(message.lane),
        message.parent,
        _stored_chain_of(message.chain, limits),
        _columns(message.sizes, "<u4", "sizes", limits),
        message.durability == pb.DURABILITY_DISK,
    )


def _seal(message: pb.SealRequest, asker: Asker) -> Event:
    limits = asker.limits
    sizes = _columns(message.sizes, "<u4", "sizes", limits)
    roots = _columns(message.roots, "<u8", "roots", limits)
    if len(sizes) != len(roots):
        raise invalid(f"sizes are of {len(sizes)} chunks, roots of {len(roots)}")
    return SealWanted(
        asker.request, asker.session, message.reservation, message.first,
        sizes, roots, message.profile, message.last, _deadline_ns(message.deadline_ms, asker),
    )  # fmt: skip


def _abort(message: pb.AbortRequest, asker: Asker) -> Event:
    return AbortWanted(asker.request, asker.session, message.reservation)


def _lookup(message: pb.LookupRequest, asker: Asker) -> Event:
    return LookupWanted(
        asker.request,
        asker.session,
        message.keyspace,
        _lanes(message.lanes, asker.limits),
        chain_of(message.chain, asker.limits),
        message.lease,
    )


def _prefetch(message: pb.PrefetchRequest, asker: Asker) -> Event:
    return PrefetchWanted(
        asker.request,
        asker.session,
        message.keyspace,
        _lanes(message.lanes, asker.limits),
        chain_of(message.chain, asker.limits),
        message.class_count,
    )


def _clear(message: pb.ClearRequest, asker: Asker) -> Event:
    deadline_ns = _deadline_ns(message.deadline_ms, asker)
    return ClearWanted(asker.request, asker.session, message.keyspace, deadline_ns)


def _fetch(message: pb.FetchRequest, asker: Asker) -> Event:
    limits = asker.limits
    lanes, chain = _lanes(message.lanes, limits), chain_of(message.chain, limits)
    _check_promise(len(chain) // DIGEST_BYTES, len(lanes), limits)
    return FetchWanted(
        asker.request, asker.session, message.keyspace, lanes, chain,
        message.class_count, message.layer_begin, message.layer_end,
        _known(Delivery, message.delivery, "delivery"), message.rate_bits, message.lease,
        _deadline_ns(message.deadline_ms, asker),
    )  # fmt: skip


def _check_promise(chunks: int, lanes: int, limits: Limits) -> None:
    """Raise INVALID for a fetch whose promise might be larger than any frame."""
    size = chunks * lanes * PLACE_BYTES + PROMISE_HEAD_BYTES_MAX
    if size > limits.frame_bytes_max:
        fits = (limits.frame_bytes_max - PROMISE_HEAD_BYTES_MAX) // (lanes * PLACE_BYTES)
        raise invalid(
            f"a promise of {chunks} chunks x {lanes} lanes may have {size} bytes, the limit "
            f"frame_bytes_max is {limits.frame_bytes_max}; fetch {fits} chunks at once, or fewer "
            "lanes"
        )


def _release(message: pb.ReleaseRequest, asker: Asker) -> Event:
    data = message.corrupt
    if len(data) % 4:
        raise invalid(f"corrupt has {len(data)} bytes; it is 4 for each strip")
    return ReleaseWanted(asker.request, asker.session, message.lease, np.frombuffer(data, "<u4"))


def _renew(message: pb.RenewRequest, asker: Asker) -> Event:
    return RenewWanted(asker.request, asker.session, message.lease)


WISHES: dict[FrameKind, tuple[type[Message], Callable[..., Event]]] = {
    FrameKind.REGISTER_KEYSPACE: (pb.RegisterKeyspaceRequest, _keyspace),
    FrameKind.RESERVE: (pb.ReserveRequest, _reserve),
    FrameKind.SEAL: (pb.SealRequest, _seal),
    FrameKind.ABORT: (pb.AbortRequest, _abort),
    FrameKind.LOOKUP: (pb.LookupRequest, _lookup),
    FrameKind.PREFETCH: (pb.PrefetchRequest, _prefetch),
    FrameKind.FETCH: (pb.FetchRequest, _fetch),
    FrameKind.RELEASE: (pb.ReleaseRequest, _release),
    FrameKind.RENEW: (pb.RenewRequest, _renew),
    FrameKind.CLEAR: (pb.ClearRequest, _clear),
}
