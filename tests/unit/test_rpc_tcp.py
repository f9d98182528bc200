"""Which TCP ports are refused before they open, and what a bucket and an audit log count."""

import asyncio
import errno
import logging
import os
import socket
from pathlib import Path

import grpc
import pytest

from kvd.clock import NS_PER_S
from kvd.config import TcpSettings, TenantSettings
from kvd.errors import KvdError
from kvd.rpc.audit import LINES_AT_ONCE, Audit
from kvd.rpc.bucket import Bucket
from kvd.rpc.credentials import Credentials
from kvd.rpc.tcp import Certificates, add_port, check_tcp, tcp_options
from tests.e2e.certificates import Authority

NOWHERE = Path("/nonexistent/file")


def held(tmp_path, *, token: bool = True, names: tuple[str, ...] = ()) -> Credentials:
    path = tmp_path / "tokens"
    path.touch(mode=0o600)
    path.write_text("t" * 40)
    return Credentials(
        [TenantSettings("a", token_file=path if token else None, client_names=names)], lambda: 0
    )


def at(host: str, *files: Path) -> TcpSettings:
    return TcpSettings(host, 9471, *files)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_plain_tcp_is_of_this_machine(tmp_path, host):
    check_tcp(at(host), held(tmp_path))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "node-7", "localhost.example"])
def test_plain_tcp_that_others_reach_is_refused(tmp_path, host):
    with pytest.raises(KvdError, match="in the clear; add certificate and key to"):
        check_tcp(at(host), held(tmp_path))
    check_tcp(at(host, NOWHERE, NOWHERE), held(tmp_path))


def test_never_open(tmp_path):
    local = "127.0.0.1"
    with pytest.raises(KvdError, match="add token_file to .tenants.NAME., or client_ca"):
        check_tcp(at(local), held(tmp_path, token=False))
    with pytest.raises(KvdError, match="add token_file"):
        # Names count for nothing where no certificate is asked for.
        check_tcp(at(local), held(tmp_path, token=False, names=("n",)))
    with pytest.raises(KvdError, match="add client_names or token_file"):
        check_tcp(at(local, NOWHERE, NOWHERE, NOWHERE), held(tmp_path, token=False))
    check_tcp(at(local, NOWHERE, NOWHERE, NOWHERE), held(tmp_path, token=False, names=("n",)))


def bind(tcp: TcpSettings) -> str:
    async def bound() -> str:
        return add_port(grpc.aio.server(options=tcp_options()), tcp)

    return asyncio.run(bound())


def test_a_port_that_is_taken_is_said():
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(KvdError, match=f"cannot listen on {address}"):
            bind(TcpSettings("127.0.0.1", other.getsockname()[1]))


def test_files_that_do_not_fit_are_said(tmp_path):
    certificate, key = tmp_path / "c", tmp_path / "k"
    with pytest.raises(KvdError, match=f"{certificate}: No such file"):
        bind(TcpSettings("127.0.0.1", 0, certificate, key))
    for path in (certificate, key):
        path.write_text("nothing\n")
    key.chmod(0o644)
    with pytest.raises(KvdError, match="mode 0644"):
        bind(TcpSettings("127.0.0.1", 0, certificate, key))
    key.chmod(0o600)
    with pytest.raises(KvdError, match=r"certificate .* and tcp.key .* do not fit"):
        bind(TcpSettings("127.0.0.1", 0, certificate, key))


# ---- certificates ----


@pytest.fixture
def served(tmp_path):
    """Return files of TLS that are in use, and another pair of the same names."""
    authority = Authority()
    certificate, key = authority.issue("a").write(tmp_path, "a")
    return Certificates(TcpSettings("127.0.0.1", 0, certificate, key)), authority.issue("a")


def replace(tmp_path, pair, mode=0o600):
    """Put a pair where another one is, as tools that renew certificates do."""
    for name, data in (("a.key", pair.key), ("a.crt", pair.certificate)):
        fresh = tmp_path / f"{name}.new"
        fresh.write_bytes(data)
        fresh.chmod(mode)
        fresh.rename(tmp_path / name)


