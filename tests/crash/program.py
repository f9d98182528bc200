"""`kvd serve` with a seam to its disk, made by forking: a start costs a fork, not all the imports.

`python -m tests.crash.program DESCRIPTOR` reads one order after another from a socket and makes a
process for each. A process takes new plans from its standard input, a line each.
"""

import ctypes
import json
import os
import select
import signal
import socket
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import kvd.cli.serve  # noqa: F401
import kvd.config
from kvd.cli.main import main
from kvd.core import segments
from kvd.limits import Limits
from tests.crash.drops import tell_drops
from tests.crash.seam import Seam, wrap_catalog
from tests.crash.wrapped_files import wrap_files

ORDER_BYTES_MAX = 1 << 16
TOLD = "program: plan"
_PR_SET_PDEATHSIG = 1


def nursery(channel: socket.socket) -> dict[str, Any] | None:
    """Fork for each order, and tell when a process ended; return an order in the new process."""
    children: dict[int, int] = {}
    while True:
        ready, _, _ = select.select([channel, *children], [], [])
        for pidfd in ready:
            if pidfd is not channel:
                pid, status = os.waitpid(children.pop(pidfd), 0)
                os.close(pidfd)
                code = os.waitstatus_to_exitcode(status)
                channel.send(json.dumps({"ended": pid, "status": code}).encode())
        if channel in ready:
            data, descriptors, _, _ = socket.recv_fds(channel, ORDER_BYTES_MAX, 2)
            if not data:
                return None
            pid = os.fork()
            if pid == 0:
                for pidfd in children:
                    os.close(pidfd)
                channel.close()
                os.dup2(descriptors[0], 0)
                os.dup2(descriptors[1], 2)
                for descriptor in descriptors:
                    os.close(descriptor)
                return json.loads(data)
            for descriptor in descriptors:
                os.close(descriptor)
            pidfd = os.pidfd_open(pid)
            children[pidfd] = pid
            socket.send_fds(channel, [json.dumps({"begun": pid}).encode()], [pidfd])


def serve(order: dict[str, Any]) -> int:
    """Be the daemon of an order."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    limits = replace(Limits(), **order["limits"])
    segments.NO_SPACE_RETRY_NS = limits.probe_ns
    kvd.config.Limits = partial(replace, limits)  # type: ignore[misc]
    seam = Seam(Path(order["attic"]))
    seam.tell(order["plan"])
    wrap_files(seam)
    wrap_catalog(seam)
    tell_drops(Path(order["drops"]))
    threading.Thread(target=_listen, args=(seam.tell,), daemon=True).start()
    return main(["serve", *order["words"]])


def _listen(tell: Callable[[dict[str, Any]], None]) -> None:
    for line in os.fdopen(0, "rb", closefd=False):
        tell(json.loads(line))
        print(TOLD, file=sys.stderr, flush=True)


if __name__ == "__main__":
    told = nursery(socket.socket(fileno=int(sys.argv[1])))
    sys.exit(0 if told is None else serve(told))
