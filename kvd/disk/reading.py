"""Threads that read, a few for each data directory, and the deadlines of what they read.

A read that hangs costs its waiter the deadline and nobody else anything: its thread is replaced,
within a bound, and its memory is reported busy until the thread comes back.
"""

import threading
from collections import deque
from dataclasses import dataclass, field
from itertools import count

import numpy as np

from kvd.clock import NS_PER_S, Clock
from kvd.disk.carrier import Carrier
from kvd.disk.contract import ReadReleased, Report, StripsRead
from kvd.disk.deadlines import Deadlines
from kvd.disk.pieces import Verdicts
from kvd.disk.read_jobs import Job, JobState, ReadBatch, cut, read_job
from kvd.disk.segments import SegmentFiles
from kvd.errors import Fault, FaultKind
from kvd.limits import DiskBounds


@dataclass(slots=True, eq=False)
class _Pool:
    """Of one directory; changed with the lock of `Readers` only."""

    number: int
    segments: SegmentFiles
    woken: threading.Condition
    queue: deque[Job] = field(default_factory=deque)
    queued_bytes: int = 0
    queued_items: int = 0
    threads: set[threading.Thread] = field(default_factory=set)
    running: list[Job] = field(default_factory=list)
    hanging: int = 0


class Readers:
    def __init__(
        self,
        segments: list[SegmentFiles],
        carrier: Carrier,
        clock: Clock,
        bounds: DiskBounds,
        report: Report,
    ) -> None:
        self._carrier, self._clock, self._bounds, self._report = carrier, clock, bounds, report
        self._lock = threading.Lock()
        self._due = Deadlines()
        self._due_changed = threading.Condition(self._lock)
        self._order = count()
        self._stopping = False
        woken = [threading.Condition(self._lock) for _ in segments]
        self._pools = [_Pool(n, *each) for n, each in enumerate(zip(segments, woken, strict=True))]
        with self._lock:
            for pool in self._pools:
                self._staff(pool)
        self._watch = threading.Thread(target=self._watch_due, name="read-deadlines", daemon=True)
        self._watch.start()

    # ---- asked for, from any thread ----

    def read(self, batch: ReadBatch, items: list[int]) -> None:
        """Read `items` of a batch, all of directories that there are."""
        with self._lock:
            for job in cut(batch, items, self._bounds.job_bytes):
                self._admit(self._pools[job.directory], job)
            batch.unanswered = len(batch.jobs)
            if batch.jobs:
                self._due.add(batch)
                self._due_changed.notify()

    def close(self, deadline_ns: int) -> None:
        """Answer everything by the deadline; what still runs then stays busy."""
        fault = Fault(FaultKind.CANCELLED, "the disk is closed")
        with self._lock:
            self._stopping = True
            for pool in self._pools:
                for job in pool.queue:
                    self._give_up(pool, job, fault)
                pool.woken.notify_all()
            self._due_changed.notify()
            threads = [thread for pool in self._pools for thread in pool.threads]
        for thread in [*threads, self._watch]:
            thread.join(max(0.0, (deadline_ns - self._clock.now_ns()) / NS_PER_S))
        with self._lock:
            for pool in self._pools:
                for job in list(pool.running):
                    self._give_up(pool, job, fault)

    # ---- with the lock ----

    def _admit(self, pool: _Pool, job: Job) -> None:
        problem = self._problem(pool, job)
        if problem:
            self._say(job, _all(job, Fault(FaultKind.CANCELLED, problem)))
            return
        job.batch.jobs.append(job)
        pool.queue.append(job)
        pool.queued_bytes += job.size_bytes
        pool.queued_items += len(job.items)
        pool.woken.notify()

    def _problem(self, pool: _Pool, job: Job) -> str:
        bounds = self._bounds
        if self._stopping:
            return "the disk is closed"
        if pool.queue and (
            pool.queued_bytes + job.size_bytes > bounds.read_queue_bytes_max
            or pool.queued_items + len(job.items) > bounds.read_queue_items_max
        ):
            return f"{pool.queued_items} pieces of {pool.queued_bytes} bytes wait to be read"
        return ""

    def _give_up(self, pool: _Pool, job: Job, fault: Fault) -> None:
        """Answer a job that has no answer yet; one that runs is replaced by another thread."""
        match job.state:
            case JobState.QUEUED:
                job.state = JobState.DONE
            case JobState.RUNNING:
                job.state = JobState.HANGING
                pool.running.remove(job)
                pool.hanging += 1
                self._staff(pool)
            case _:
                return
        self._tell(job, _all(job, fault))

    def _tell(self, job: Job, verdicts: Verdicts) -> None:
        job.batch.unanswered -= 1
        if job.batch.unanswered == 0:
            self._due.answered()
        self._say(job, verdicts)

    def _say(self, job: Job, verdicts: Verdicts) -> None:
        # With the lock held: a release must not overtake the answer that it belongs to.
        busy = job.state == JobState.HANGING
        self._report(StripsRead(job.batch.batch, *verdicts.columns(), busy))

    def _wanted(self, pool: _Pool) -> int:
        return self._bounds.read_threads + min(pool.hanging, self._bounds.hung_threads_max)

    def _staff(self, pool: _Pool) -> None:
        """Have as many threads that do not hang as there should be, within the bound on all."""
        while len(pool.threads) < self._wanted(pool) and not self._stopping:
            name = f"read-{pool.number}-{next(self._order)}"
            thread = threading.Thread(target=self._work, args=(pool,), name=name, daemon=True)
            pool.threads.add(thread)
            thread.start()

    # ---- threads ----

    def _work(self, pool: _Pool) -> None:
        while (job := self._take(pool)) is not None:
            verdicts = read_job(job, pool.segments, self._carrier)
            if not self._finish(pool, job, verdicts):
                break
        with self._lock:
            pool.threads.discard(threading.current_thread())

    def _take(self, pool: _Pool) -> Job | None:
        with self._lock:
            while True:
                pool.woken.wait_for(lambda: pool.queue or self._stopping)
                if not pool.queue:
                    return None
                job = pool.queue.popleft()
                pool.queued_bytes -= job.size_bytes
                pool.queued_items -= len(job.items)
                if job.batch.deadline_ns <= self._clock.now_ns():
                    self._give_up(pool, job, _late(pool))
                elif job.state == JobState.QUEUED:
                    job.state = JobState.RUNNING
                    pool.running.append(job)
                    return job

    def _finish(self, pool: _Pool, job: Job, verdicts: Verdicts) -> bool:
        """Report, and return whether the thread is still needed."""
        with self._lock:
            late = job.state == JobState.HANGING
            job.state = JobState.DONE
            if not late:
                pool.running.remove(job)
                self._tell(job, verdicts)
                return True
            pool.hanging -= 1
            self._report(ReadReleased(job.batch.batch, np.array(job.items, np.int64)))
            return len(pool.threads) <= self._wanted(pool)

    def _watch_due(self) -> None:
        with self._lock:
            while not self._stopping:
                now_ns = self._clock.now_ns()
                for batch in self._due.passed(now_ns):
                    self._expire(batch)
                next_ns = self._due.next_ns()
                wait_s = None if next_ns is None else (next_ns - now_ns) / NS_PER_S
                self._due_changed.wait(wait_s)

    def _expire(self, batch: ReadBatch) -> None:
        for job in batch.jobs:
            if job.state <= JobState.RUNNING:
                pool = self._pools[job.directory]
                self._give_up(pool, job, _late(pool))


def _late(pool: _Pool) -> Fault:
    return Fault(FaultKind.TIMEOUT, f"not read from {pool.segments.path} by its deadline")


def _all(job: Job, fault: Fault) -> Verdicts:
    verdicts = Verdicts(job.items)
    verdicts.fail(job.items, fault)
    return verdicts
