"""Sockets that may not be used: one line says which path, whose it is, and what opens it."""

import contextlib
import os
import re
import socket
from pathlib import Path

import pytest

from kvd.client import Client
from tests.unit.test_client_session import until

STRANGER = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")


@pytest.fixture
def door(short_directory):
    """Yield a tenant's directory with both sockets, open to everybody."""
    tenant = short_directory / "run" / "red"
    tenant.mkdir(parents=True)
    listeners = []
    for name, kind in (("slabs.sock", socket.SOCK_SEQPACKET), ("session.sock", socket.SOCK_STREAM)):
        listeners.append(socket.socket(socket.AF_UNIX, kind))
        listeners[-1].bind(str(tenant / name))
        listeners[-1].listen()
        (tenant / name).chmod(0o666)
    for path in (tenant, tenant.parent, short_directory):
        path.chmod(0o755)
    yield tenant
    for listener in listeners:
        listener.close()


@contextlib.contextmanager
def somebody_else():
    os.setegid(STRANGER)
    os.seteuid(STRANGER)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)


def reason(tenant: Path) -> str:
    """Return why a client of another user is not connected."""
    with Client(tenant, "stranger") as client, somebody_else():
        until(lambda: "no permission" in client.status().reason, "the reason is shown")
        return client.status().reason


@needs_root
@pytest.mark.parametrize(
    ("path", "mode", "verb"),
    [
        ("run/red/slabs.sock", 0o600, "write to"),
        ("run/red", 0o700, "search"),
        ("run", 0o700, "search"),
        ("run", 0o644, "search"),
    ],
)
def test_what_is_closed_is_named_with_its_owner_and_mode(door, short_directory, path, mode, verb):
    closed = short_directory / path
    closed.chmod(mode)
    said = reason(door)
    assert f"uid {STRANGER} may not {verb} {closed}," in said
    assert f"uid 0 and gid 0, mode {mode:04o}" in said
    assert "allow_uids" in said and "\n" not in said


@needs_root
def test_a_file_mask_that_closed_all_is_named_from_the_outside_in(door, short_directory):
    for path in (door / "slabs.sock", door / "session.sock", door, door.parent):
        path.chmod(path.stat().st_mode & ~0o077)
    assert f"may not search {door.parent}," in reason(door)


@needs_root
def test_what_no_mode_explains_is_said_to_be_something_else(door, monkeypatch):
    (door / "slabs.sock").chmod(0o600)
    monkeypatch.setattr(os, "access", lambda *where, **how: True)
    assert re.search(f"refuse uid {STRANGER}, a security module", reason(door))
