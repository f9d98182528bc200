"""A stream gives everybody his turn, however much one client sends at once."""

import asyncio
import contextlib
import socket
from collections import Counter

import pytest
import uvloop

from kvd.rpc.frames import FrameError, pack_frame
from kvd.rpc.stream import FRAMES_AT_ONCE, MessageStream
from kvd.wire import FrameKind

SENT = 40 * FRAMES_AT_ONCE + 3
FLOOD = b"".join(pack_frame(FrameKind.CREDIT, n, b"") for n in range(SENT))


class Recorder:
    """Notes the frames, and in which round of the loop each came."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.rounds: Counter[int] = Counter()
        self.round = 0
        self.fail_at = self.abort_at = -1
        self.stream: MessageStream | None = None
        self.all_came, self.closed = asyncio.Event(), asyncio.Event()

    def on_frame(self, kind: FrameKind, number: int, body: bytes) -> None:
        self.numbers.append(number)
        self.rounds[self.round] += 1
        if number == self.fail_at:
            raise FrameError(number, "no more is understood")
        if number == self.abort_at:
            self.stream.abort()
        if number == SENT - 1:
            self.all_came.set()

    def on_room(self) -> None:
        pass

    def on_closed(self) -> None:
        self.closed.set()

    async def count_rounds(self) -> None:
        while True:
            self.round += 1
            await asyncio.sleep(0)


@pytest.fixture
def flooded():
    """Run what a test does with a recorder, and with a peer that has sent the flood."""

    def run(act) -> None:
        async def main() -> None:
            loop, recorder = asyncio.get_running_loop(), Recorder()
            here, there = socket.socketpair()
            there.setblocking(False)

            def make_stream() -> MessageStream:
                recorder.stream = MessageStream(
                    lambda stream: recorder, lambda end, action, *args: action(*args)
                )
                return recorder.stream

            counting = asyncio.create_task(recorder.count_rounds())
            await loop.connect_accepted_socket(make_stream, here)
            sending = asyncio.create_task(loop.sock_sendall(there, FLOOD))
            async with asyncio.timeout(20):
                await act(recorder, there)
            for task in (counting, sending):
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, OSError):
                    await task
            recorder.stream.abort()
            there.close()

        uvloop.run(main())

    return run


def test_a_flood_leaves_the_loop_to_others_between_turns(flooded):
    async def act(recorder: Recorder, there: socket.socket) -> None:
        await recorder.all_came.wait()
        assert recorder.numbers == list(range(SENT))
        assert max(recorder.rounds.values()) <= FRAMES_AT_ONCE

    flooded(act)


def test_a_client_that_leaves_behind_its_flood_is_heard_to_the_end(flooded):
    async def act(recorder: Recorder, there: socket.socket) -> None:
        await recorder.all_came.wait()
        there.close()
        await recorder.closed.wait()
        assert len(recorder.numbers) == SENT

    flooded(act)


@pytest.mark.parametrize("at", [0, FRAMES_AT_ONCE - 1, FRAMES_AT_ONCE, 3 * FRAMES_AT_ONCE + 1])
@pytest.mark.parametrize("how", ["fail_at", "abort_at"])
def test_nothing_is_taken_in_behind_an_end(flooded, how, at):
    async def act(recorder: Recorder, there: socket.socket) -> None:
        setattr(recorder, how, at)
        await recorder.closed.wait()
        assert recorder.numbers == list(range(at + 1))

    flooded(act)
