"""Keeps one daemon connected: first try, reconnects with backoff, one line about what is wrong.

Owns which session is current. Its coroutines run on the I/O thread; `session` is read by any.
"""

import asyncio
import contextlib
import errno
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from kvd.client.doors import closed_door
from kvd.client.outcomes import Counters
from kvd.client.session import Session
from kvd.client.thread import IoThread, io_thread, watch_forks
from kvd.errors import ErrorKind, KvdError

_JITTER = np.random.default_rng()
_BACKOFF_FIRST_S = 0.05
_BACKOFF_MAX_S = 2.0
# A daemon that is busy with starting or ending, or was killed while it took the connection.
_PASSING = (ErrorKind.UNAVAILABLE, ErrorKind.LOST)
_REFUSED_BACKOFF_S = 5.0  # Somebody must change something first; look again now and then.


class Link:
    def __init__(self, directory: Path, name: str) -> None:
        self.counters = Counters()
        self.reason = "connecting"
        self.epoch = 0
        self.daemon = ""
        self.directory, self._name = directory, name
        self._session: Session | None = None
        self._thread: IoThread | None = None
        self._task: asyncio.Task[None] | None = None
        self._changed: asyncio.Event | None = None
        self._closed = False
        watch_forks(self)
        self.thread()

    def thread(self) -> IoThread:
        """Return the I/O thread, with this link kept up on it."""
        thread = self._thread
        if thread is None:
            self._thread = thread = io_thread()
            thread.post(self._start)
        return thread

    def post(self, callback: Callable[..., None], *arguments: object) -> None:
        """Run a function on the I/O thread; in a child that has made no link yet, nowhere."""
        if self._thread is not None:
            self._thread.post(callback, *arguments)

    def session(self) -> Session:
        """Return the live session, or raise UNAVAILABLE."""
        session = self._session
        if session is None or not session.alive:
            raise KvdError(ErrorKind.UNAVAILABLE, self.reason or "connecting")
        return session

    @property
    def connected(self) -> bool:
        session = self._session
        return session is not None and session.alive

    @property
    def current(self) -> Session | None:
        """The session, alive or coming or going; None before the first and after a fork."""
        return self._session

    async def wait_connected(self, timeout_s: float) -> bool:
        """Wait for a connection; return whether there is one."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while not self.connected and not self._closed:
                    assert self._changed is not None
                    await self._changed.wait()
        return self.connected

    def start_closing(self) -> None:
        """Close without waiting; on the I/O thread."""
        asyncio.get_running_loop().create_task(self.close())

    async def close(self) -> None:
        """Leave the daemon; every answer is a miss from here on."""
        self._closed, self.reason = True, "the client is closed"
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._session is not None:
            self._session.slabs.detach_all()
            await asyncio.sleep(0)  # The answers go out with the loop's next turn.
            self._session.end(KvdError(ErrorKind.LOST, self.reason))

    def after_fork(self) -> None:
        """In the child: close the parent's sockets; a new link is made when it is next asked."""
        if self._session is not None:
            self._session.after_fork()
        self._session = self._thread = self._task = self._changed = None
        self.reason = "forked; connecting"

    def _start(self) -> None:
        if not self._closed:
            self._changed = asyncio.Event()
            self._task = asyncio.get_running_loop().create_task(self._keep())

    async def _keep(self) -> None:
        delay_s = _BACKOFF_FIRST_S
        while True:
            ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            # Known before it is connected, so that a fork at any moment closes its sockets.
            self._session = session = Session(self.directory, partial(self._ended, ended))
            try:
                await session.connect(self._name)
            except (OSError, KvdError) as error:
                self.reason = _explained(self.directory, error)
                refused = isinstance(error, KvdError) and error.kind not in _PASSING
                await _pause(_REFUSED_BACKOFF_S if refused else delay_s)
                delay_s = min(2 * delay_s, _BACKOFF_MAX_S)
                continue
            delay_s = _BACKOFF_FIRST_S
            self._welcome(session)
            await ended

    def _ended(self, ended: "asyncio.Future[None]", error: KvdError) -> None:
        if not ended.done():  # Cancelled, when it is the client that leaves.
            self.reason = f"disconnected: {error.message}"
            ended.set_result(None)

    def _welcome(self, session: Session) -> None:
        self.epoch, self.daemon = session.welcome.epoch, session.welcome.daemon
        self.reason = ""
        self.counters.connects += 1
        assert self._changed is not None
        self._changed.set()
        self._changed = asyncio.Event()


def _explained(where: Path, error: OSError | KvdError) -> str:
    """Return one line: what is wrong, and what to do about it."""
    if isinstance(error, KvdError):
        match error.kind:
            case ErrorKind.INCOMPATIBLE:
                return f"{error.message} (use the same kvd version for client and daemon)"
            case ErrorKind.DENIED:
                return f"{error.message} (check whose directory {where} is)"
        return error.message
    match error.errno:
        case errno.ENOENT:
            return f"no daemon at {where} (start it: kvd serve)"
        case errno.ECONNREFUSED:
            return f"no daemon listens at {where} (start it: kvd serve)"
        case errno.EACCES:
            return f"no permission: {closed_door(where)}"
        case errno.EMFILE:
            return "this process is at its limit of open files (raise ulimit -n)"
    return f"cannot connect to {where}: {error}"


async def _pause(seconds: float) -> None:
    await asyncio.sleep(seconds * _JITTER.uniform(0.5, 1.0))
