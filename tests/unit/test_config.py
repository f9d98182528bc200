"""Settings of a daemon: flags over environment over file over defaults, and what is refused."""

import os
from pathlib import Path

import pytest

from kvd.config import (
    LogSettings,
    MetricsSettings,
    SsdSettings,
    TcpSettings,
    TenantSettings,
    memory_bytes,
    serve_config,
)
from kvd.errors import ErrorKind, KvdError
from kvd.limits import GIB, MIB, Limits
from tests.unit.settings_scene import NO_FILE, configured


def told(flags=None, environment=None):
    return serve_config(flags or {}, environment or {}, NO_FILE)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"dram.size": "10GB"}, ("--dram is '10GB'", "KiB", "GiB")),
        ({"dram.size": "-1GiB"}, ("'-1GiB'", "GiB")),
        ({"dram.size": "9999TiB"}, ("'9999TiB'", "memory")),
        ({"dram.size": "1"}, ("'1'", "1MiB")),
        ({"dram.size": ""}, ("--dram is ''", "1MiB")),
        ({"allow_uids": ["root"]}, ("'root'", "numeric")),
        ({"allow_uids": ["4294967295"]}, ("4294967295", "4294967294")),
        ({"drain_seconds": "soon"}, ("'soon'", "3600")),
        ({"drain_seconds": "nan"}, ("'nan'", "3600")),
        ({"drain_seconds": "inf"}, ("'inf'", "3600")),
        ({"drain_seconds": "3601"}, ("'3601'", "3600")),
        ({"tenants": ["a/b"]}, ("--tenant", "'a/b'")),
        ({"tenants": [".."]}, ("'..'",)),
        *(
            ({"tenants": [name]}, (repr(name),))
            for name in (
                ".",
                "../red",
                "/tmp",
                "",
                " ",
                "a b",
                "é",
                "ａ",
                "a" * 65,
                "a\n",
                "\0a",
                "-x",
                "_default",
                "a\u200b",
                "\ud800",
            )
        ),
        ({"tenants": ["a", "a"]}, ("once",)),
        ({"tenants": [f"t{n}" for n in range(65)]}, ("--tenant", "64")),
        ({"directory": "/tmp/" + "x" * 100}, ("107", "/default/session.sock")),
        ({"directory": ""}, ("--directory is ''", "a path")),
        ({"ssd.budget": "10GB"}, ("--ssd is '10GB'", "KiB", "TiB")),
        ({"ssd.budget": "0"}, ("--ssd is '0'", "1MiB")),
        ({"ssd.data": ["/d"], "ssd.daily_writes": "much"}, ("ssd-daily-writes is 'much'", "GiB")),
        ({"ssd.data": ["/d"], "ssd.daily_writes": "1"}, ("ssd-daily-writes is '1'", "1MiB")),
        ({"ssd.daily_writes": "1GiB"}, ("ssd-daily-writes", "--data", "--ssd")),
        ({"ssd.data": [f"/{n}" for n in range(256)]}, ("--data", "255")),
        ({"ssd.data": ["/d", "/d/"]}, ("--data", "once")),
        ({"metrics.listen": "9470"}, ("--metrics-listen is '9470'", "HOST:PORT")),
        ({"metrics.listen": "a:65536"}, ("'a:65536'", "65535")),
        ({"traces.endpoint": "ftp://a"}, ("--traces-endpoint", "http://")),
        ({"log.level": "loud"}, ("--log-level is 'loud'", "debug, info, warning, error")),
        ({"tcp.listen": "localhost:1"}, ("--tcp-listen", "token_file")),
        ({"tcp.certificate": "/c"}, ("--tcp-certificate", "tcp.key")),
        ({"tcp.key": "/k"}, ("--tcp-key", "tcp.certificate")),
        ({"tcp.client_ca": "/k"}, ("--tcp-client-ca", "tcp.certificate")),
        ({"limits.sessions_max": "1.5"}, ("--limits-sessions-max is '1.5'", "1 to 4096")),
        ({"limits.slab_bytes": "4194305"}, ("--limits-slab-bytes", "multiple of 4KiB")),
        (
            {"limits.deadline_seconds": "9", "limits.deadline_seconds_max": "8"},
            ("--limits-deadline-seconds is '9'", "limits.deadline_seconds_max, which is 8"),
        ),
    ],
    ids=lambda value: str(value)[:60] if isinstance(value, dict) else "",
)
def test_what_is_not_allowed_is_named_with_what_is(flags, words):
    with pytest.raises(KvdError) as refused:
        told(flags)
    assert refused.value.kind == ErrorKind.INVALID
    assert all(word in refused.value.message for word in words), refused.value.message
    assert "\n" not in refused.value.message


def test_a_bad_variable_is_named():
    with pytest.raises(KvdError, match="KVD_DRAM is 'much'"):
        told(environment={"KVD_DRAM": "much"})
    with pytest.raises(KvdError, match="KVD_TENANTS is 'a,a'.*once"):
        told(environment={"KVD_TENANTS": "a,a"})


