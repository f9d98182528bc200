"""What a daemon is given: settings put together, and judged as a whole.

Each one is read, refused and ranked in kvd.settings_*; nothing here opens what a setting names.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from kvd.limits import GIB, MIB, PAGE_BYTES, Limits
from kvd.settings_checks import check_identities, check_quotas, check_tcp
from kvd.settings_sources import DEFAULT_FILE, Flags, Said, Settled, settle
from kvd.settings_values import Address
from kvd.units import seconds_text, size_text

DRAM_BYTES_DEFAULT_MAX = 4 * GIB  # Nobody should lose more memory to a daemon he did not size.
SOCKET_NAMES = ("session.sock", "slabs.sock", "grpc.sock")
ADMIN_SOCKET = "admin.sock"
SOCKET_PATH_BYTES_MAX = 107  # Of sockaddr_un, less its closing zero.


@dataclass(frozen=True, slots=True)
class TenantSettings:
    """A quota of None, and a rate of 0: no bound of its own."""

    name: str
    dram_quota_bytes: int | None = None
    ssd_quota_bytes: int | None = None
    token_file: Path | None = None
    client_names: tuple[str, ...] = ()
    requests_per_second: float = 0
    bytes_per_second: int = 0


@dataclass(frozen=True, slots=True)
class SsdSettings:
    """`budget_bytes` None: as the file systems of the directories have room, within bounds.

    `daily_write_bytes` 0: as much as comes.
    """

    directories: tuple[Path, ...]
    budget_bytes: int | None = None
    daily_write_bytes: int = 0


@dataclass(frozen=True, slots=True)
class TcpSettings:
    """A certificate comes with its key, or neither; a client_ca only with them."""

    host: str
    port: int
    certificate: Path | None = None
    key: Path | None = None
    client_ca: Path | None = None


@dataclass(frozen=True, slots=True)
class MetricsSettings:
    """`is_default`: nobody asked for it, so a taken port is no reason to end."""

    host: str
    port: int
    is_default: bool = False


@dataclass(frozen=True, slots=True)
class LogSettings:
    level: str = "info"
    format: str = "auto"


@dataclass(frozen=True, slots=True)
class ServeConfig:
    """What is off is None, or empty."""

    directory: Path
    tenants: tuple[TenantSettings, ...]
    dram_bytes: int
    allowed_uids: frozenset[int]
    limits: Limits
    ssd: SsdSettings | None = None
    tcp: TcpSettings | None = None
    metrics: MetricsSettings | None = None
    log: LogSettings = LogSettings()
    traces_endpoint: str = ""

    @property
    def tenant_names(self) -> tuple[str, ...]:
        return tuple(tenant.name for tenant in self.tenants)


def serve_config(
    flags: Flags, environment: Mapping[str, str], default_file: Path = DEFAULT_FILE
) -> ServeConfig:
    """Return the settings of a daemon; raise INVALID for the first one that is not allowed."""
    return build(complete(settle(flags, environment, default_file), environment))


def complete(settled: Settled, environment: Mapping[str, str]) -> Settled:
    """Return the settings with what this process and its machine make of those left open.

    The budget of the ssd tier stays open: it takes a look at the file systems, at the start.
    """
    full = dict(settled)

    def fill(key: str, value: object) -> None:
        if not full[key].value:
            full[key] = replace(full[key], value=value)

    fill("directory", _default_place(environment, "XDG_RUNTIME_DIR", "/run"))
    fill("dram.size", min(memory_bytes() // 4, DRAM_BYTES_DEFAULT_MAX))
    fill("allow_uids", tuple(sorted({os.geteuid(), 0})))
    if full["ssd.budget"].value:
        fill("ssd.data", (_default_place(environment, "XDG_STATE_HOME", "/var/lib"),))
    return full


def build(settled: Settled) -> ServeConfig:
    """Return the settings of a daemon from complete ones; raise INVALID if two contradict."""

    def value(key: str):  # Of the type that the kind of the setting says.
        return settled[key].value

    names = value("tenants")
    _check_directory(settled["directory"], names)
    _check_dram(settled["dram.size"])
    for check in (check_quotas, check_identities, check_tcp):
        check(settled, names)
    listen = value("tcp.listen")
    ssd = _ssd(settled)
    tenants = tuple(_tenant(settled, name) for name in names)
    return ServeConfig(
        value("directory"),
        tenants,
        value("dram.size"),
        frozenset(value("allow_uids")),
        _limits(settled),
        ssd,
        _tcp(settled, listen) if listen else None,
        _metrics(settled["metrics.listen"]),
        LogSettings(value("log.level"), value("log.format")),
        value("traces.endpoint") or "",
    )


def memory_bytes() -> int:
    """Return the memory this process may use: the machine's, or its control group's if less."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        text = Path("/sys/fs/cgroup/memory.max").read_text().strip()
    except OSError:
        return total
    return min(total, int(text)) if text.isdigit() else total


