"""The seam in what is no call of `Files`: locks, sockets, shared memory, dram that is kept."""

import kvd.arena.control_page
import kvd.arena.memfd
import kvd.daemon.adopting
import kvd.daemon.keeping
import kvd.disk.heads
import kvd.disk.recognising
import kvd.rpc.listener
from kvd.daemon.notify import Notifier
from kvd.rpc.lock import DirectoryLock
from tests.crash.seam import Seam, around, replace_everywhere


def wrap_rest(seam: Seam) -> None:
    for function, site in (
        (kvd.disk.recognising.lock_directory, "lock.take"),
        (kvd.disk.heads.recycle_segment, "head.raise"),
        (kvd.rpc.listener.remove_socket, "socket.remove"),
        (kvd.rpc.listener.listen, "socket.listen"),
        (kvd.arena.memfd.open_slab, "slab.create"),
        (kvd.arena.memfd.adopt_slab, "slab.adopt"),
        (kvd.arena.control_page.make_page, "page.create"),
        (kvd.daemon.keeping._index, "kept.index"),
        (kvd.daemon.adopting._claim, "kept.claim"),
    ):
        replace_everywhere(function, around(seam, site, function))
    for kind, name, site in (
        (DirectoryLock, "__init__", "instance.lock"),
        (Notifier, "keep", "kept.store"),
        (Notifier, "wait_heard", "kept.heard"),
        (Notifier, "forget", "kept.forget"),
    ):
        setattr(kind, name, around(seam, site, getattr(kind, name)))
