"""Who may connect, and the directory of the sockets: owners, modes, lengths of paths."""

import os
import pwd
import stat
from collections.abc import Iterator
from pathlib import Path

from kvd.config import SOCKET_PATH_BYTES_MAX
from kvd.doctor.findings import Finding, fail, ok, warn
from kvd.doctor.places import may_write, nearest, owned
from kvd.doctor.plan import Scene


def users(scene: Scene) -> Iterator[Finding]:
    """Say who the daemon is, and which clients would share its uid."""
    uid, allowed = scene.uid, sorted(scene.plan.allowed_uids)
    if uid == 0:
        fix = "User=kvd in kvd.service (useradd --system --no-create-home kvd)"
        yield warn("users.daemon", "the daemon would run as root", "a user of its own", fix)
    else:
        yield ok("users.daemon", f"the daemon is {_named(uid)}")
    others = [each for each in allowed if each not in (uid, 0)]
    if uid in allowed:
        said = f"clients may share the daemon's uid, {_named(uid)}"
        wanted = "another uid for clients: one that shares it can open every tenant's slabs"
        fix = f"--allow-uid UID of the engine, and no --allow-uid {uid}"
        yield warn("users.clients", said, wanted, fix)
    elif not others:
        fix = "--allow-uid UID of the engine"
        yield warn("users.clients", "only root may connect", "the engine's uid", fix)
    else:
        yield ok("users.clients", "allowed: " + ", ".join(map(_named, allowed)))


def _named(uid: int) -> str:
    try:
        return f"uid {uid} ({pwd.getpwuid(uid).pw_name})"
    except KeyError:
        return f"uid {uid}"


def directory(scene: Scene) -> Iterator[Finding]:
    """See whether the runtime directory can be made or used, and who else could write in it."""
    path = scene.plan.directory
    there = nearest(path)
    if not there.is_dir():
        fix = f"mv {there} elsewhere, or --directory"
        yield fail("runtime.directory", f"{there} is no directory", "one", fix)
    elif not may_write(there, scene.uid):
        said = f"{there} is {owned(there)}"
        fix = f"RuntimeDirectory=kvd in kvd.service, or install -d -o {scene.uid} {path}"
        yield fail("runtime.directory", said, f"uid {scene.uid} writes in {path}", fix)
    elif path.is_dir() and path.stat().st_mode & 0o022:
        wanted = "written by the daemon only: others could put sockets of their own there"
        fix = f"chmod go-w {path}"
        yield warn("runtime.directory", f"{path} is {owned(path)}", wanted, fix)
    else:
        state = f"is {owned(path)}" if path.is_dir() else "can be made"
        yield ok("runtime.directory", f"{path} {state}")


def lengths(scene: Scene) -> Iterator[Finding]:
    """Compare the longest path of a socket with what the kernel takes."""
    longest = max(scene.plan.sockets, key=lambda path: len(os.fsencode(path)))
    length = len(os.fsencode(longest))
    said = f"{longest} has {length} of {SOCKET_PATH_BYTES_MAX} bytes"
    if length > SOCKET_PATH_BYTES_MAX:
        wanted = f"at most {SOCKET_PATH_BYTES_MAX}"
        yield fail("runtime.path_length", said, wanted, "--directory /run/kvd, or shorter tenants")
    else:
        yield ok("runtime.path_length", said)


def files(scene: Scene) -> Iterator[Finding]:
    """See whether the daemon can read each file that a setting names, and whether others can."""
    for named in scene.plan.files:
        path, said = named.path, f"{named.setting}: {named.path}"
        if not path.is_file():
            fix = f"make it, or take {named.setting} out of the configuration"
            yield fail("tcp.files", f"{said} is not there", "the file", fix)
        elif not _may_read(path, scene.uid):
            fix = f"chown {scene.uid} {path}"
            wanted = f"uid {scene.uid} reads it"
            yield fail("tcp.files", f"{said} is {owned(path)}", wanted, fix)
        elif named.secret and path.stat().st_mode & 0o027:
            wanted = "mode 600: who reads it can pass for its owner, and the daemon refuses it"
            yield fail("tcp.files", f"{said} is {owned(path)}", wanted, f"chmod 0600 {path}")
        else:
            yield ok("tcp.files", f"{said} can be read")


def _may_read(path: Path, uid: int) -> bool:
    if uid == os.geteuid():
        return os.access(path, os.R_OK)
    status = path.stat()
    wanted = stat.S_IRUSR if status.st_uid == uid else stat.S_IROTH
    return uid == 0 or bool(status.st_mode & wanted)
