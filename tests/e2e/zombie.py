"""A raw client as a process of its own, which keeps what it was given and does what it is told.

`python -m tests.e2e.zombie DIRECTORY MODEL` puts a few chunks, reserves some more, maps its slabs
and says their numbers; then it carries out a word for each line of its input. Its strips do not fit
their roots: raw clients compare every byte themselves.
"""

import contextlib
import mmap
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from kvd.limits import PAGE_BYTES
from kvd.v1 import kvd_pb2 as pb
from kvd.wire import FrameKind
from tests.e2e.process import DEADLINE_S, ROOT
from tests.e2e.rawclient import RawClient, Refused, chain_of, keyspace_message, small_keyspace
from tests.e2e.strips import put, register

CELLS, CELL_BYTES, CHUNKS = 4, 900, 3
SCRIBBLE = 0xEE


class Zombie:
    """In the test: the process, and what it said."""

    def __init__(self, process: subprocess.Popen) -> None:
        self.process = process
        self.slabs = {int(word) for word in self.hear().split()}

    def hear(self) -> str:
        line = self.process.stdout.readline()
        assert line, "the process ended"
        return line.strip()

    def tell(self, word: str) -> str:
        """Have it do something and return what it says of it."""
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()
        return self.hear()

    def let_go(self) -> None:
        """End it with all its children, which read the same input."""
        self.process.stdin.close()
        assert self.process.stdout.read() == ""  # All that had it open have ended.


@contextlib.contextmanager
def zombie(directory: Path, model: str = "zombie") -> Iterator[Zombie]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.e2e.zombie", str(directory), model],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
    )  # fmt: skip
    try:
        yield Zombie(process)
    finally:
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        process.kill()
        process.wait(DEADLINE_S)
        process.stdout.close()


# ---- the process ----


class _Played:
    def __init__(self, directory: Path, model: str) -> None:
        self._ours, theirs = socket.socketpair()
        if os.fork() == 0:  # Before anything is mapped, for "send".
            self._ours.close()
            self._receive(theirs)
            return
        theirs.close()
        self.client = client = RawClient(directory)
        keyspace = register(client, keyspace_message(small_keyspace(model)))
        put(client, keyspace, chain_of(CHUNKS), CELLS, CELL_BYTES)
        sizes = np.full((CHUNKS, 3), PAGE_BYTES, "<u4").tobytes()
        more = pb.ReserveRequest(
            keyspace=keyspace, lane=pb.Lane(), chain=chain_of(CHUNKS, 900), sizes=sizes
        )
        self.reserved = client.call(FrameKind.RESERVE, more)
        slabs = {number: each for number, each in client.channel.slabs.items() if each[2]}
        self.descriptors = [descriptor for _, descriptor, _ in slabs.values()]
        self.maps = [mmap.mmap(descriptor, size) for size, descriptor, _ in slabs.values()]
        say(*slabs)

    def write(self) -> str:
        """Write over all that it has mapped."""
        for each in self.maps:
            each[:] = bytes([SCRIBBLE]) * len(each)
        return "written"

    def close(self) -> str:
        """End the session without a word, as one that is disconnected."""
        self.client.channel.close()
        self.client.stream.close()
        return "closed"

    def fork(self) -> str:
        """Leave all of it to a child, and be gone."""
        if os.fork():
            os.kill(os.getpid(), signal.SIGKILL)
        return "forked"

    def send(self) -> None:
        """Send the descriptors to a process that has nothing else, and be gone."""
        socket.send_fds(self._ours, [b"slabs"], self.descriptors)
        os.kill(os.getpid(), signal.SIGKILL)

    def seal(self) -> str:
        """Seal what it reserved; return the kind of the answer."""
        sizes = np.full((CHUNKS, 3), PAGE_BYTES, "<u4").tobytes()
        request = pb.SealRequest(
            reservation=self.reserved.reservation, sizes=sizes, roots=bytes(24 * CHUNKS),
            profile=1, last=True,
        )  # fmt: skip
        try:
            return pb.SealState.Name(self.client.call(FrameKind.SEAL, request).states[0])
        except Refused as refused:
            return pb.ErrorKind.Name(refused.kind)
        except (EOFError, OSError):
            return "no daemon"

    def _receive(self, channel: socket.socket) -> None:
        """Wait for the descriptors of `send`; then go on in the sender's place."""
        data, self.descriptors, _, _ = socket.recv_fds(channel, 16, 64)
        if not data:
            os._exit(0)
        sizes = [os.fstat(descriptor).st_size for descriptor in self.descriptors]
        self.maps = [mmap.mmap(*each) for each in zip(self.descriptors, sizes, strict=True)]
        say("sent")


def say(*words: object) -> None:
    print(*words, flush=True)


def main() -> None:
    played = _Played(Path(sys.argv[1]), sys.argv[2])
    # By system calls: what one process has buffered, the next would not see.
    with os.fdopen(0, "rb", buffering=0) as told:
        while line := told.readline():
            if said := getattr(played, line.decode().strip())():
                say(said)


if __name__ == "__main__":
    main()
