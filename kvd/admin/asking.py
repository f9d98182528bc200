"""An operator's connection: calls with a deadline, and every failure as one line with a remedy."""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
from google.protobuf.message import Message

from kvd.errors import KIND_METADATA, ErrorKind, KvdError
from kvd.v1 import admin_pb2_grpc
from kvd.wire import ADMIN_REPLY_BYTES_MAX

TIMEOUT_SECONDS = 5.0


class NoDaemon(KvdError):
    """Nobody answered: no daemon, one that hangs, or one that may not be asked."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorKind.UNAVAILABLE, message)


class AdminClient:
    def __init__(self, path: Path, timeout_s: float = TIMEOUT_SECONDS) -> None:
        """Connect to a daemon's admin socket; raise NoDaemon when there can be none behind it."""
        _check_socket(path)
        self._path, self._timeout_s = path, timeout_s
        limit = ("grpc.max_receive_message_length", ADMIN_REPLY_BYTES_MAX)
        options = [limit, ("grpc.enable_retries", 0)]
        self._channel = grpc.insecure_channel(f"unix:{path}", options)
        self._stub = admin_pb2_grpc.KvdAdminStub(self._channel)

    def __enter__(self) -> "AdminClient":
        return self

    def __exit__(self, *failure: object) -> None:
        self._channel.close()

    def call(self, name: str, request: Message, timeout_s: float = 0) -> Message:
        """Return the reply; raise KvdError of one line otherwise."""
        with self._explained(name, timeout_s or self._timeout_s):
            return getattr(self._stub, name)(request, timeout=timeout_s or self._timeout_s)

    def stream(self, name: str, request: Message) -> Iterator[Message]:
        """Yield replies until the daemon ends the stream, or itself."""
        with self._explained(name, self._timeout_s):
            yield from getattr(self._stub, name)(request)

    @contextmanager
    def _explained(self, name: str, timeout_s: float) -> Iterator[None]:
        try:
            yield
        except grpc.RpcError as error:
            raise self._named(error, name, timeout_s) from None

    def _hung(self, timeout_s: float) -> str:
        return (
            f"the daemon behind {self._path} did not answer within {timeout_s:g} s: it hangs or "
            "is very busy; see its log (journalctl -u kvd), or give --timeout"
        )

    def _named(self, error: grpc.RpcError, name: str, timeout_s: float) -> KvdError:
        code, details = error.code(), error.details() or ""
        own = dict(error.trailing_metadata() or ()).get(KIND_METADATA)
        if own is not None:
            kind = ErrorKind.__members__.get(own, ErrorKind.UNAVAILABLE)
            return KvdError(kind, details or own)
        # The transport's, or of a daemon that does not name its kinds yet.
        match code:
            case grpc.StatusCode.DEADLINE_EXCEEDED:
                return NoDaemon(self._hung(timeout_s))
            case grpc.StatusCode.UNIMPLEMENTED:
                what = f"this daemon does not know {name}: it is older than this tool; upgrade it"
                return KvdError(ErrorKind.INCOMPATIBLE, what)
            case grpc.StatusCode.UNAVAILABLE if "timed out" in details:
                return NoDaemon(self._hung(timeout_s))
            case grpc.StatusCode.UNAVAILABLE if "draining" not in details:
                return NoDaemon(_nobody(self._path, details))
        known = {"INVALID_ARGUMENT": ErrorKind.INVALID, "RESOURCE_EXHAUSTED": ErrorKind.OVERLOADED}
        return KvdError(known.get(code.name, ErrorKind.UNAVAILABLE), details or code.name)


def _nobody(path: Path, why: str) -> str:
    return (
        f"no daemon answers at {path} ({why}); start it (systemctl start kvd), or name another "
        "--directory"
    )


def _check_socket(path: Path) -> None:
    """Raise NoDaemon for a path that cannot be connected to, before grpc says it in its own way."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        raise NoDaemon(_nobody(path, "there is no such socket")) from None
    except OSError as error:
        raise NoDaemon(_not_allowed(path, error.strerror or "")) from None
    if not stat.S_ISSOCK(mode):
        raise NoDaemon(f"{path} is not a socket; name the daemon's --directory")
    if not os.access(path, os.W_OK, effective_ids=True):
        raise NoDaemon(_not_allowed(path, "permission denied"))


def _not_allowed(path: Path, why: str) -> str:
    return (
        f"{path} may not be opened by uid {os.geteuid()} ({why}); run this as root or as the "
        "daemon's user (sudo -u kvd kvd-admin ...)"
    )
