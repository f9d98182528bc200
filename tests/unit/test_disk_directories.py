"""Data directories are made, known again, or refused with one clear message."""

import errno
import fcntl
import os
import re
import shutil
import struct
import subprocess
import sys

import pytest

from kvd.checksum import checksum
from kvd.disk.contract import SegmentPlace
from kvd.disk.directories import arrange, home_of, open_directories
from kvd.disk.files import OsFiles
from kvd.disk.heads import make_segment, recycle_segment
from kvd.errors import ErrorKind, KvdError
from kvd.limits import MIB
from kvd.types import PlaneClass
from tests.unit.disk_double import WRITING, FaultyFiles, at, failure

SIZE = 2 * MIB
NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can do this")


def opened(*paths, files=None):
    return open_directories(paths, SIZE, files or OsFiles())


def refused(*paths, files=None):
    """Return the error of opening, and see that nothing stays locked or open."""
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(KvdError) as caught:
        opened(*paths, files=files)
    assert len(os.listdir("/proc/self/fd")) == before
    assert "\n" not in caught.value.message
    return caught.value


def made(*paths):
    """Make directories, and let them go again."""
    directories = opened(*paths)
    for directory in directories:
        directory.release()
    return directories


def changed_superblock(path, offset, data):
    """Change bytes of a superblock, with a checksum that fits them."""
    file = path / "superblock"
    out = bytearray(file.read_bytes())
    out[offset : offset + len(data)] = data
    out[16:24] = struct.pack("<Q", checksum(bytes(out[:16] + out[24:])))
    file.write_bytes(out)


def test_a_directory_is_made_and_known_again(tmp_path):
    path = tmp_path / "some" / "data"
    [first] = made(path)
    assert sorted(os.listdir(path)) == ["canary", "lock", "segments", "superblock"]
    assert path.stat().st_mode & 0o777 == 0o700
    [second] = opened(path)
    assert second.superblock == first.superblock and second.superblock.segment_bytes == SIZE
    assert second.direct and second.preallocates and second.notes == ()
    assert len(second.found_segments()) == 0
    second.release()


def test_the_names_of_directories_that_are_made_are_synced(tmp_path):
    files = FaultyFiles()
    [directory] = opened(tmp_path / "some" / "more" / "data", files=files)
    directory.release()
    synced = [call.path for call in files.calls if call.name == "sync"]
    for parent in (tmp_path, tmp_path / "some", tmp_path / "some" / "more"):
        assert str(parent) in synced
    again = FaultyFiles()
    [directory] = opened(tmp_path / "some" / "more" / "data", files=again)
    directory.release()
    assert not any(call.path == str(tmp_path / "some" / "more") for call in again.calls)


def test_what_an_ended_repair_began_is_removed(tmp_path):
    path = tmp_path / "data"
    made(path)
    (path / "superblock.new").write_bytes(b"not finished")
    made(path)
    assert sorted(os.listdir(path)) == ["canary", "lock", "segments", "superblock"]


@pytest.mark.parametrize("which", ["home", "other"])
def test_a_copy_beside_its_original_is_refused(tmp_path, which):
    home, other, copy = tmp_path / "home", tmp_path / "other", tmp_path / "copy"
    made(home, other)
    original = home if which == "home" else other
    shutil.copytree(original, copy)
    error = refused(home, other, copy)
    assert error.kind == ErrorKind.INCOMPATIBLE
    assert all(str(path) in error.message for path in (original, copy))
    made(home, other)


def test_an_old_set_keeps_its_segment_size(tmp_path):
    made(tmp_path / "a")
    [again] = open_directories([tmp_path / "a"], 64 * MIB, OsFiles())
    assert again.superblock.segment_bytes == SIZE
    again.release()


def test_a_fresh_file_system_is_empty_enough(tmp_path):
    (tmp_path / "lost+found").mkdir()
    made(tmp_path)


def test_segments_are_found_by_name(tmp_path):
    made(tmp_path)
    for name in ("00000007", "00000001", "x", "00000002.new"):
        (tmp_path / "segments" / name).touch()
    [directory] = opened(tmp_path)
    assert directory.found_segments().tolist() == [1, 7]
    directory.release()


def test_a_plain_file_is_refused(tmp_path):
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        error = refused(path)
        assert error.kind == ErrorKind.INVALID and "is a file" in error.message


def test_foreign_content_is_refused_and_left_alone(tmp_path):
    (tmp_path / "thesis.txt").touch()
    error = refused(tmp_path)
    assert error.kind == ErrorKind.INCOMPATIBLE and "'thesis.txt'" in error.message
    assert os.listdir(tmp_path) == ["thesis.txt"]


