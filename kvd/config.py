"""What a person can set about a daemon: flags over environment over defaults.

Refuses a bad value by naming it and what is allowed; decides nothing beyond that.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from kvd.clock import NS_PER_S
from kvd.errors import ErrorKind, KvdError
from kvd.limits import GIB, KIB, MIB, Limits

DRAM_BYTES_DEFAULT_MAX = 4 * GIB  # Nobody should lose more memory to a daemon he did not size.
UNITS = {"": 1, "B": 1, "KiB": KIB, "MiB": MIB, "GiB": GIB, "TiB": 1 << 40}
SOCKET_NAMES = ("session.sock", "slabs.sock", "grpc.sock")
SOCKET_PATH_BYTES_MAX = 107  # Of sockaddr_un, less its closing zero.
TENANT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
TENANTS_MAX = 64
DRAIN_SECONDS_MAX = 3600
DATA_DIRECTORIES_MAX = 255


@dataclass(frozen=True, slots=True)
class SsdSettings:
    """`budget_bytes` None: as the file systems of the directories have room, within bounds.

    `daily_write_bytes` 0: as much as comes.
    """

    directories: tuple[Path, ...]
    budget_bytes: int | None = None
    daily_write_bytes: int = 0


@dataclass(frozen=True, slots=True)
class ServeConfig:
    directory: Path
    tenants: tuple[str, ...]
    dram_bytes: int
    allowed_uids: frozenset[int]
    limits: Limits
    ssd: SsdSettings | None = None


@dataclass(frozen=True, slots=True)
class ServeFlags:
    """What was said on the command line; an empty field was not said."""

    directory: str = ""
    tenants: tuple[str, ...] = ()
    dram: str = ""
    allowed_uids: tuple[str, ...] = ()
    drain_seconds: str = ""
    data: tuple[str, ...] = ()
    ssd: str = ""
    ssd_daily_writes: str = ""


def _refuse(name: str, value: str, allowed: str) -> KvdError:
    return KvdError(ErrorKind.INVALID, f"{name} is {value!r}; allowed is {allowed}")


def parse_size(name: str, text: str) -> int:
    """Return bytes for text like `10GiB`; raise INVALID naming value and units otherwise."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)", text.strip())
    if match is None or match[2] not in UNITS:
        raise _refuse(name, text, "a number with one of the units " + " ".join(filter(None, UNITS)))
    return int(float(match[1]) * UNITS[match[2]])


def human(size_bytes: int, *, down: bool = False) -> str:
    """Return a size in the largest unit that leaves it at least 1, rounded up or `down`."""
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if size_bytes >= unit:
            tenths = size_bytes * 10 // unit if down else -(-size_bytes * 10 // unit)
            return f"{tenths // 10}.{tenths % 10}{name}".replace(".0", "")
    return f"{size_bytes}B"


def _parse_number(name: str, text: str, value_max: int) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= value_max:
        raise _refuse(name, text, f"a number from 0 to {value_max}")
    return value


def _parse_uid(name: str, text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,10}", text.strip()) or int(text) > 0xFFFFFFFE:
        raise _refuse(name, text, "a numeric user id from 0 to 4294967294")
    return int(text)


def memory_bytes() -> int:
    """Return the memory this process may use: the machine's, or its control group's if less."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        text = Path("/sys/fs/cgroup/memory.max").read_text().strip()
    except OSError:
        return total
    return min(total, int(text)) if text.isdigit() else total


def _default_directory(environment: Mapping[str, str]) -> str:
    runtime = environment.get("XDG_RUNTIME_DIR", "")
    return f"{runtime}/kvd" if runtime else "/run/kvd"


def _default_data(environment: Mapping[str, str]) -> str:
    state = environment.get("XDG_STATE_HOME", "")
    return f"{state}/kvd" if state else "/var/lib/kvd"


def _ssd_settings(flags: ServeFlags, environment: Mapping[str, str]) -> SsdSettings | None:
    """Return what the ssd tier is given; None where neither a place nor a size is named."""
    said = environment.get
    data = flags.data or tuple(filter(None, said("KVD_DATA", "").split(":")))
    size = flags.ssd or said("KVD_SSD", "")
    daily = flags.ssd_daily_writes or said("KVD_SSD_DAILY_WRITES", "")
    if not (data or size):
        if daily:
            raise _refuse("ssd-daily-writes", daily, "none without --data or --ssd")
        return None
    if len(data) > DATA_DIRECTORIES_MAX:
        raise _refuse("data", str(len(data)), f"1 to {DATA_DIRECTORIES_MAX} directories")
    directories = tuple(Path(each).absolute() for each in data or (_default_data(environment),))
    return SsdSettings(
        directories,
        _parse_positive("ssd", size) if size else None,
        _parse_positive("ssd-daily-writes", daily) if daily else 0,
    )


def _parse_positive(name: str, text: str) -> int:
    size_bytes = parse_size(name, text)
    if size_bytes < MIB:
        raise _refuse(name, text, "1MiB and more")
    return size_bytes


def _check_directory(directory: Path, tenants: tuple[str, ...]) -> None:
    longest = max(
        (str(directory / tenant / name) for tenant in tenants for name in SOCKET_NAMES),
        key=lambda path: len(os.fsencode(path)),
    )
    if len(os.fsencode(longest)) > SOCKET_PATH_BYTES_MAX:
        raise _refuse(
            "directory",
            str(directory),
            f"one whose sockets have at most {SOCKET_PATH_BYTES_MAX} bytes of path; {longest} "
            f"has {len(os.fsencode(longest))}",
        )


def _check_tenants(tenants: tuple[str, ...]) -> None:
    for tenant in tenants:
        if not TENANT_NAME.fullmatch(tenant):
            raise _refuse("tenant", tenant, "1 to 64 letters, digits, dots, dashes, underscores")
    if len(set(tenants)) != len(tenants):
        raise _refuse("tenants", " ".join(tenants), "each name once")
    if not 1 <= len(tenants) <= TENANTS_MAX:
        raise _refuse("tenants", str(len(tenants)), f"1 to {TENANTS_MAX} names")


def serve_config(flags: ServeFlags, environment: Mapping[str, str]) -> ServeConfig:
    """Return the settings of a daemon; raise INVALID for the first one that is not allowed."""
    said = environment.get
    directory = flags.directory or said("KVD_DIRECTORY", "") or _default_directory(environment)
    tenants = flags.tenants or tuple(said("KVD_TENANTS", "default").split(","))
    dram = flags.dram or said("KVD_DRAM", "")
    uids = flags.allowed_uids or tuple(filter(None, said("KVD_ALLOW_UIDS", "").split(",")))
    drain = flags.drain_seconds or said("KVD_DRAIN_SECONDS", "")

    _check_tenants(tenants)
    path = Path(directory).absolute()
    _check_directory(path, tenants)
    limits = Limits()
    memory = memory_bytes()
    dram_bytes = min(memory // 4, DRAM_BYTES_DEFAULT_MAX)
    if dram:
        dram_bytes = parse_size("dram", dram)
        if not MIB <= dram_bytes <= memory:
            raise _refuse("dram", dram, f"1MiB to the {memory // MIB}MiB of memory there are")
    if drain:
        seconds = _parse_number("drain-seconds", drain, DRAIN_SECONDS_MAX)
        limits = replace(limits, drain_ns=int(seconds * NS_PER_S))
    allowed = frozenset(_parse_uid("allow-uid", uid) for uid in uids) or {os.geteuid(), 0}
    ssd = _ssd_settings(flags, environment)
    return ServeConfig(path, tenants, dram_bytes, frozenset(allowed), limits, ssd)
