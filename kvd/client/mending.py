"""Begins a session anew when memory could not be mapped for want of descriptors, and can be now.

A daemon gives each slab once to a session. Without this, what lies in a slab whose descriptor found
no room would be a miss for as long as the session lasts.
"""

import asyncio
import os
from typing import TYPE_CHECKING

from kvd.errors import ErrorKind, KvdError

if TYPE_CHECKING:
    from kvd.client.session import Session

LOOK_SECONDS = 1.0
_SPARE = 8  # Two sockets, a control page, and some slabs.


def mend(session: "Session") -> None:
    """End it for another one once nothing of it is in use and there are descriptors; look again."""
    if not session.alive:
        return
    loop = asyncio.get_running_loop()
    in_use = session.on_lease_lost or session.puts or not session.requests.is_idle
    if in_use or not _has_descriptors():
        loop.call_later(LOOK_SECONDS, mend, session)
        return
    session.slabs.detach_all()
    why = KvdError(ErrorKind.LOST, "memory could not be mapped before; it is asked for again")
    loop.call_soon(session.end, why)  # Behind what was said of slabs.


def _has_descriptors() -> bool:
    spare: list[int] = []
    try:
        for _ in range(_SPARE):
            spare.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError:
        return False
    finally:
        for descriptor in spare:
            os.close(descriptor)
    return True
