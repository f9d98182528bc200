"""What the doctor says of users, the runtime directory, real sockets, and ports that are taken."""

import errno
import fcntl
import os
import socket
from dataclasses import replace

import pytest

from kvd.doctor import doors, people
from kvd.doctor.examine import scene_of
from kvd.doctor.findings import Level
from kvd.doctor.plan import Listen, NamedFile
from kvd.host.reading import Host, Unseen
from kvd.rpc.lock import DirectoryLock
from tests.unit.doctor_scene import Hosts, all_ok, by_check, is_told


@pytest.fixture
def hosts(tmp_path, short_directory):
    made = Hosts(tmp_path)
    made.plan = replace(made.plan, directory=short_directory / "run")
    return made


@pytest.fixture
def ours(hosts):
    """The same host with a daemon of the user who runs the tests, and a directory for it."""
    hosts.uid = os.geteuid()
    (hosts.plan.directory / "default").mkdir(parents=True)
    hosts.plan.directory.chmod(0o755)
    return hosts


def listening(path):
    made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    made.bind(str(path))
    made.listen()
    return made


# ---- users ----


def test_a_daemon_with_a_user_of_its_own_is_ok(hosts):
    assert all_ok(hosts.ask(people.users))


def test_a_daemon_of_root(hosts):
    hosts.uid = 0
    hosts.plan = replace(hosts.plan, allowed_uids=frozenset({1000}))
    found = by_check(hosts.ask(people.users))
    assert is_told(found["users.daemon"], Level.WARN, "root", "User=kvd", "useradd --system")
    assert all_ok([found["users.clients"]])


@pytest.mark.parametrize("allowed", [{990}, {990, 1000}])
def test_clients_that_share_the_daemons_uid(hosts, allowed):
    hosts.plan = replace(hosts.plan, allowed_uids=frozenset(allowed))
    found = by_check(hosts.ask(people.users))["users.clients"]
    assert is_told(found, Level.WARN, "uid 990", "slabs", "--allow-uid UID")


def test_nobody_but_root_may_connect(hosts):
    hosts.plan = replace(hosts.plan, allowed_uids=frozenset({0}))
    found = by_check(hosts.ask(people.users))["users.clients"]
    assert is_told(found, Level.WARN, "only root", "--allow-uid UID")


# ---- the runtime directory ----


def test_a_runtime_directory_is_ok_as_it_is_and_before_it_is_made(hosts, ours):
    assert all_ok(ours.ask(people.directory))
    (ours.plan.directory / "default").rmdir()
    ours.plan.directory.rmdir()
    assert all_ok(ours.ask(people.directory)) and not ours.plan.directory.exists()


def test_a_runtime_directory_that_is_a_file(ours):
    ours.plan = replace(ours.plan, directory=ours.plan.directory / "file")
    ours.plan.directory.write_text("")
    assert is_told(ours.ask(people.directory)[0], Level.FAIL, "is no directory")


def test_a_runtime_directory_of_another_user(ours):
    ours.uid = os.geteuid() + 1
    found = ours.ask(people.directory)[0]
    words = ("mode 755", "RuntimeDirectory=kvd", f"install -d -o {ours.uid}")
    assert is_told(found, Level.FAIL, *words)


def test_a_runtime_directory_that_others_write_in(ours):
    ours.plan.directory.chmod(0o777)
    fix = f"chmod go-w {ours.plan.directory}"
    assert is_told(ours.ask(people.directory)[0], Level.WARN, "mode 777", fix)


def test_long_paths_of_sockets(hosts):
    assert all_ok(hosts.ask(people.lengths))
    hosts.plan = replace(
        hosts.plan, directory=hosts.plan.directory / ("d" * 60), tenants=("t" * 40,)
    )
    found = hosts.ask(people.lengths)[0]
    assert is_told(found, Level.FAIL, "session.sock", "of 107 bytes", "--directory /run/kvd")


# ---- daemons and sockets, as the kernel tells of real ones ----


def test_nothing_runs(ours):
    ours.plan.directory.joinpath("kvd.lock").write_text("17\n")  # Left by one that died.
    scene = scene_of(ours.plan, Host())
    assert scene.running == 0 and scene.uid == os.geteuid()
    assert all_ok(list(doors.daemon(scene))) and all_ok(list(doors.sockets(scene)))


def test_a_daemon_that_holds_the_lock_is_found(ours):
    lock = DirectoryLock(ours.plan.directory)
    try:
        scene = scene_of(ours.plan, Host())
        assert scene.running == os.getpid() and scene.host.process == str(os.getpid())
        found = next(iter(doors.daemon(scene)))
        assert all_ok([found]) and f"pid {os.getpid()}" in found.found
    finally:
        lock.release()
    assert scene_of(ours.plan, Host()).running == 0