def test_segments_without_a_superblock_are_foreign(tmp_path):
    made(tmp_path)
    (tmp_path / "superblock").unlink()
    (tmp_path / "segments" / "00000000").touch()
    error = refused(tmp_path)
    assert error.kind == ErrorKind.INCOMPATIBLE and "'segments'" in error.message


@pytest.mark.parametrize(("version", "word"), [(0, "older"), (2, "newer")])
def test_other_versions_are_refused(tmp_path, version, word):
    made(tmp_path)
    changed_superblock(tmp_path, 8, struct.pack("<I", version))
    error = refused(tmp_path)
    assert error.kind == ErrorKind.INCOMPATIBLE
    assert word in error.message and f"format {version}" in error.message


def test_damaged_superblocks_are_refused(tmp_path):
    made(tmp_path)
    file = tmp_path / "superblock"
    whole = file.read_bytes()
    for data in (whole[:-1], whole + b"\0", b"", whole[:100] + b"\1" + whole[101:]):
        file.write_bytes(data)
        error = refused(tmp_path)
        assert error.kind == ErrorKind.CORRUPT and "is damaged" in error.message
    file.write_bytes(b"x" + whole[1:])
    assert refused(tmp_path).kind == ErrorKind.INCOMPATIBLE


def test_a_locked_directory_is_refused_with_its_holder(tmp_path):
    made(tmp_path)
    code = "import fcntl,os,sys; f=os.open(sys.argv[1],os.O_RDWR); fcntl.flock(f,fcntl.LOCK_EX);"
    code += "os.ftruncate(f,0); os.pwrite(f,str(os.getpid()).encode(),0); print(); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "lock")],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as holder:  # fmt: skip
        holder.stdout.readline()
        error = refused(tmp_path)
        assert error.kind == ErrorKind.UNAVAILABLE and f"pid {holder.pid}" in error.message
        holder.communicate(b"\n")
    made(tmp_path)


def test_one_locked_directory_lets_go_of_the_others(tmp_path):
    made(tmp_path / "a", tmp_path / "b")
    lock = os.open(tmp_path / "b" / "lock", os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_EX)
    assert refused(tmp_path / "a", tmp_path / "b").kind == ErrorKind.UNAVAILABLE
    os.close(lock)
    made(tmp_path / "a", tmp_path / "b")


def test_the_same_directory_twice_is_refused(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "a")
    for other in ("a", "link", "a/below", "a/../a", ""):
        error = refused(tmp_path / "a", tmp_path / other)
        assert error.kind == ErrorKind.INVALID and "not apart" in error.message
    assert refused().kind == ErrorKind.INVALID


def test_a_path_that_is_no_text_is_refused(tmp_path):
    path = tmp_path / os.fsdecode(b"\xff")
    error = refused(path)
    assert error.kind == ErrorKind.INVALID and "UTF-8" in error.message and not path.exists()
    made(tmp_path / "größer")


def test_directories_of_two_sets_are_refused(tmp_path):
    made(tmp_path / "a")
    made(tmp_path / "b")
    error = refused(tmp_path / "a", tmp_path / "b")
    assert error.kind == ErrorKind.INCOMPATIBLE and "not made together" in error.message


def test_a_set_grows_and_keeps_its_home(tmp_path):
    a, b, c = (tmp_path / name for name in "abc")
    [first] = made(a)
    made(c, a)
    directories = opened(b, c, a)
    assert home_of(directories) == a / "catalog"
    assert len({d.superblock.directory for d in directories}) == 3
    assert {d.superblock.home for d in directories} == {first.superblock.directory}
    for directory in directories:
        directory.release()


def test_a_set_without_its_home_is_refused(tmp_path):
    [home, _] = made(tmp_path / "a", tmp_path / "b")
    error = refused(tmp_path / "b")
    assert error.kind == ErrorKind.INCOMPATIBLE
    assert home.superblock.directory.hex() in error.message


def test_the_catalogs_order_is_kept_and_a_missing_directory_refused(tmp_path):
    directories = made(*(tmp_path / name for name in "abc"))
    uuids = [directory.superblock.directory for directory in directories]
    assert arrange(directories, []) == directories
    assert arrange(directories, uuids[:1:-1]) == [directories[2], *directories[:2]]
    with pytest.raises(KvdError) as caught:
        arrange(directories[:2], uuids)
    assert caught.value.kind == ErrorKind.INCOMPATIBLE
    assert uuids[2].hex() in caught.value.message and "3" in caught.value.message


