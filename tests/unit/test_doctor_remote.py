"""What the doctor says of a TCP port: real certificates and tokens, read as the daemon does."""

import argparse

import pytest

from kvd.cli.serve_flags import add_settings, said_flags
from kvd.config import serve_config
from kvd.doctor import remote
from kvd.doctor.findings import Level
from kvd.doctor.plan import Scene, plan_of
from kvd.host.reading import Host
from tests.e2e.certificates import Authority
from tests.unit.doctor_scene import all_ok, is_told


@pytest.fixture
def ask(tmp_path):
    """Ask about a configuration: lines of [tcp], then those of the tenant red."""

    def run(*tcp, tenant=()):
        file = tmp_path / "kvd.toml"
        file.write_text("\n".join(["[tcp]", *tcp, "[tenants.red]", *tenant, ""]))
        parser = argparse.ArgumentParser()
        add_settings(parser)
        words = ["--config", str(file), "--dram", "64MiB"]
        plan = plan_of(serve_config(said_flags(parser.parse_args(words)), {}))
        [found] = remote.security(Scene(Host(), plan, 990))
        return found

    return run


@pytest.fixture
def token(tmp_path):
    path = tmp_path / "token"
    path.touch(mode=0o600)
    path.write_text("c" * 43 + "\n")
    return f"token_file = '{path}'"


@pytest.fixture
def pair(tmp_path):
    certificate, key = Authority().issue("node").write(tmp_path, "node")
    return f"certificate = '{certificate}'", f"key = '{key}'"


EVERYWHERE = "listen = '0.0.0.0:7000'"


def test_no_port_is_ok(ask):
    assert all_ok([ask()]) and "no TCP port" in ask().found


def test_ports_that_open(ask, token, pair, tmp_path):
    assert "without TLS" in ask("listen = '127.0.0.1:7000'", tenant=[token]).found
    found = ask(EVERYWHERE, *pair, tenant=[token])
    assert all_ok([found]) and "with TLS" in found.found
    (tmp_path / "ca.pem").write_bytes(Authority().pem)
    own = f"client_ca = '{tmp_path}/ca.pem'"
    assert all_ok([ask(EVERYWHERE, *pair, own, tenant=["client_names = ['red']"])])


def test_ports_that_the_daemon_refuses(ask, token, pair, tmp_path):
    other, _ = Authority().issue("other").write(tmp_path, "other")
    found = ask(EVERYWHERE, f"certificate = '{other}'", pair[1], tenant=[token])
    assert is_told(found, Level.FAIL, "do not fit", str(other))
    gone = f"key = '{tmp_path}/gone'"
    assert is_told(ask(EVERYWHERE, pair[0], gone, tenant=[token]), Level.FAIL, "gone")


def test_a_token_that_everybody_reads_is_refused(ask, token, pair, tmp_path):
    (tmp_path / "token").chmod(0o644)
    found = ask(EVERYWHERE, *pair, tenant=[token])
    assert is_told(found, Level.FAIL, "mode 0644", "chmod 0600")