def test_defaults_need_nothing_set():
    config = told()
    assert config.directory == Path("/run/kvd") and config.tenants == (TenantSettings("default"),)
    assert config.dram_bytes == min(memory_bytes() // 4, 4 * GIB)
    assert config.allowed_uids == {os.geteuid(), 0} and config.ssd is None and config.tcp is None
    assert config.metrics == MetricsSettings("127.0.0.1", 9470, is_default=True)
    assert config.log == LogSettings("info", "auto") and config.traces_endpoint == ""
    assert config.limits == Limits()
    assert told(environment={"XDG_RUNTIME_DIR": "/x"}).directory == Path("/x/kvd")


def test_flags_go_over_environment_over_file_over_defaults(tmp_path):
    text = """
        directory = "/c"
        allow_uids = [9]
        drain_seconds = "3s"
        dram.size = "64MiB"
        tenants.yellow = {}
    """
    config = configured(tmp_path, text)
    assert (str(config.directory), config.tenant_names) == ("/c", ("yellow",))
    assert config.dram_bytes == 64 * MIB and config.allowed_uids == {9}
    assert config.limits.drain_ns == 3_000_000_000
    environment = {
        "KVD_DIRECTORY": "/e",
        "KVD_TENANTS": "red,blue",
        "KVD_DRAM": "65MiB",
        "KVD_ALLOW_UIDS": "5,6",
        "KVD_DRAIN_SECONDS": "0.5",
    }
    config = configured(tmp_path, text, environment=environment)
    assert (str(config.directory), config.tenant_names) == ("/e", ("red", "blue"))
    assert config.dram_bytes == 65 * MIB and config.allowed_uids == {5, 6}
    assert config.limits.drain_ns == 500_000_000
    flags = {"directory": "/f", "tenants": ["green"], "dram.size": "66MiB", "allow_uids": ["7"],
             "drain_seconds": "2"}  # fmt: skip
    config = configured(tmp_path, text, flags, environment)
    assert (str(config.directory), config.tenant_names) == ("/f", ("green",))
    assert config.dram_bytes == 66 * MIB and config.allowed_uids == {7}
    assert config.limits.drain_ns == 2_000_000_000


def test_an_empty_variable_says_nothing():
    config = told(environment={"KVD_DRAM": "", "KVD_TENANTS": "", "KVD_METRICS_LISTEN": ""})
    assert config.tenant_names == ("default",) and config.metrics.port == 9470


def test_a_place_or_a_size_brings_the_ssd_tier():
    def ssd(environment=None, **flags):
        return told({f"ssd.{name}": said for name, said in flags.items()}, environment).ssd

    assert ssd(data=["/a", "b:c"]) == SsdSettings((Path("/a"), Path("b:c").absolute()))
    assert ssd(budget="3GiB") == SsdSettings((Path("/var/lib/kvd"),), 3 * GIB)
    at_home = {"XDG_STATE_HOME": "/me/state", "KVD_SSD": "1.5GiB"}
    assert ssd(at_home) == SsdSettings((Path("/me/state/kvd"),), 3 * GIB // 2)
    environment = {"KVD_DATA": "/a:/b:", "KVD_SSD": "1GiB", "KVD_SSD_DAILY_WRITES": "2GiB"}
    assert ssd(environment) == SsdSettings((Path("/a"), Path("/b")), 1 * GIB, 2 * GIB)
    flags = {"data": ["/c"], "budget": "4GiB", "daily_writes": "5GiB"}
    assert ssd(environment, **flags) == SsdSettings((Path("/c"),), 4 * GIB, 5 * GIB)
    assert ssd(environment, daily_writes="0").daily_write_bytes == 0
    assert ssd(environment, budget="auto").budget_bytes is None


def test_listeners_are_on_where_they_are_said_and_off_when_that_is_said():
    assert told({"metrics.listen": "off"}).metrics is None
    assert told({"metrics.listen": ""}).metrics is None
    assert told(environment={"KVD_METRICS_LISTEN": "off"}).metrics is None
    said = told({"metrics.listen": "127.0.0.1:9470"}).metrics
    assert said == MetricsSettings("127.0.0.1", 9470, is_default=False)
    assert told({"metrics.listen": "[::]:0"}).metrics == MetricsSettings("::", 0)


def test_tenants_of_the_file_bring_their_settings(tmp_path):
    text = """
        dram.size = "64MiB"
        ssd = { data = ["/d"], budget = "2GiB" }
        tcp = { listen = "0.0.0.0:9471", certificate = "/c", key = "/k", client_ca = "/a" }
        [tenants.red]
        dram = "32MiB"
        ssd = "1GiB"
        token_file = "/t/red"
        client_names = ["red.example"]
        requests_per_second = 10
        bytes_per_second = "1MiB"
        [tenants.blue]
    """
    red = TenantSettings(
        "red", 32 * MIB, GIB, Path("/t/red"), ("red.example",), 10.0, 1 * MIB
    )  # fmt: skip
    config = configured(tmp_path, text)
    assert config.tenants == (red, TenantSettings("blue"))
    assert config.tcp == TcpSettings("0.0.0.0", 9471, Path("/c"), Path("/k"), Path("/a"))
    # Names from elsewhere choose; those without a table have no further settings.
    config = configured(tmp_path, text, {"tenants": ["green", "red"]})
    assert config.tenants == (TenantSettings("green"), red)
    assert configured(tmp_path, text, None, {"KVD_TENANTS": "red"}).tenants == (red,)
