"""The door between sessions and the daemon: wishes and news go in, answers come out by a link.

What rpc knows of the daemon is here, and what the daemon knows of rpc. Everything here is called
on the loop's thread.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from kvd.core.effects import (
    DropSlab,
    LeaseLost,
    Outcome,
    Promise,
    RecallSlab,
    TellDraining,
    TellReady,
)
from kvd.core.events import Event
from kvd.daemon.desk import Desk
from kvd.errors import KvdError
from kvd.limits import Limits
from kvd.observe.observer import Observer
from kvd.observe.samples import Reading

Notice = RecallSlab | DropSlab | LeaseLost | TellReady | TellDraining


@dataclass(frozen=True, slots=True)
class Place:
    """Where a piece belongs: so many bytes from `offset` of one strip of a fetch."""

    plane_class: int
    lane: int
    chunk: int
    offset: int


class PieceSink(Protocol):
    """Where the pieces of one fetch go."""

    def has_room(self) -> bool:
        """Return whether the reader takes a piece now; `wake` is called when that has changed."""
        ...

    def has_turn(self) -> bool:
        """Return whether a link that is shared takes a piece now; `wake` is called when it does.

        A turn that is not used goes to the next one: so ask only when the piece would go.
        """
        ...

    def send(self, place: Place, data: memoryview) -> None:
        """Take a piece, copying it: its extent may be reused when this returns."""
        ...


class Link(Protocol):
    """One session, as the daemon sees it. Methods raise OSError when the peer cannot be reached."""

    def give_slab(
        self, slab: int, size_bytes: int, find: Callable[[], int], *, writable: bool
    ) -> None:
        """Send the descriptor that `find` returns, which stays the caller's.

        One for writing may be closed when this returns. One for reading is looked up when it is
        sent, so that none is held meanwhile; `find` raises KeyError once the slab is destroyed.
        """
        ...

    def notify(self, notice: Notice) -> None: ...

    def answer(self, request: int, outcome: Outcome) -> None:
        """Give the final answer of a wish; nothing happens when nobody waits for it any more."""
        ...

    def promise(self, request: int, promise: Promise) -> None: ...

    def open_sink(self, request: int, wake: Callable[[], None]) -> PieceSink: ...

    def is_idle(self) -> bool:
        """Return whether no wish is unanswered and nothing waits to be written."""
        ...

    def close(self, error: KvdError) -> None:
        """Say why, then close both sockets; the session ends when that is done."""
        ...


@dataclass(frozen=True, slots=True)
class Admitted:
    """What a new session is told; the caller closes the descriptor."""

    session: int
    epoch: int
    page_descriptor: int


class Inbox(Protocol):
    limits: Limits
    observer: Observer
    desk: Desk
    epoch: int

    def now_ns(self) -> int: ...

    def next_request(self) -> int:
        """Return an id that no wish had before."""
        ...

    def post(self, event: Event) -> None:
        """Have the core take in one event and its effects carried out, before this returns.

        From within an effect it is taken in later, after the effects under way.
        """
        ...

    def admit(self, tenant: str, link: Link) -> Admitted:
        """Begin a session; raise OSError when it cannot have a control page."""
        ...

    def end(self, session: int, *, gone: bool = False) -> None:
        """End a session whose sockets are closed; its link is not called any more.

        `gone`: its process is not there any more; said behind the end, or in place of it.
        """
        ...

    def is_draining(self) -> bool: ...

    def read_metrics(self) -> Reading:
        """Return what the metrics are now, for `observer.expand`."""
        ...
