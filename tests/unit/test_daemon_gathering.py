"""Events that come from other threads while the loop is busy: in order, and reads together."""

import asyncio
import threading

import numpy as np

from kvd.core.disk_events import Committed, StripsRead
from kvd.daemon.crossing import Crossing
from kvd.daemon.gathering import Gathering, joined
from kvd.errors import Fault, FaultKind

IO = Fault(FaultKind.IO, "injected")


def read(batch: int, *items: int, fault: Fault | None = None, busy: bool = False) -> StripsRead:
    kinds = np.full(len(items), 0 if fault is None else fault.kind, np.uint8)
    return StripsRead(batch, np.array(items), kinds, (fault,) if fault else (), busy)


def told(events: list) -> list:
    return [
        (e.batch, e.items.tolist(), e.kinds.tolist(), e.busy) if isinstance(e, StripsRead) else e
        for e in events
    ]


def test_neighbours_of_one_batch_become_one() -> None:
    events = [read(1, 0, 1), read(1, 5), read(2, 0), read(1, 2)]
    assert told(joined(events)) == [
        (1, [0, 1, 5], [0, 0, 0], False), (2, [0], [0], False), (1, [2], [0], False)
    ]  # fmt: skip


def test_faults_and_hung_reads_stay_apart_and_in_their_place() -> None:
    commit = Committed(7, None)
    events = [
        read(1, 0), read(1, 1, fault=IO), read(1, 2), commit, read(1, 3),
        read(1, 4, fault=IO, busy=True),
    ]  # fmt: skip
    assert told(joined(events)) == told(events)


def test_whatever_many_threads_post_is_taken_once_and_in_the_order_of_each() -> None:
    taken: list[StripsRead] = []

    async def main() -> None:
        done = asyncio.Event()

        def take(event: StripsRead) -> None:
            taken.append(event)
            if sum(len(e.items) for e in taken) == 4 * 500:
                done.set()

        gathering = Gathering(Crossing(asyncio.get_running_loop()), take)

        def post(batch: int) -> None:
            for item in range(500):
                gathering.post(read(batch, item))

        threads = [threading.Thread(target=post, args=(batch,)) for batch in range(4)]
        for thread in threads:
            thread.start()
        await asyncio.wait_for(done.wait(), 30)
        for thread in threads:
            thread.join()

    asyncio.run(main())
    for batch in range(4):
        items = [item for e in taken if e.batch == batch for item in e.items.tolist()]
        assert items == list(range(500))