@needs_root
def test_a_directory_of_another_user_is_refused(short_directory):
    made(short_directory / "data")
    short_directory.chmod(0o755)
    for path in (short_directory / "data", short_directory / "fresh"):
        message = refusal_of_nobody(path)
        assert re.match("DENIED: .* belongs to uid 0, and uid 65534 may not", message), message


def refusal_of_nobody(path):
    """Return the error that another user gets."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            opened(path)
        except KvdError as error:
            os.write(write, str(error).encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as answer:
        message = answer.read()
    os.waitpid(child, 0)
    return message


@needs_root
def test_a_read_only_file_system_is_refused(tmp_path):
    made(tmp_path / "a")
    if subprocess.run(["mount", "-t", "tmpfs", "none", tmp_path / "a"], stderr=-3).returncode:
        pytest.skip("no mounts here")
    try:
        made(tmp_path / "a")
        subprocess.run(["mount", "-o", "remount,ro", tmp_path / "a"], check=True)
        for path in (tmp_path / "a", tmp_path / "a" / "fresh"):
            error = refused(path)
            assert error.kind == ErrorKind.UNAVAILABLE and "Read-only" in error.message
    finally:
        subprocess.run(["umount", tmp_path / "a"], check=True)


# ---- what the file system can do ----


def test_without_o_direct_the_page_cache_is_used_and_it_is_said(tmp_path):
    class NoDirect(OsFiles):
        def open(self, path, flags):
            if flags & os.O_DIRECT:
                raise failure(errno.EINVAL)
            return super().open(path, flags)

    [directory] = opened(tmp_path, files=NoDirect())
    assert not directory.direct and directory.preallocates
    [note] = directory.notes
    assert "O_DIRECT" in note and str(tmp_path) in note
    directory.release()


def test_o_direct_that_opens_and_does_not_read_is_not_used(tmp_path):
    class Misaligned(OsFiles):
        def preadv(self, descriptor, spans, offset):
            if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT:
                raise failure(errno.EINVAL)
            return super().preadv(descriptor, spans, offset)

    [directory] = opened(tmp_path, files=Misaligned())
    assert not directory.direct
    directory.release()


@pytest.mark.parametrize("code", [errno.EOPNOTSUPP, errno.ENOSYS])
def test_without_fallocate_it_is_said_once(tmp_path, code):
    files = FaultyFiles(lambda call: failure(code) if call.name == "allocate" else None)
    [directory] = opened(tmp_path, files=files)
    assert directory.direct and not directory.preallocates
    [note] = directory.notes
    assert "fallocate" in note
    directory.release()


def test_a_full_disk_is_no_reason_to_do_without_o_direct(tmp_path):
    made(tmp_path)

    def plan(call):
        return failure(errno.ENOSPC) if (call.name, call.file) == ("pwritev", "canary") else None

    [directory] = opened(tmp_path, files=FaultyFiles(plan))
    assert directory.direct
    directory.release()


def test_a_device_that_neither_writes_nor_reads_is_refused(tmp_path):
    made(tmp_path)
    for name in ("pwritev", "preadv", "sync"):
        files = FaultyFiles(
            lambda call, name=name: failure(errno.EIO) if call.name == name else None
        )
        error = refused(tmp_path, files=files)
        assert error.kind == ErrorKind.UNAVAILABLE and os.strerror(errno.EIO) in error.message


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_whatever_fails_while_it_is_made_it_can_be_made_afterwards(tmp_path, code):
    index, failed = 0, 0
    while True:
        path = tmp_path / str(index)
        plan = at(index, code)
        files = FaultyFiles(plan)
        try:
            [directory] = opened(path, files=files)
            directory.release()
        except KvdError as error:
            assert error.kind == ErrorKind.UNAVAILABLE and str(path) in error.message
            failed += 1
        [directory] = made(path)
        assert directory.notes == ()
        if len(plan.seen) <= index:
            break
        index += 1
    assert failed >= 8 and {call.name for call in plan.seen} == set(WRITING) - {"unlink"}


def test_a_segment_that_was_cut_has_its_size_again_when_it_is_written_over(tmp_path):
    [directory] = open_directories([tmp_path / "data"], MIB, OsFiles())
    place = SegmentPlace(0, 1, 1, PlaneClass.ANCHOR)
    assert make_segment(OsFiles(), directory, place) is None
    path = directory.segments / "00000001"
    os.truncate(path, 8192)
    again = SegmentPlace(0, 1, 2, PlaneClass.EXACT)
    assert recycle_segment(OsFiles(), directory, again) is None
    assert path.stat().st_size == MIB
    directory.release()
