"""The rules of memfd that isolation rests on, tried on this kernel and as another user."""

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import socket
import threading
import time
from queue import SimpleQueue

import pytest

from kvd.arena import memfd
from kvd.arena.control_page import make_page
from kvd.arena.memfd import F_ADD_SEALS, is_lent, lend, map_memory, open_slab
from kvd.arena.slabs import MemfdArena
from kvd.errors import FaultKind
from kvd.limits import PAGE_BYTES
from kvd.wire import CONTROL_MAGIC, CONTROL_PAGE

NOBODY = 65534
SIZE = 16 * PAGE_BYTES
PR_SET_DUMPABLE = 4


def as_nobody(action):
    """Return what `action` answers in a child under another uid: "" or the name of its errno."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            # A process that changed its uid may not open its own /proc/self/fd without this.
            ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)
            action()
        except OSError as error:
            os.write(writer, errno.errorcode[error.errno].encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as answers:
        answer = answers.read().decode()
    assert os.waitpid(child, 0)[1] == 0
    return answer


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


@pytest.fixture
def slab():
    descriptors = open_slab("test", SIZE)
    yield descriptors
    descriptors.close()


@needs_root
def test_a_reading_descriptor_cannot_be_reopened_for_writing_by_another_user(slab):
    path = f"/proc/self/fd/{slab.reading}"
    assert as_nobody(lambda: os.open(path, os.O_RDWR)) == "EACCES"
    assert as_nobody(lambda: mmap.mmap(slab.reading, SIZE)) == "EACCES"
    assert as_nobody(lambda: mmap.mmap(slab.reading, SIZE, prot=mmap.PROT_READ)) == ""


@needs_root
def test_a_writing_descriptor_writes_for_another_user(slab):
    def write():
        mmap.mmap(slab.writing, SIZE)[0:3] = b"kvd"

    assert as_nobody(write) == ""
    assert mmap.mmap(slab.reading, SIZE, prot=mmap.PROT_READ)[0:3] == b"kvd"


def keeps_descriptor(lent: int) -> None:
    os.read(0, 1)


def maps_and_closes(lent: int) -> None:
    kept = map_memory(lent, SIZE, writable=True)
    os.close(lent)
    os.read(0, 1)
    del kept


def sends_it_to_another(lent: int) -> None:
    ours, theirs = socket.socketpair()
    if os.fork() == 0:
        ours.close()
        _, [got], _, _ = socket.recv_fds(theirs, 1, 1)
        os.close(lent)
        os.read(0, 1)
        os._exit(0)
    socket.send_fds(ours, [b"x"], [lent])
    os._exit(0)


@pytest.mark.parametrize("keep", (keeps_descriptor, maps_and_closes, sends_it_to_another))
def test_a_loan_lasts_while_any_process_could_write_by_it(slab, keep):
    """Also a child's, whose parent is gone, and one that the descriptor was sent to."""
    reader, writer = os.pipe()
    lent = lend(slab.writing, 7)
    parent = os.fork()
    if parent == 0:
        os.close(writer)
        os.dup2(reader, 0)
        os.close(reader)
        if keep is sends_it_to_another or os.fork() == 0:
            keep(lent)
        os._exit(0)
    os.close(lent)
    os.close(reader)
    assert os.waitpid(parent, 0)[1] == 0
    assert is_lent(slab.reading, 7) and is_lent(slab.writing, 7), "the parent is gone"
    assert not is_lent(slab.reading, 6) and not is_lent(slab.reading, 8)
    os.close(writer)  # They end with their input.
    deadline = time.monotonic() + 20
    while is_lent(slab.reading, 7):
        assert time.monotonic() < deadline


def test_a_lent_descriptor_writes_and_leaves_no_mode_behind(slab):
    lent = lend(slab.writing, 1)
    mmap.mmap(lent, SIZE)[0:3] = b"kvd"
    assert mmap.mmap(slab.reading, SIZE, prot=mmap.PROT_READ)[0:3] == b"kvd"
    assert os.fstat(slab.writing).st_mode & 0o777 == 0
    os.close(lent)


