"""What a Reserve was answered with: checked columns, and the way to the places in slabs."""

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
from kvd.types import CLASS_COUNT
from kvd.v1 import kvd_pb2 as pb

_SLAB_SECONDS = 2.0  # For a descriptor that was sent before the answer.


class Reservation:
    """Chunks [0, admitted) of what was asked for are had already or to be filled."""

    def __init__(self, reply: pb.ReserveReply, count: int) -> None:
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
        if any(self._open) != (self.number != 0):
            raise garbage(f"reservation {self.number} of {sum(self._open)} chunks")
        self._slabs: dict[int, Slab] = {}

    @property
    def had(self) -> int:
        return self.admitted - sum(self._open)

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

    def find_slabs(self, thread: IoThread, session: Session, timeout_s: float) -> None:
        """Wait for the slabs named; raise KvdError when one does not come."""
        numbers = np.unique(self._names[: self.admitted][self._open]).tolist()
        thread.call(self._find(session, numbers, min(timeout_s, _SLAB_SECONDS)))

    async def _find(self, session: Session, numbers: list[int], timeout_s: float) -> None:
        deadline = asyncio.get_running_loop().time() + timeout_s
        for number in numbers:
            self._slabs[number] = await session.slabs.get(number, deadline, writable=True)

    @contextlib.contextmanager
    def writing(self, group: slice, sizes: np.ndarray) -> Iterator[np.ndarray]:
        """Yield addresses u64[n, 3] of a group's places, which may be written meanwhile."""
        names, offsets = self._names[group], self._offsets[group]
        places = np.empty(names.shape, np.uint64)
        with contextlib.ExitStack() as writes:
            for number in np.unique(names).tolist():
                slab = self._slabs[number]
                here = names == number
                room = np.uint64(slab.size) - np.minimum(offsets[here], np.uint64(slab.size))
                if (sizes[here] > room).any():
                    raise garbage(f"a place outside of slab {number} of {slab.size} bytes")
                if not slab.begin_write():
                    raise KvdError(ErrorKind.UNAVAILABLE, f"slab {number} was asked back")
                writes.callback(slab.end_write)
                places[here] = offsets[here] + np.uint64(slab.address)
            yield places

    def detach_again(self, session: Session) -> None:
        """Say of slabs asked back meanwhile that they are free, which counted for nothing before.

        A daemon does not take a slab back while places in it are reserved.
        """
        for number in np.unique(self._names[: self.admitted][self._open]).tolist():
            slab = self._slabs.get(number)
            if slab is None or not slab.writable:
                session.detached(number)
