"""A Reserve and its answer: checked columns, the way to the places in slabs, its end."""

import asyncio
import contextlib
from collections.abc import Iterator

import numpy as np

from kvd.client.messages import NOT_ADMITTED, column, garbage
from kvd.client.outcomes import Reason
from kvd.client.session import Session
from kvd.client.slabs import Slab
from kvd.client.thread import IoThread
from kvd.errors import ErrorKind, KvdError
from kvd.limits import PAGE_BYTES
from kvd.types import CLASS_COUNT
from kvd.v1 import kvd_pb2 as pb
from kvd.wire import FrameKind

_SLAB_SECONDS = 2.0  # For a descriptor that was sent before the answer.


class Reservation:
    """Chunks [0, admitted) of what was asked for are had already or to be filled."""

    def __init__(self, reply: pb.ReserveReply, count: int, *, durable: bool = False) -> None:
        """`durable`: asked for so. Then it may be of nothing to fill: what is had is not on disk.

        Without a number, what is had is.
        """
        self.number, self.generation = reply.reservation, reply.generation
        self._states = column(reply.states, "<u1", count, "states")
        places = count * CLASS_COUNT
        shape = (count, CLASS_COUNT)
        self._names = column(reply.slabs, "<u4", places, "slabs").reshape(shape)
        self._offsets = column(reply.offsets, "<u8", places, "offsets").reshape(shape)
        if count and not pb.HAVE <= self._states.min() <= self._states.max() <= pb.NOT_ADMITTED:
            raise garbage(f"reserve states {sorted(set(self._states.tolist()))}")
        refused = np.flatnonzero(self._states == pb.NOT_ADMITTED)
        self.admitted = int(refused[0]) if len(refused) else count
        self.reason = Reason.NONE
        if len(refused):
            self.reason = NOT_ADMITTED.get(reply.reason, Reason.UNAVAILABLE)
        self._open = (self._states[: self.admitted] != pb.HAVE).tolist()
        if any(self._open) != (self.number != 0) and not (self.number and durable):
            raise garbage(f"reservation {self.number} of {sum(self._open)} chunks")
        self._places = np.zeros(shape, np.uint64)
        self._slabs: dict[int, Slab] = {}

    @property
    def had(self) -> int:
        return self.admitted - sum(self._open)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to fill."""
        return not any(self._open)

    def groups(self, sizes: np.ndarray, size_bytes: int) -> list[slice]:
        """Return runs of chunks to be filled, each of about size_bytes; `sizes` u32[n, 3]."""
        sums = sizes[: self.admitted].sum(axis=1, dtype=np.int64).tolist()
        groups: list[slice] = []
        begin, size = -1, 0
        for chunk, is_open in enumerate(self._open):
            if begin >= 0 and (not is_open or size >= size_bytes):
                groups.append(slice(begin, chunk))
                begin, size = -1, 0
            if is_open:
                begin, size = (chunk if begin < 0 else begin), size + sums[chunk]
        if begin >= 0:
            groups.append(slice(begin, self.admitted))
        return groups

    def find_slabs(
        self, thread: IoThread, session: Session, sizes: np.ndarray, timeout_s: float
    ) -> None:
        """Wait for the slabs named and make their places ready; `sizes` u32[admitted, 3].

        Raise KvdError when one does not come, or a place lies outside.
        """
        names = sorted(set(self._names[: self.admitted][self._open].reshape(-1).tolist()))
        thread.call(self._find(session, names, min(timeout_s, _SLAB_SECONDS)))
        is_open = np.zeros(len(self._names), np.bool_)
        is_open[: self.admitted] = self._open
        for name, slab in self._slabs.items():
            here = (self._names == name) & is_open[:, None]
            offsets, lengths = self._offsets[here], sizes[here[: self.admitted]]
            size = np.uint64(slab.size)
            inside = lengths <= size - np.minimum(offsets, size)
            if not inside.all() or (offsets % PAGE_BYTES).any():
                raise garbage(f"a place outside of slab {name} of {slab.size} bytes")
            slab.populate(offsets, lengths)
            self._places[here] = offsets + np.uint64(slab.address)

    async def _find(self, session: Session, names: list[int], timeout_s: float) -> None:
        deadline = asyncio.get_running_loop().time() + timeout_s
        for name in names:
            self._slabs[name] = await session.slabs.get(name, deadline, writable=True)

    @contextlib.contextmanager
    def writing(self, group: slice) -> Iterator[np.ndarray]:
        """Yield addresses u64[n, 3] of a group's places, which may be written meanwhile."""
        with contextlib.ExitStack() as writes:
            for name, slab in self._slabs.items():
                if not slab.begin_write():
                    raise KvdError(ErrorKind.UNAVAILABLE, f"slab {name} was asked back")
                writes.callback(slab.end_write)
            yield self._places[group]


class Reserving:
    """One Reserve on its way, and what was reserved with it until that is ended.

    `ask` and `abort` run on the I/O thread, in any order: who asked may have been interrupted.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._reply: pb.ReserveReply | None = None
        self._over = False

    async def ask(self, message: pb.ReserveRequest, timeout_s: float) -> pb.ReserveReply:
        """Return the answer; raise KvdError without one."""
        reply = await self._session.requests.request(FrameKind.RESERVE, message, timeout_s)
        assert isinstance(reply, pb.ReserveReply)
        self._reply = reply
        if self._over:
            self.abort()
        return reply

    @property
    def is_over(self) -> bool:
        """Whether nothing is reserved any more, nor may be."""
        return self._over or (self._reply is not None and not self._reply.reservation)

    def sealed(self) -> None:
        """Its last seal is on its way, which ends it."""
        self._over = True

    def abort(self) -> None:
        """End it unsealed, now or when it is answered."""
        self._over = True
        reply, self._reply = self._reply, None
        if reply is None or not reply.reservation or not self._session.alive:
            return
        message = pb.AbortRequest(reservation=reply.reservation)
        self._session.requests.tell(FrameKind.ABORT, message)
        # A daemon takes no slab back while places in it are reserved: what was asked back
        # meanwhile was said to be free in vain.
        named = np.frombuffer(reply.slabs[: len(reply.slabs) // 4 * 4], "<u4")
        for number in np.unique(named[named > 0]).tolist():
            slab = self._session.slabs.find(number)
            if slab is None or not slab.writable:
                self._session.detached(number)
