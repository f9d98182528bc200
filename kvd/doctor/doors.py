"""Who listens where: a daemon that runs, sockets it left, ports that are taken.

Connects to a daemon that runs only: a socket that a service manager holds would start one.
"""

import errno
import os
import socket
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from kvd.doctor.findings import Finding, fail, note, ok, warn
from kvd.doctor.plan import Listen, Plan, Scene
from kvd.errors import KvdError
from kvd.host.reading import Host, Unseen
from kvd.rpc.lock import LOCK_NAME

_ANSWER_SECONDS = 3.0
_ACCEPTS = 0x10000  # Of the flags in /proc/net/unix: it listens.
_TCP_LISTENS = "0A"  # Of the states in /proc/net/tcp.


def running_daemon(host: Host, plan: Plan) -> int:
    """Return the pid of who holds the runtime directory's lock, 0 for nobody; raise Unseen."""
    try:
        inode = (plan.directory / LOCK_NAME).stat().st_ino
    except OSError:
        return 0
    for line in host.text("proc/locks").splitlines():
        words = line.split()
        if len(words) > 5 and words[1] == "FLOCK" and words[5].split(":")[-1] == str(inode):
            return int(words[4]) if words[4].isdigit() else 0
    return 0


@dataclass(frozen=True, slots=True)
class Told:
    """What a daemon says of itself on the operators' socket."""

    version: str
    problems: tuple[str, ...]


def ask_daemon(path: Path) -> Told:
    """Return what the daemon behind a socket tells; raise Unseen when it tells nothing."""
    try:
        from kvd.admin.asking import AdminClient
        from kvd.v1 import admin_pb2 as pb

        with AdminClient(path, _ANSWER_SECONDS) as client:
            reply = client.call("Status", pb.StatusRequest())
    except ImportError as error:
        raise Unseen(f"{path}: {error}") from None
    except KvdError as error:
        raise Unseen(error.message) from None
    return Told(reply.version.removeprefix("kvd "), tuple(reply.problems))


def daemon(
    scene: Scene, ask: Callable[[Path], Told] = ask_daemon, installed: str = ""
) -> Iterator[Finding]:
    """Say whether a daemon runs, which program it is, of which version, and what it lacks."""
    if not scene.running:
        yield ok("runtime.daemon", f"no daemon holds {scene.plan.directory}")
        return
    words = scene.host.of_process("cmdline").split("\0")
    said = f"a daemon runs, pid {scene.running}: {' '.join(words[:4]).strip()}"
    yield ok("runtime.daemon", f"{said}; its limits and control groups are looked at")
    told = ask(scene.plan.admin_socket)
    ours = installed or _installed_version()
    if told.version == ours:
        yield ok("runtime.version", f"it is kvd {told.version}")
    else:
        said = f"kvd {told.version} runs, and {ours} is installed"
        yield warn("runtime.version", said, "one version", "systemctl restart kvd")
    for problem in told.problems:
        yield warn("runtime.problem", problem, "no problem", "kvd-admin status tells more")


def _installed_version() -> str:
    try:
        return metadata.version("kvd")
    except metadata.PackageNotFoundError:
        return "none"


def sockets(scene: Scene) -> Iterator[Finding]:
    """Say what lies at the paths of the sockets."""
    listening = _unix_listeners(scene.host)
    count = 0
    for path in scene.plan.sockets:
        try:
            mode = path.lstat().st_mode
        except OSError:
            continue
        count += 1
        if not stat.S_ISSOCK(mode):
            fix = f"mv {path} {path}.away"
            yield fail("runtime.sockets", f"{path} is in the way", "a socket, or nothing", fix)
        elif str(path) not in listening:
            # The daemon's view of sockets is another one where it has its own network namespace.
            said = f"{path}: nobody listens, as far as can be seen from here"
            yield note("runtime.sockets", said, "nothing: the next daemon replaces it")
        elif not scene.running:
            said = f"{path}: somebody listens, and no daemon holds the directory"
            wanted = "nothing, when it is the service manager that holds the socket (kvd.socket)"
            yield note("runtime.sockets", said, wanted, f"ss -xlp src {path}")
        else:
            yield ok("runtime.sockets", f"{path}: the daemon listens")
    if not count:
        yield ok("runtime.sockets", "no sockets yet")


def _unix_listeners(host: Host) -> set[str]:
    found = set()
    for line in host.text("proc/net/unix").splitlines()[1:]:
        words = line.split(None, 7)
        if len(words) == 8 and int(words[3], 16) & _ACCEPTS:
            found.add(words[7])
    return found


def ports(scene: Scene) -> Iterator[Finding]:
    """Try each port that is configured; a daemon that runs may hold it itself."""
    for listen in scene.plan.listens:
        yield _port(scene, listen)


def _port(scene: Scene, listen: Listen) -> Finding:
    check, where = f"ports.{listen.name}", f"{listen.host}:{listen.port}"
    failure = _bind_failure(listen)
    if failure is None:
        return ok(check, f"{where} is free")
    if failure.errno == errno.EADDRINUSE and _holds_port(scene, listen.port):
        return ok(check, f"{where} is the daemon's")
    said = f"{where}: {failure.strerror}"
    match failure.errno:
        case errno.EADDRINUSE:
            fix = f"ss -tlnp 'sport = :{listen.port}' says who; or [{listen.name}] listen"
        case errno.EACCES:
            fix = f"a port from 1024 on in [{listen.name}] listen"
        case _:
            fix = f"an address of this host in [{listen.name}] listen"
    if listen.required:
        return fail(check, said, "free: the daemon does not start without it", fix)
    return warn(check, said, "free: the daemon goes without", fix)


def _bind_failure(listen: Listen) -> OSError | None:
    try:
        family, kind, number, _, address = socket.getaddrinfo(
            listen.host or None, listen.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, number) as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tried.bind(address)
            tried.listen(1)
    except OSError as error:
        return error
    return None


def _holds_port(scene: Scene, port: int) -> bool:
    """Return whether the daemon that runs has a socket that listens on a port."""
    if not scene.running:
        return False
    inodes = set()
    for name in ("proc/net/tcp", "proc/net/tcp6"):
        for line in scene.host.text(name).splitlines()[1:] if scene.host.has(name) else ():
            words = line.split()
            if words[3] == _TCP_LISTENS and int(words[1].rpartition(":")[2], 16) == port:
                inodes.add(f"socket:[{words[9]}]")
    directory = f"proc/{scene.host.process}/fd"
    try:
        names = scene.host.names(directory)
    except Unseen:
        return False
    return any(_target(scene.host.path(f"{directory}/{name}")) in inodes for name in names)


def _target(path: Path) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""
