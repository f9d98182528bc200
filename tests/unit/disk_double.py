"""File system calls that fail as told, and a disk on top of them that is waited for."""

import ctypes
import errno
import fcntl
import mmap
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass

from kvd.clock import MonotonicClock
from kvd.disk.directories import open_directories
from kvd.disk.files import OsFiles
from kvd.disk.posix import PosixDisk, host_means
from kvd.testing.disk_conformance import SEGMENT_BYTES

DEADLINE_S = 30.0
WRITING = ("create", "pwritev", "sync", "allocate", "rename", "unlink")


@dataclass(frozen=True)
class Call:
    """What is about to be done: its name, the file's name, and how many calls came before."""

    name: str
    file: str
    count: int
    offset: int = 0
    path: str = ""


@dataclass(frozen=True)
class Short:
    """Do at most so many bytes."""

    size_bytes: int


@dataclass(frozen=True)
class Elsewhere:
    """Do it at another place of the file, and say nothing."""

    by: int


def nothing(call):
    return None


class FaultyFiles(OsFiles):
    """Asks `plan` before each call: an OSError is raised, an Event waited for, None does it."""

    def __init__(self, plan: Callable[[Call], object] = nothing) -> None:
        self.plan = plan
        self.calls: list[Call] = []
        self._paths: dict[int, str] = {}

    def _ask(self, name, path, offset=0):
        call = Call(name, os.path.basename(path), len(self.calls), offset, path)
        self.calls.append(call)
        answer = self.plan(call)
        if isinstance(answer, OSError):
            raise answer
        if isinstance(answer, threading.Event):
            assert answer.wait(DEADLINE_S)
        return answer

    def open(self, path, flags):
        self._ask("create" if flags & os.O_CREAT else "open", path)
        descriptor = super().open(path, flags)
        self._paths[descriptor] = path
        return descriptor

    def preadv(self, descriptor, spans, offset):
        return self._moved("preadv", super().preadv, descriptor, spans, offset)

    def pwritev(self, descriptor, spans, offset):
        return self._moved("pwritev", super().pwritev, descriptor, spans, offset)

    def _moved(self, name, move, descriptor, spans, offset):
        match self._ask(name, self._paths[descriptor], offset):
            case Short(size_bytes):
                spans = cut(spans, size_bytes)
            case Elsewhere(by):
                offset += by
        return move(descriptor, spans, offset) if spans else 0

    def sync(self, descriptor):
        self._ask("sync", self._paths[descriptor])
        super().sync(descriptor)

    def allocate(self, descriptor, size_bytes):
        self._ask("allocate", self._paths[descriptor])
        super().allocate(descriptor, size_bytes)

    def rename(self, source, target):
        self._ask("rename", target)
        super().rename(source, target)

    def unlink(self, path):
        self._ask("unlink", path)
        super().unlink(path)


def cut(spans, size_bytes):
    out = []
    for address, size in spans:
        if size_bytes > 0:
            out.append((address, min(size, size_bytes)))
        size_bytes -= size
    return out


def failure(code):
    return OSError(code, os.strerror(code))


def at(index, code=errno.EIO):
    """Return a plan in which the call of this number that changes something fails."""
    seen = []

    def plan(call):
        if call.name in WRITING:
            seen.append(call)
            if len(seen) == index + 1:
                return failure(code)
        return None

    plan.seen = seen
    return plan


class HostMemory:
    def __init__(self, size_bytes):
        self._mapping = mmap.mmap(-1, size_bytes)
        self.address = ctypes.addressof(ctypes.c_ubyte.from_buffer(self._mapping))

    def put(self, data):
        self._mapping[:] = data

    def get(self):
        return self._mapping[:]


def is_locked(path):
    with open(path) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


class DiskRig:
    """A rig for the conformance suite's bench, over files that can fail."""

    def __init__(self, directory, plan=nothing, bounds=None, count=1):
        self.files, self._bounds = FaultyFiles(plan), bounds
        self._paths = [directory / str(number) for number in range(count)]
        self._moved = threading.Condition()

    def make(self, report):
        def relay(told):
            with self._moved:
                report(told)
                self._moved.notify_all()

        self.directories = open_directories(self._paths, SEGMENT_BYTES, self.files)
        return self.disk(self.directories, relay)

    def disk(self, directories, relay):
        means = host_means(self.files)
        return PosixDisk(directories, relay, MonotonicClock(), self._bounds, means)

    def memory(self, size_bytes):
        memory = HostMemory(size_bytes)
        return memory.address, memory

    def settle(self, done):
        with self._moved:
            assert self._moved.wait_for(done, DEADLINE_S)

    def is_locked(self):
        return all(is_locked(path / "lock") for path in self._paths)

    def release(self):
        for directory in self.directories:
            directory.release()

    def now_ns(self):
        return MonotonicClock().now_ns()