def _default_place(environment: Mapping[str, str], variable: str, otherwise: str) -> Path:
    return Path(environment.get(variable, "") or otherwise).absolute() / "kvd"


# ---- settings that go together ----


def _ssd(settled: Settled) -> SsdSettings | None:
    """Return what the ssd tier is given; None where neither a place nor a size is named."""
    data, budget, daily = (settled[f"ssd.{name}"] for name in ("data", "budget", "daily_writes"))
    if data.value:
        return SsdSettings(data.value, budget.value, daily.value or 0)  # type: ignore[arg-type]
    if daily.value:
        raise daily.refuse("none without ssd.data (--data) or ssd.budget (--ssd)")
    return None


def _tenant(settled: Settled, name: str) -> TenantSettings:
    def said(of: str) -> Said:
        return settled[f"tenants.{name}.{of}"]

    return TenantSettings(
        name,
        said("dram").value,  # type: ignore[arg-type]
        said("ssd").value,  # type: ignore[arg-type]
        said("token_file").value,  # type: ignore[arg-type]
        said("client_names").value,  # type: ignore[arg-type]
        said("requests_per_second").value,  # type: ignore[arg-type]
        said("bytes_per_second").value or 0,  # type: ignore[arg-type]
    )


def _tcp(settled: Settled, listen: Address) -> TcpSettings:
    files = (settled[f"tcp.{name}"].value for name in ("certificate", "key", "client_ca"))
    return TcpSettings(listen.host, listen.port, *files)  # type: ignore[arg-type]


def _metrics(said: Said) -> MetricsSettings | None:
    if said.value is None:
        return None
    assert isinstance(said.value, Address)
    return MetricsSettings(said.value.host, said.value.port, said.source == "default")


def _limits(settled: Settled) -> Limits:
    """Return the bounds, of which only those that somebody named differ from their defaults."""
    named = {
        said.setting.field: said.value
        for said in settled.values()
        if said.setting.field and said.source != "default"
    }
    limits = Limits(**named)  # type: ignore[arg-type]
    if limits.slab_bytes % PAGE_BYTES:
        raise settled["limits.slab_bytes"].refuse(f"a multiple of {size_text(PAGE_BYTES)}")
    if limits.deadline_ns > limits.deadline_ns_max:
        longest = seconds_text(limits.deadline_ns_max)
        raise settled["limits.deadline_seconds"].refuse(
            f"at most limits.deadline_seconds_max, which is {longest}"
        )
    return limits


# ---- what is refused though each setting for itself is allowed ----


def _check_directory(said: Said, tenants: tuple[str, ...]) -> None:
    directory = said.value
    assert isinstance(directory, Path)
    longest = max(
        (str(directory / tenant / name) for tenant in tenants for name in SOCKET_NAMES),
        key=lambda path: len(os.fsencode(path)),
    )
    if len(os.fsencode(longest)) > SOCKET_PATH_BYTES_MAX:
        raise said.refuse(
            f"one whose sockets have at most {SOCKET_PATH_BYTES_MAX} bytes of path; {longest} "
            f"has {len(os.fsencode(longest))}"
        )


def _check_dram(said: Said) -> None:
    memory = memory_bytes()
    assert isinstance(said.value, int)
    if said.value > memory:
        raise said.refuse(f"1MiB to the {memory // MIB}MiB of memory there are")
