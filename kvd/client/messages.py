"""Words of kvd <-> protobuf messages, and promises checked before anybody trusts them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from kvd.client.outcomes import Reason
from kvd.errors import ErrorKind, KvdError
from kvd.identity import Keyspace
from kvd.limits import PAGE_BYTES
from kvd.types import CLASS_COUNT, Lane
from kvd.v1 import kvd_pb2 as pb
from kvd.wire import WHOLE

Triple = tuple[int, int, int]  # One number per class.
Of, Made = TypeVar("Of"), TypeVar("Made")
Counts = Triple  # Of chunks, never growing from class to class.

WHOLES = (WHOLE, WHOLE, WHOLE)
_ITEM_BYTES = {"<u1": 1, "<u4": 4, "<u8": 8}

_SHORTFALLS = {
    pb.SHORTFALL_REASON_NONE: Reason.NONE,
    pb.NOT_STORED: Reason.NOT_STORED,
    pb.CONDEMNED: Reason.CONDEMNED,
    pb.NO_ROOM: Reason.NO_ROOM,
    pb.READ_FAILED: Reason.READ_FAILED,
}
NOT_ADMITTED = {
    pb.NOT_ADMITTED_REASON_NONE: Reason.UNAVAILABLE,
    pb.CAPACITY: Reason.CAPACITY,
    pb.PREFIX_BROKEN: Reason.PREFIX_BROKEN,
    pb.GROWING: Reason.GROWING,
    pb.QUOTA: Reason.QUOTA,
}


def said(make: Callable[[Of], Made], of: Of) -> Made:
    """Return what `make` makes of a word; raise INVALID where its numbers fit no message."""
    try:
        return make(of)
    except (TypeError, ValueError) as error:
        raise KvdError(ErrorKind.INVALID, f"{of} cannot be said in a message: {error}") from None


def lane_message(lane: Lane) -> pb.Lane:
    return pb.Lane(
        kv_group=lane.kv_group,
        shard_scheme=int(lane.shard.scheme),  # type: ignore[arg-type]
        shard_index=lane.shard.index,
        shard_count=lane.shard.count,
        part_profile=lane.part.profile,
        part_index=lane.part.index,
    )


def keyspace_message(keyspace: Keyspace) -> pb.Keyspace:
    groups = [
        pb.KvGroup(
            layers=group.layers,
            tensors=[
                pb.TensorShape(
                    role=int(t.role),  # type: ignore[arg-type]
                    heads=t.heads,
                    width=t.width,
                    dtype=int(t.dtype),  # type: ignore[arg-type]
                )
                for t in group.tensors
            ],
            hit_rule=int(group.hit_rule),  # type: ignore[arg-type]
            trailing_chunks=group.trailing_chunks,
        )
        for group in keyspace.shape.groups
    ]
    return pb.Keyspace(
        model=keyspace.model,
        weight_revision=keyspace.weight_revision,
        tokenizer=keyspace.tokenizer,
        chain=keyspace.chain,
        layout=keyspace.layout,
        rope=keyspace.rope,
        adapter=keyspace.adapter,
        chunk_tokens=keyspace.chunk_tokens,
        groups=groups,
    )


def error_of(message: pb.Error) -> KvdError:
    try:
        kind = ErrorKind(message.kind)
    except ValueError:  # Of a later version.
        kind = ErrorKind.UNAVAILABLE
    return KvdError(kind, message.message, message.retry_after_ms)


def column(data: bytes, dtype: str, count: int, name: str) -> np.ndarray:
    """Return a column of `count` numbers, or raise when the daemon sent another number."""
    if len(data) != count * _ITEM_BYTES[dtype]:
        raise garbage(f"column {name} of {len(data)} bytes, {count} entries of {dtype} announced")
    return np.frombuffer(data, dtype)


def garbage(what: str) -> KvdError:
    return KvdError(ErrorKind.INCOMPATIBLE, f"the daemon sent {what}")


def parse_counts(data: bytes, asked: int) -> Counts:
    """Return chunks per class: never growing, at most `asked`."""
    a, r, e = column(data, "<u4", CLASS_COUNT, "counts").tolist()
    if not asked >= a >= r >= e:
        raise garbage(f"counts {a}, {r}, {e} for {asked} chunks asked")
    return a, r, e


def parse_ready(data: bytes, counts: Counts) -> Triple:
    """Return how many leading pieces are ready per class; of a class without chunks, WHOLE."""
    a, r, e = column(data, "<u1", CLASS_COUNT, "ready").tolist()
    return a if counts[0] else WHOLE, r if counts[1] else WHOLE, e if counts[2] else WHOLE


def parse_done(message: pb.FetchDone, promised: Counts) -> tuple[Counts, Reason]:
    """Return how many chunks of a promise are good in the end, and why not all."""
    if message.reason == pb.SHORTFALL_REASON_NONE:
        return promised, Reason.NONE
    counts = parse_counts(message.counts, promised[0])
    if any(kept > of for kept, of in zip(counts, promised, strict=True)):
        raise garbage(f"counts {counts} at the end of a fetch of {promised}")
    return counts, _SHORTFALLS.get(message.reason, Reason.UNAVAILABLE)


@dataclass(frozen=True, slots=True)
class Promised:
    """One lane's promise. Per class: slabs u32, offsets u64, sizes u32, roots u64 of its chunks."""

    lease: int
    lease_ttl_s: float
    counts: Counts
    reason: Reason
    ready: Triple  # As in pb.Ready; WHOLE for a class without chunks.
    generations: np.ndarray
    profiles: np.ndarray
    slabs: tuple[np.ndarray, ...]
    offsets: tuple[np.ndarray, ...]
    sizes: tuple[np.ndarray, ...]
    roots: tuple[np.ndarray, ...]


def parse_promise(message: pb.Promise, asked: int, strip_bytes_min: int) -> Promised:
    """Check what can be checked without the slabs; raise KvdError for what cannot be meant."""
    counts = parse_counts(message.counts, asked)
    reason = _SHORTFALLS.get(message.reason, Reason.UNAVAILABLE)
    lane = message.lanes[0] if message.lanes else pb.LanePromise()
    if counts[0] and (len(message.lanes) != 1 or message.lease == 0 or message.lease_ms == 0):
        raise garbage(f"a promise of {len(message.lanes)} lanes under lease {message.lease}")
    total = sum(counts)
    sizes = column(lane.sizes, "<u4", total, "sizes")
    if total and (sizes.min() < strip_bytes_min or np.bitwise_or.reduce(sizes) % PAGE_BYTES):
        raise garbage(f"a strip size of {sizes.min()}, at least {strip_bytes_min} in whole pages")
    return Promised(
        message.lease,
        message.lease_ms / 1000,
        counts,
        reason,
        parse_ready(message.ready, counts) if message.ready else WHOLES,
        column(lane.generations, "<u8", counts[0], "generations"),
        column(lane.profiles, "<u8", counts[0], "profiles"),
        _per_class(column(lane.slabs, "<u4", total, "slabs"), counts),
        _per_class(column(lane.offsets, "<u8", total, "offsets"), counts),
        _per_class(sizes, counts),
        _per_class(column(lane.roots, "<u8", total, "roots"), counts),
    )


def _per_class(values: np.ndarray, counts: Counts) -> tuple[np.ndarray, ...]:
    a, r, _ = counts
    return values[:a], values[a : a + r], values[a + r :]