def test_a_key_that_was_refused_is_read_once_it_is_mended(tmp_path, served, caplog):
    certificates, other = served
    replace(tmp_path, other, mode=0o644)
    assert [certificates.fetch() for _ in range(5)] == [None] * 5
    assert caplog.text.count("chmod 0600") == 1 and len(caplog.records) == 1, "it is said once"
    (tmp_path / "a.key").chmod(0o600)
    assert certificates.fetch() is not None and certificates.fetch() is None


def test_a_key_that_could_not_be_read_is_read_later(tmp_path, served, caplog, monkeypatch):
    certificates, other = served
    replace(tmp_path, other)

    def denied(*_):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), "a.key")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", denied)
        assert certificates.fetch() is None and certificates.fetch() is None
    assert len(caplog.records) == 1
    assert certificates.fetch() is not None


def test_a_pair_of_which_half_is_there_is_read_when_it_is_whole(tmp_path, served, caplog):
    certificates, other = served
    before = (tmp_path / "a.key").read_bytes()
    replace(tmp_path, other)
    (tmp_path / "a.key").write_bytes(before)
    assert certificates.fetch() is None and "do not fit" in caplog.text
    replace(tmp_path, other)
    assert certificates.fetch() is not None and certificates.fetch() is None


# ---- buckets ----


def test_a_bucket_gives_a_second_at_once_and_then_its_rate():
    bucket = Bucket(5, 5, 0)
    assert [bucket.take(0) for _ in range(5)] == [0] * 5
    assert bucket.take(0) == NS_PER_S // 5
    assert bucket.take(NS_PER_S // 10) == NS_PER_S // 10
    assert bucket.take(NS_PER_S // 5) == 0
    assert bucket.take(NS_PER_S // 5) > 0
    # It never holds more than it is large, however long nobody asks.
    assert [bucket.take(10**6 * NS_PER_S) > 0 for _ in range(6)] == [False] * 5 + [True]


def test_a_bucket_loses_nothing_by_being_asked_often():
    bucket, taken = Bucket(7, 7, 0), 0
    for now_ns in range(0, 10 * NS_PER_S, NS_PER_S // 1000):
        taken += bucket.take(now_ns) == 0
    assert taken == 7 + 10 * 7 - 1


def test_what_was_begun_may_be_ended_below_nothing():
    bucket = Bucket(3, 3, 0)
    assert [bucket.take(0) > 0 for _ in range(4)] == [False, False, False, True]
    assert [bucket.take(0, overdraw=True) > 0 for _ in range(4)] == [False, False, False, True]
    assert bucket.take(NS_PER_S) > 0, "what was overdrawn is paid first"
    assert bucket.take(2 * NS_PER_S) == 0


def test_a_rate_below_one():
    bucket = Bucket(0.25, 1, 0)
    assert bucket.take(0) == 0 and bucket.take(0) == 4 * NS_PER_S
    assert bucket.take(4 * NS_PER_S) == 0


# ---- audit ----


def test_an_audit_log_counts_what_it_does_not_say(caplog):
    now = [0]
    caplog.set_level(logging.WARNING, "kvd.audit")
    counted: list[str] = []
    audit = Audit(lambda: now[0], counted.append)
    for _ in range(1000):
        audit.denied("attach", "ipv4:192.0.2.1:5", "a token that no tenant has")
    assert len(caplog.records) == LINES_AT_ONCE
    now[0] = 5 * NS_PER_S
    audit.denied("attach", "ipv4:192.0.2.1:6", "names\nof\x1b[0m lines")
    last = caplog.records[-1].getMessage()
    assert last.endswith(f"; {1000 - LINES_AT_ONCE} more since the last such line")
    assert "names?of?[0m lines" in last and "192.0.2.1:6" in last
    assert counted == ["attach"] * 1001
