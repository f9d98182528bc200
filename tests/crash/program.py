"""`kvd serve` with a seam to its disk, made by forking: a start costs a fork, not all the imports.

`python -m tests.crash.program DESCRIPTOR` reads one order after another from a socket and makes a
process for each. A process takes new plans from its standard input, a line each.
"""

import ctypes
import fcntl
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

import numpy.ma  # noqa: F401 - numpy imports it where it is first needed: in every process anew.

import kvd.cli.serve  # noqa: F401
import kvd.config
from kvd.cli.main import main
from kvd.cli.service import FIRST_DESCRIPTOR
from kvd.core import segments
from kvd.limits import Limits
from tests.crash.drops import tell_drops
from tests.crash.seam import Places, Seam
from tests.crash.wrapped_catalog import wrap_catalog
from tests.crash.wrapped_files import wrap_files
from tests.crash.wrapped_rest import wrap_rest

ORDER_BYTES_MAX = 1 << 16
TOLD = "program: plan"
_PR_SET_PDEATHSIG = 1
_PASSED_MAX = 64
_HIGH = 100  # Above all that may be open already.


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
            data, descriptors, _, _ = socket.recv_fds(channel, ORDER_BYTES_MAX, _PASSED_MAX)
            if not data:
                return None
            pid = os.fork()
            if pid == 0:
                for pidfd in children:
                    os.close(pidfd)
                channel.close()
                _take(descriptors)
                return json.loads(data)
            for descriptor in descriptors:
                os.close(descriptor)
            pidfd = os.pidfd_open(pid)
            children[pidfd] = pid
            socket.send_fds(channel, [json.dumps({"begun": pid}).encode()], [pidfd])


def _take(descriptors: list[int]) -> None:
    """Have the first two as standard input and error, the others from 3 on."""
    high = [fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, _HIGH) for each in descriptors]
    for each in descriptors:
        os.close(each)
    for each, number in zip(high, (0, 2, *range(FIRST_DESCRIPTOR, _HIGH)), strict=False):
        os.dup2(each, number)
        os.close(each)


def serve(order: dict[str, Any]) -> int:
    """Be the daemon of an order."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.environ.update(order["environment"])
    if "LISTEN_FDS" in os.environ:
        os.environ["LISTEN_PID"] = str(os.getpid())
    limits = replace(Limits(), **order["limits"])
    segments.NO_SPACE_RETRY_NS = limits.probe_ns
    kvd.config.Limits = partial(replace, limits)  # type: ignore[misc]
    seam = Seam(Places(**order["places"]))
    seam.tell(order["plan"])
    wrap_files(seam)
    wrap_catalog(seam)
    wrap_rest(seam)
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