def test_a_daemon_that_runs_tells_its_version_and_its_problems(ours):
    scene = replace(scene_of(ours.plan, Host(process="self")), running=7)

    def ask(*problems, version="0.1.0"):
        told = doors.Told(version, problems)
        return list(doors.daemon(scene, lambda path: told, "0.1.0"))[1:]

    assert all_ok(ask()) and ask()[0].found == "it is kvd 0.1.0"
    old, bad = ask("the disk is full: free some", version="0.0.9")
    words = ("kvd 0.0.9 runs", "0.1.0 is installed", "systemctl restart kvd")
    assert is_told(old, Level.WARN, *words)
    assert is_told(bad, Level.WARN, "the disk is full: free some", "kvd-admin status")


def test_a_daemon_that_does_not_tell(ours):
    path = ours.plan.admin_socket
    with pytest.raises(Unseen, match="no daemon answers"):
        doors.ask_daemon(path)
    with listening(path), pytest.raises(Unseen, match=str(path)):
        doors.ask_daemon(path)


def test_another_lock_is_not_taken_for_it(ours, tmp_path):
    ours.plan.directory.joinpath("kvd.lock").write_text("")
    with open(tmp_path / "other", "w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert doors.running_daemon(Host(), ours.plan) == 0


def test_locks_that_cannot_be_seen(ours):
    ours.plan.directory.joinpath("kvd.lock").write_text("")
    ours.write({"proc/locks": None})
    with pytest.raises(Unseen, match="/proc/locks"):
        doors.running_daemon(ours.scene().host, ours.plan)
    assert scene_of(ours.plan, ours.scene().host).running == 0


def test_sockets_of_all_kinds(ours):
    paths = ours.plan.sockets
    paths[0].write_text("")
    dead, alive = listening(paths[1]), listening(paths[2])
    dead.close()
    try:
        scene = replace(scene_of(ours.plan, Host()), running=os.getpid())
        in_way, left, good = doors.sockets(scene)
        assert is_told(in_way, Level.FAIL, f"mv {paths[0]}")
        assert is_told(left, Level.NOTE, f"{paths[1]}: nobody listens")
        assert all_ok([good]) and str(paths[2]) in good.found
        held = list(doors.sockets(replace(scene, running=0)))[2]
        assert is_told(held, Level.NOTE, "no daemon holds", "kvd.socket", f"ss -xlp src {paths[2]}")
    finally:
        alive.close()


# ---- ports ----


def ask_port(hosts, port, host="127.0.0.1", required=True, **changes):
    hosts.plan = replace(hosts.plan, listens=(Listen("metrics", host, port, required),))
    [found] = hosts.ask(doors.ports, **changes)
    assert found.check == "ports.metrics"
    return found


def test_a_free_port(hosts):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    assert all_ok([ask_port(hosts, port)])


@pytest.mark.parametrize(("required", "level"), [(True, Level.FAIL), (False, Level.WARN)])
def test_a_port_that_another_program_has(hosts, required, level):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        found = ask_port(hosts, port, required=required)
        assert is_told(found, level, f"127.0.0.1:{port}", "in use", f"sport = :{port}")


def test_a_port_that_the_daemon_has_itself(hosts):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        here = Host(process=str(os.getpid()))
        port = taken.getsockname()[1]
        scene = replace(hosts.scene(), host=here, running=os.getpid())
        listen = Listen("metrics", "127.0.0.1", port, True)
        scene = replace(scene, plan=replace(scene.plan, listens=(listen,)))
        [found] = doors.ports(scene)
        assert all_ok([found]) and "the daemon's" in found.found


def test_an_address_of_another_host(hosts):
    found = ask_port(hosts, 9470, host="192.0.2.1")
    assert is_told(found, Level.FAIL, "192.0.2.1:9470", "an address of this host")


def test_a_port_of_root_only(hosts, monkeypatch):
    denied = OSError(errno.EACCES, os.strerror(errno.EACCES))
    monkeypatch.setattr(doors, "_bind_failure", lambda listen: denied)
    assert is_told(ask_port(hosts, 80), Level.FAIL, "Permission denied", "from 1024 on")


# ---- files that settings name ----


def ask_file(hosts, path, *, secret=True, uid=None):
    named = NamedFile("tenants.red.token_file", path, secret)
    hosts.plan = replace(hosts.plan, files=(named,))
    hosts.uid = os.geteuid() if uid is None else uid
    [found] = hosts.ask(people.files)
    return found


def test_files_that_settings_name(hosts, tmp_path):
    assert hosts.ask(people.files) == []
    path = tmp_path / "token"
    found = ask_file(hosts, path)
    assert is_told(found, Level.FAIL, "tenants.red.token_file", f"{path} is not there")
    path.write_text("secret")
    path.chmod(0o644)
    assert is_told(ask_file(hosts, path), Level.FAIL, "mode 644", f"chmod 0600 {path}")
    assert all_ok([ask_file(hosts, path, secret=False)])
    path.chmod(0o600)
    assert all_ok([ask_file(hosts, path)])
    other = os.geteuid() + 1
    assert is_told(ask_file(hosts, path, uid=other), Level.FAIL, f"chown {other} {path}")
