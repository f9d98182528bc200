"""Outcomes and promises of the core -> messages to clients. No work per chunk in Python."""

import struct

import numpy as np
from google.protobuf.message import Message

from kvd.clock import NS_PER_MS
from kvd.core.effects import (
    WHOLES,
    Aborted,
    Cleared,
    FetchDone,
    Found,
    KeyspaceGranted,
    LaneColumns,
    Outcome,
    Promise,
    Released,
    Renewed,
    Reserved,
    Sealed,
    Shortfall,
)
from kvd.errors import KvdError
from kvd.limits import KIB
from kvd.types import CLASS_COUNT
from kvd.v1 import kvd_pb2 as pb
from kvd.wire import FrameKind

# Of a chunk and lane in a promise: generation, profile; of each class slab, offset, size, root.
PLACE_BYTES = 2 * 8 + CLASS_COUNT * (4 + 8 + 4 + 8)
PROMISE_HEAD_BYTES_MAX = 4 * KIB  # All else in it, of as many lanes as there may be.

_COUNTS = struct.Struct("<3I")


def reply_of(kind: FrameKind, outcome: Outcome) -> Message:
    """Return the final message of a request of this kind."""
    match outcome:
        case Found(counts) if kind == FrameKind.PREFETCH:
            return pb.PrefetchReply(counts=_COUNTS.pack(*counts))
        case Found(counts, lease):
            return pb.LookupReply(counts=_COUNTS.pack(*counts), lease=lease)
        case FetchDone(delivered_bytes, _, Shortfall.NONE):
            return pb.FetchDone(delivered_bytes=delivered_bytes)
        case FetchDone(delivered_bytes, counts, reason):
            return pb.FetchDone(
                delivered_bytes=delivered_bytes,
                counts=_COUNTS.pack(*counts),
                reason=int(reason),  # type: ignore[arg-type]
            )
        case KvdError():
            return error_of(outcome)
        case Reserved():
            return pb.ReserveReply(
                reservation=outcome.reservation,
                generation=outcome.generation,
                states=_bytes("<u1", outcome.states),
                slabs=_bytes("<u4", outcome.slabs),
                offsets=_bytes("<u8", outcome.offsets),
                reason=int(outcome.reason),
            )
        case Sealed(states, durable):
            return pb.SealReply(states=_bytes("<u1", states), durable=durable)
        case Released():
            return pb.ReleaseReply()
        case Renewed(lease_ttl_ns):
            return pb.RenewReply(lease_ms=lease_ttl_ns // NS_PER_MS)
        case Aborted():
            return pb.AbortReply()
        case Cleared(chunks, held):
            return pb.ClearReply(chunks=chunks, held=held)
        case KeyspaceGranted(keyspace, digest):
            return pb.RegisterKeyspaceReply(keyspace=keyspace, digest=digest)
    raise AssertionError(f"no such outcome: {outcome}")


def error_of(error: KvdError) -> pb.Error:
    return pb.Error(
        kind=int(error.kind), message=error.message, retry_after_ms=error.retry_after_ms
    )


def promise_of(promise: Promise) -> pb.Promise:
    return pb.Promise(
        lease=promise.lease,
        counts=_COUNTS.pack(*promise.counts),
        lanes=[_lane(columns) for columns in promise.lanes],
        reason=int(promise.reason),
        lease_ms=promise.lease_ttl_ns // NS_PER_MS,
        ready=b"" if promise.ready == WHOLES else bytes(promise.ready),
    )


def ready_of(ready: tuple[int, int, int]) -> pb.Ready:
    return pb.Ready(ready=bytes(ready))


def _lane(columns: LaneColumns) -> pb.LanePromise:
    return pb.LanePromise(
        generations=_bytes("<u8", columns.generations),
        profiles=_bytes("<u8", columns.profiles),
        slabs=_bytes("<u4", *columns.slabs),
        offsets=_bytes("<u8", *columns.offsets),
        sizes=_bytes("<u4", *columns.sizes),
        roots=_bytes("<u8", *columns.roots),
    )


def _bytes(dtype: str, *arrays: np.ndarray) -> bytes:
    return b"".join([array.astype(dtype, copy=False).tobytes() for array in arrays])