def test_a_holder_of_a_slab_can_neither_resize_nor_seal_it(slab):
    for change in (
        lambda: os.ftruncate(slab.writing, SIZE // 2),
        lambda: os.ftruncate(slab.writing, SIZE * 2),
        lambda: fcntl.fcntl(slab.writing, F_ADD_SEALS, 0x08),
    ):
        with pytest.raises(PermissionError):
            change()


def test_descriptors_close_on_exec(slab):
    _, page = make_page(1)
    for descriptor in (slab.writing, slab.reading, page):
        assert not os.get_inheritable(descriptor)
    os.close(page)


def test_a_control_page_shows_the_counter_and_refuses_writers():
    page, descriptor = make_page(7)
    seen = mmap.mmap(descriptor, PAGE_BYTES, prot=mmap.PROT_READ)
    assert CONTROL_PAGE.unpack_from(seen) == (CONTROL_MAGIC, 7, 0)
    page.revoke(300)
    assert CONTROL_PAGE.unpack_from(seen) == (CONTROL_MAGIC, 7, 300)
    with pytest.raises(PermissionError):
        mmap.mmap(descriptor, PAGE_BYTES)
    with pytest.raises(PermissionError):
        os.pwrite(descriptor, b"x", 0)
    os.close(descriptor)


def left_slab(name: str) -> int:
    """Return the writing descriptor of a slab that another daemon left."""
    descriptors = open_slab(name, SIZE)
    os.close(descriptors.reading)
    return descriptors.writing


def memory_files(name: str) -> list[str]:
    """Return the open descriptors of a memfd of that name."""
    links = []
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            links.append(os.readlink(f"/proc/self/fd/{number}"))
    return [link for link in links if f"memfd:{name} " in link]


@pytest.mark.parametrize(
    ("code", "kind", "word"),
    [
        (errno.ENOMEM, FaultKind.NO_SPACE, "memory"),
        (errno.ENOSPC, FaultKind.NO_SPACE, "memory"),
        (errno.EMFILE, FaultKind.NO_SPACE, "RLIMIT_NOFILE"),
        (errno.EFBIG, FaultKind.NO_SPACE, "RLIMIT_FSIZE"),
        (errno.EIO, FaultKind.DEVICE, os.strerror(errno.EIO)),
    ],
)
def test_a_failed_touch_is_reported_and_leaves_no_slab(code, kind, word):
    reported = threading.Event()
    seen = []

    def report(slab, fault):
        seen.append((slab, fault))
        reported.set()

    def touch(address, size_bytes):
        raise OSError(code, os.strerror(code))

    arena = MemfdArena(report, 8, touch)
    arena.create_slab(3, SIZE)
    assert reported.wait(20)
    [(slab, fault)] = seen
    assert slab == 3 and fault.kind == kind and word in fault.message and str(SIZE) in fault.message
    with pytest.raises(KeyError):
        arena.slab_descriptor(3, writable=False)
    assert not memory_files("kvd-slab-3")
    arena.close()


def test_closing_does_not_wait_for_a_touch_that_hangs():
    entered, leave, left = threading.Event(), threading.Event(), threading.Event()

    def touch(address, size_bytes):
        entered.set()
        assert leave.wait(20)
        left.set()

    seen = []
    arena = MemfdArena(lambda *report: seen.append(report), 8, touch)
    arena.create_slab(1, SIZE)
    assert entered.wait(20)
    arena.close()
    leave.set()
    assert left.wait(20) and seen == []


def test_destroying_does_not_wait_for_an_unmap_that_hangs(monkeypatch):
    """Nor are its descriptors kept meanwhile; a slab that is made next is touched behind it."""
    entered, leave, reports, threads = threading.Event(), threading.Event(), SimpleQueue(), []
    unmap = memfd._libc.munmap

    def hang(address, size_bytes):
        threads.append(threading.current_thread().name)
        entered.set()
        assert leave.wait(20)
        return unmap(address, size_bytes)

    with monkeypatch.context() as patch:
        patch.setattr(memfd._libc, "munmap", hang)  # As mappings that are made now will find it.
        arena = MemfdArena(lambda *report: reports.put(report), 1)
        arena.adopt_slab(1, left_slab("kvd-slab-1"), SIZE)
    arena.destroy_slab(1)
    assert entered.wait(20) and threads == ["touch"]
    assert not memory_files("kvd-slab-1")
    arena.create_slab(2, SIZE)
    assert reports.empty(), "its memory is not there before that of the other is gone"
    leave.set()
    assert reports.get(timeout=20) == (2, None) and threads == ["touch"]
    arena.close()


def test_what_is_let_go_is_unmapped_by_the_arenas_thread(monkeypatch):
    ended, threads = threading.Event(), []
    unmap = memfd._libc.munmap

    def note(address, size_bytes):
        threads.append(threading.current_thread().name)
        ended.set()
        return unmap(address, size_bytes)

    arena = MemfdArena(lambda *report: None, 1)
    with monkeypatch.context() as patch, contextlib.closing(arena):
        patch.setattr(memfd._libc, "munmap", note)
        descriptors = open_slab("test", SIZE)
        arena.let_go([map_memory(descriptors.writing, SIZE, writable=True)])
        assert ended.wait(20) and threads == ["touch"]
        descriptors.close()


def test_closing_does_not_wait_for_an_unmap_that_hangs(monkeypatch):
    entered, leave, left = threading.Event(), threading.Event(), threading.Event()
    unmap = memfd._libc.munmap

    def hang(address, size_bytes):
        entered.set()
        assert leave.wait(20)
        left.set()
        return unmap(address, size_bytes)

    arena = MemfdArena(lambda *report: None, 1)
    with monkeypatch.context() as patch:
        patch.setattr(memfd._libc, "munmap", hang)
        arena.adopt_slab(1, left_slab("kvd-slab-1"), SIZE)
    arena.destroy_slab(1)
    assert entered.wait(20)
    arena.close()
    leave.set()
    assert left.wait(20)


def test_a_slab_holds_two_descriptors_and_a_page_none():
    touched = threading.Event()
    arena = MemfdArena(lambda slab, fault: touched.set(), 8)
    arena.create_slab(77, SIZE)
    assert touched.wait(20)
    assert len(memory_files("kvd-slab-77")) == 2
    page, descriptor = make_page(1)
    before = len(memory_files("kvd-control"))
    os.close(descriptor)
    assert len(memory_files("kvd-control")) == before - 1
    page.revoke(1)
    arena.close()


def test_a_mapping_ends_with_its_last_view(slab):
    def mappings() -> int:
        with open("/proc/self/maps") as maps:
            return sum("memfd:test" in line for line in maps)

    before = mappings()
    part = map_memory(slab.reading, SIZE, writable=False).data[10:20]
    assert mappings() == before + 1 and bytes(part) == bytes(10)
    del part
    assert mappings() == before


def test_slabs_keep_to_their_share_of_descriptors():
    seen = {}
    arena = MemfdArena(lambda slab, fault: seen.update({slab: fault}), 1)
    arena.create_slab(1, SIZE)
    arena.create_slab(2, SIZE)
    assert seen[2].kind == FaultKind.NO_SPACE and "LimitNOFILE" in seen[2].message
    arena.destroy_slab(1)
    arena.create_slab(3, SIZE)
    assert arena.slab_descriptor(3, writable=True) > 0
    arena.close()
