"""Settings of a daemon: flags over environment over defaults, and what is refused by name."""

import os
from pathlib import Path

import pytest

from kvd.config import ServeFlags, SsdSettings, human, memory_bytes, parse_size, serve_config
from kvd.errors import ErrorKind, KvdError
from kvd.limits import GIB, KIB, MIB


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("10GiB", 10 * GIB),
        ("64 MiB", 64 * MIB),
        ("1.5GiB", 3 * GIB // 2),
        ("4096", 4096),
        ("4096B", 4096),
        ("8KiB", 8 * KIB),
    ],
)
def test_sizes(text, size):
    assert parse_size("dram", text) == size


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"dram": "10GB"}, ("dram", "'10GB'", "KiB", "GiB")),
        ({"dram": "-1GiB"}, ("'-1GiB'", "GiB")),
        ({"dram": "9999TiB"}, ("'9999TiB'", "memory")),
        ({"dram": "1"}, ("'1'", "1MiB")),
        ({"allowed_uids": ("root",)}, ("'root'", "numeric")),
        ({"allowed_uids": ("4294967295",)}, ("'4294967295'", "4294967294")),
        ({"drain_seconds": "soon"}, ("'soon'", "3600")),
        ({"drain_seconds": "nan"}, ("'nan'", "3600")),
        ({"drain_seconds": "3601"}, ("'3601'", "3600")),
        ({"tenants": ("a/b",)}, ("'a/b'",)),
        ({"tenants": ("..",)}, ("'..'",)),
        ({"tenants": ("a", "a")}, ("once",)),
        ({"tenants": tuple(f"t{n}" for n in range(65))}, ("65", "64")),
        ({"directory": "/tmp/" + "x" * 100}, ("107", "/default/session.sock")),
        ({"ssd": "10GB"}, ("ssd is '10GB'", "KiB", "TiB")),
        ({"ssd": "0"}, ("ssd is '0'", "1MiB")),
        ({"data": ("/d",), "ssd_daily_writes": "much"}, ("ssd-daily-writes is 'much'", "GiB")),
        ({"data": ("/d",), "ssd_daily_writes": "0"}, ("ssd-daily-writes is '0'", "1MiB")),
        ({"ssd_daily_writes": "1GiB"}, ("ssd-daily-writes", "--data or --ssd")),
        ({"data": tuple(f"/{n}" for n in range(256))}, ("data is '256'", "255")),
    ],
    ids=lambda value: str(next(iter(value.items()))) if isinstance(value, dict) else "",
)
def test_what_is_not_allowed_is_named_with_what_is(flags, words):
    with pytest.raises(KvdError) as refused:
        serve_config(ServeFlags(**flags), {})
    assert refused.value.kind == ErrorKind.INVALID
    assert all(word in refused.value.message for word in words), refused.value.message


def test_defaults_need_nothing_set():
    config = serve_config(ServeFlags(), {})
    assert config.directory == Path("/run/kvd") and config.tenants == ("default",)
    assert config.dram_bytes == min(memory_bytes() // 4, 4 * GIB)
    assert config.allowed_uids == {os.geteuid(), 0} and config.ssd is None
    assert serve_config(ServeFlags(), {"XDG_RUNTIME_DIR": "/x"}).directory == Path("/x/kvd")


def test_flags_go_over_environment_over_defaults():
    environment = {
        "KVD_DIRECTORY": "/e",
        "KVD_TENANTS": "red,blue",
        "KVD_DRAM": "65MiB",
        "KVD_ALLOW_UIDS": "5,6",
        "KVD_DRAIN_SECONDS": "0.5",
    }
    config = serve_config(ServeFlags(), environment)
    assert (str(config.directory), config.tenants) == ("/e", ("red", "blue"))
    assert config.dram_bytes == 65 * MIB and config.allowed_uids == {5, 6}
    assert config.limits.drain_ns == 500_000_000
    flags = ServeFlags("/f", ("green",), "66MiB", ("7",), "2")
    config = serve_config(flags, environment)
    assert (str(config.directory), config.tenants) == ("/f", ("green",))
    assert config.dram_bytes == 66 * MIB and config.allowed_uids == {7}
    assert config.limits.drain_ns == 2_000_000_000


def test_a_place_or_a_size_brings_the_ssd_tier():
    def ssd(environment=None, **flags):
        return serve_config(ServeFlags(**flags), environment or {}).ssd

    assert ssd(data=("/a", "b:c")) == SsdSettings((Path("/a"), Path("b:c").absolute()))
    assert ssd(ssd="3GiB") == SsdSettings((Path("/var/lib/kvd"),), 3 * GIB)
    at_home = {"XDG_STATE_HOME": "/me/state", "KVD_SSD": "1.5GiB"}
    assert ssd(at_home) == SsdSettings((Path("/me/state/kvd"),), 3 * GIB // 2)
    environment = {"KVD_DATA": "/a:/b:", "KVD_SSD": "1GiB", "KVD_SSD_DAILY_WRITES": "2GiB"}
    assert ssd(environment) == SsdSettings((Path("/a"), Path("/b")), 1 * GIB, 2 * GIB)
    flags = {"data": ("/c",), "ssd": "4GiB", "ssd_daily_writes": "5GiB"}
    assert ssd(environment, **flags) == SsdSettings((Path("/c"),), 4 * GIB, 5 * GIB)


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0B"), (1023, "1023B"), (1 * KIB, "1KiB"), (64 * MIB, "64MiB"), (10 * MIB + 1, "10.1MiB"),
     (16 * GIB, "16GiB"), (3 * GIB // 2, "1.5GiB")],
)  # fmt: skip
def test_sizes_for_people(size, text):
    assert human(size) == text


def test_what_there_is_is_not_said_to_be_more():
    assert (human(6 * GIB - 1), human(6 * GIB - 1, down=True)) == ("6GiB", "5.9GiB")
