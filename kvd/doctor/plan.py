"""What of a daemon's configuration a host is compared with."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kvd.config import (
    ADMIN_SOCKET,
    SOCKET_NAMES,
    ServeConfig,
    TcpSettings,
    TenantSettings,
)
from kvd.host.footprint import daemon_bytes
from kvd.host.reading import Host


@dataclass(frozen=True, slots=True)
class Listen:
    """A TCP port that the daemon would listen on; without `required` it goes without."""

    name: str
    host: str
    port: int
    required: bool


@dataclass(frozen=True, slots=True)
class NamedFile:
    """A file that a setting names; of a secret one, nobody else may know the content."""

    setting: str
    path: Path
    secret: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """`ssd_bytes` None: no budget is named. Without `data` there is no disk tier."""

    directory: Path
    tenants: tuple[str, ...]
    dram_bytes: int
    slab_bytes: int
    allowed_uids: frozenset[int]
    data: tuple[Path, ...] = ()
    ssd_bytes: int | None = None
    listens: tuple[Listen, ...] = ()
    files: tuple[NamedFile, ...] = ()
    tcp: TcpSettings | None = None
    tenant_settings: tuple[TenantSettings, ...] = ()

    @property
    def memory_bytes(self) -> int:
        """Dram, and what the daemon itself is to be left."""
        return self.dram_bytes + daemon_bytes(self.dram_bytes)

    @property
    def admin_socket(self) -> Path:
        return self.directory / ADMIN_SOCKET

    @property
    def sockets(self) -> tuple[Path, ...]:
        """Return those of tenants, then the operators'."""
        own = (self.directory / tenant / name for tenant in self.tenants for name in SOCKET_NAMES)
        return (*own, self.admin_socket)

    @property
    def slabs(self) -> int:
        return -(-self.dram_bytes // self.slab_bytes)


@dataclass(frozen=True, slots=True)
class Scene:
    """What a probe looks at. `uid`: the daemon's. `running`: of a daemon on the directory, or 0."""

    host: Host
    plan: Plan
    uid: int
    running: int = 0


def plan_of(config: ServeConfig) -> Plan:
    ssd = config.ssd
    return Plan(
        config.directory,
        config.tenant_names,
        config.dram_bytes,
        config.limits.slab_bytes,
        config.allowed_uids,
        ssd.directories if ssd else (),
        ssd.budget_bytes if ssd else None,
        tuple(_listens(config)),
        tuple(_files(config)),
        config.tcp,
        config.tenants,
    )


def _listens(config: ServeConfig) -> Iterator[Listen]:
    if config.tcp:
        yield Listen("tcp", config.tcp.host, config.tcp.port, required=True)
    if config.metrics:
        metrics = config.metrics
        yield Listen("metrics", metrics.host, metrics.port, required=not metrics.is_default)


def _files(config: ServeConfig) -> Iterator[NamedFile]:
    for name in ("certificate", "key", "client_ca"):
        path = getattr(config.tcp, name, None)
        if path:
            yield NamedFile(f"tcp.{name}", path, secret=name == "key")
    for tenant in config.tenants:
        if tenant.token_file:
            yield NamedFile(f"tenants.{tenant.name}.token_file", tenant.token_file, secret=True)
