"""The SDK's private event loop: one thread per process, started on first use.

Owns the thread and what a fork does to it. All sockets live on it; it runs no caller's code but
arrival callbacks.
"""

import asyncio
import atexit
import concurrent.futures
import os
import threading
import weakref
from collections.abc import Callable, Coroutine
from typing import Any, Generic, Protocol, TypeVar

import uvloop

from kvd.errors import ErrorKind, KvdError

T = TypeVar("T")

_EXIT_SECONDS = 1.0


class Forkable(Protocol):
    def after_fork(self) -> None:
        """In the child: close inherited descriptors, take no lock, touch no loop."""
        ...


class IoThread:
    """A running event loop and the way into it from other threads."""

    def __init__(self) -> None:
        self.loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="kvd-io", daemon=True)
        self._thread.start()

    def is_current(self) -> bool:
        return threading.current_thread() is self._thread

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end and return its result; it bounds its own time."""
        assert not self.is_current(), "a blocking call on the I/O thread would wait for itself"
        handoff = _Handoff(coroutine)
        self.post(handoff.start, self.loop)
        try:
            while not handoff.gate.acquire(timeout=_EXIT_SECONDS):
                if not self._thread.is_alive():
                    raise KvdError(ErrorKind.UNAVAILABLE, "the process is exiting")
        finally:
            # Left early by an interrupt, the coroutine must still undo what it holds.
            if handoff.task is None or not handoff.task.done():
                self.post(handoff.cancel)
        return handoff.task.result()

    def wait(self, gate: "Gate[T]") -> T:
        """Return what a gate was opened with, which the loop is sure to do in bounded time."""
        assert not self.is_current(), "a blocking call on the I/O thread would wait for itself"
        while not gate.wait(_EXIT_SECONDS):
            if not self._thread.is_alive():
                raise KvdError(ErrorKind.UNAVAILABLE, "the process is exiting")
        return gate.answer

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> "concurrent.futures.Future[T]":
        """Run a coroutine; its result is waited for elsewhere."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def post(self, callback: Any, *arguments: Any) -> None:
        """Run a function on the loop soon; nothing happens when the loop has ended."""
        self.loop.call_soon_threadsafe(callback, *arguments)

    def stop(self) -> None:
        """End the loop within a second, whatever still runs on it."""
        self.post(lambda: self.loop.create_task(_wind_up(self.loop)))
        self._thread.join(_EXIT_SECONDS)


class Gate(Generic[T]):
    """One answer on its way from the loop to one thread that waits for it."""

    __slots__ = ("answer", "_lock", "_opened", "_unwanted")

    def __init__(self) -> None:
        self.answer: T
        self._lock = threading.Lock()
        self._lock.acquire()
        self._opened = False
        self._unwanted: Callable[[T], None] | None = None

    def open(self, answer: T) -> None:
        self.answer, self._opened = answer, True
        self._lock.release()
        if self._unwanted is not None:
            self._unwanted(answer)

    def leave(self, unwanted: Callable[[T], None]) -> None:
        """Nobody waits any more: the answer goes there, now or when it comes. On the loop."""
        if self._opened:
            unwanted(self.answer)
        else:
            self._unwanted = unwanted

    @property
    def is_open(self) -> bool:
        return self._opened

    def wait(self, timeout_s: float) -> bool:
        """Return whether it is open by then; for the one thread that waits."""
        return self._opened or self._lock.acquire(timeout=timeout_s)


def answer_for(coroutine: Coroutine[Any, Any, None], failed: Callable[[KvdError], None]) -> None:
    """Run a coroutine on this loop that is to answer somebody, who waits for it without a bound.

    What it raises, a bug or arguments that no message holds, is his answer then.
    """

    def ended(task: "asyncio.Task[None]") -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            failed(KvdError(ErrorKind.INVALID, f"{type(error).__name__}: {error}"))

    asyncio.get_running_loop().create_task(coroutine).add_done_callback(ended)


class _Handoff:
    """One coroutine on its way to the loop; the gate opens when it has ended."""

    __slots__ = ("coroutine", "gate", "task")

    def __init__(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        self.coroutine = coroutine
        self.task: asyncio.Task[Any] | None = None
        self.gate = threading.Lock()
        self.gate.acquire()

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self.task = loop.create_task(self.coroutine)
        self.task.add_done_callback(self._done)

    def cancel(self) -> None:
        if self.task is not None:
            self.task.cancel()

    def _done(self, task: "asyncio.Task[Any]") -> None:
        self.gate.release()


async def _wind_up(loop: asyncio.AbstractEventLoop) -> None:
    others = asyncio.all_tasks(loop) - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    loop.stop()


_lock = threading.Lock()
_current: IoThread | None = None
_inherited: list[IoThread] = []  # A parent's loops: freeing them would disturb its descriptors.
_forkable: "weakref.WeakSet[Forkable]" = weakref.WeakSet()


def io_thread() -> IoThread:
    """Return this process's I/O thread, started on the first call."""
    global _current
    thread = _current
    if thread is None:
        with _lock:
            if _current is None:
                _current = IoThread()
            thread = _current
    return thread


def watch_forks(owner: Forkable) -> None:
    """Have `owner.after_fork` called in every forked child, while the owner lives."""
    _forkable.add(owner)


def _in_child() -> None:
    global _current, _lock
    if _current is not None:
        _inherited.append(_current)
    _current, _lock = None, threading.Lock()
    for owner in list(_forkable):
        owner.after_fork()


def _at_exit() -> None:
    if _current is not None:
        _current.stop()


os.register_at_fork(after_in_child=_in_child)
atexit.register(_at_exit)
