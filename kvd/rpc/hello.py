"""What both doors say first: which versions and features meet, and the bounds that hold."""

from importlib import metadata

from kvd.clock import NS_PER_MS
from kvd.errors import ErrorKind, KvdError
from kvd.limits import PROTOCOL_MAX, PROTOCOL_MIN, Limits
from kvd.rpc.session import Session
from kvd.rpc.wishes import invalid
from kvd.v1 import kvd_pb2 as pb
from kvd.wire import FEATURES

CLIENT_NAME_BYTES_MAX = 256


def daemon_version() -> str:
    try:
        return "kvd " + metadata.version("kvd")
    except metadata.PackageNotFoundError:
        return "kvd (not installed)"


_DAEMON = daemon_version()


def check_hello(hello: pb.Hello) -> None:
    """Raise INCOMPATIBLE, naming both ranges, or INVALID when a hello cannot be answered."""
    theirs = f"{hello.protocol_min} to {hello.protocol_max}"
    if not 1 <= hello.protocol_min <= hello.protocol_max:
        raise invalid(f"the protocol range {theirs} is empty or begins below 1")
    if hello.protocol_min > PROTOCOL_MAX or hello.protocol_max < PROTOCOL_MIN:
        raise KvdError(
            ErrorKind.INCOMPATIBLE,
            f"the client speaks protocols {theirs}, this daemon {PROTOCOL_MIN} to {PROTOCOL_MAX}",
        )
    size = len(hello.client.encode())
    if size > CLIENT_NAME_BYTES_MAX:
        raise invalid(f"hello.client has {size} bytes, the limit is {CLIENT_NAME_BYTES_MAX}")


def welcome_of(hello: pb.Hello, session: Session, epoch: int, limits: Limits) -> pb.Welcome:
    """Return what a new session is told; unknown feature bits of a later client fall away."""
    return pb.Welcome(
        protocol=min(hello.protocol_max, PROTOCOL_MAX),
        features=hello.features & FEATURES,
        session=session.id,
        token=session.token,
        epoch=epoch,
        daemon=_DAEMON,
        frame_bytes_max=limits.frame_bytes_max,
        bounds=bounds_of(limits),
    )


def bounds_of(limits: Limits) -> pb.Bounds:
    return pb.Bounds(
        piece_bytes_max=limits.piece_bytes_max,
        chunks_per_request_max=limits.chunks_per_request_max,
        lanes_per_request_max=limits.lanes_per_request_max,
        keyspaces_per_session_max=limits.keyspaces_per_session_max,
        requests_per_session_max=limits.requests_per_session_max,
        leases_per_session_max=limits.leases_per_session_max,
        lease_ms=limits.lease_ttl_ns // NS_PER_MS,
        deadline_ms=limits.deadline_ns // NS_PER_MS,
        deadline_ms_max=limits.deadline_ns_max // NS_PER_MS,
    )
