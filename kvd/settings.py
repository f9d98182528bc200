"""The one table of what can be set about a daemon, as data; rows of [limits] are beside it.

Flags, environment, file, `kvd config` and the documents all come from it or are compared with it.
"""

from dataclasses import dataclass
from enum import Enum

from kvd.clock import NS_PER_S
from kvd.limits import KIB, MIB

SIZE_MOST = 1 << 54  # Larger than any machine, and every sum of a few of them is exact.
TENANT_SECTION = "tenants.NAME"  # What is set for one tenant, in a table of its own in the file.


class Kind(Enum):
    """What a value is, and with which unit it is written."""

    SIZE = "size"  # In bytes.
    SECONDS = "seconds"  # In nanoseconds, once read.
    COUNT = "count"
    RATE = "rate"
    WORD = "word"
    PATH = "path"
    PATHS = "paths"
    USERS = "users"
    NAMES = "names"  # Of tenants.
    TEXTS = "texts"
    ADDRESS = "address"
    URL = "url"


@dataclass(frozen=True, slots=True)
class Setting:
    """One row. `least` and `most` are in the unit of the value once read, or count a list."""

    section: str
    name: str
    kind: Kind
    default: str  # As the file would say it.
    help: str
    flag: str = ""
    variable: str = ""
    least: int = 0
    most: int = 0
    nothing: tuple[str, ...] = ()  # Words for no value: what that means is the help's to say.
    words: tuple[str, ...] = ()
    field: str = ""  # Of kvd.limits.Limits, where it is one of its bounds.

    @property
    def key(self) -> str:
        return f"{self.section}.{self.name}" if self.section else self.name


def row(key: str, kind: Kind, default: str, meaning: str, **more: object) -> Setting:
    """Make a row whose flag and variable are named after its key, unless it says others."""
    section, _, name = key.rpartition(".")
    if section != TENANT_SECTION:
        more.setdefault("flag", "--" + key.replace(".", "-").replace("_", "-"))
        more.setdefault("variable", "KVD_" + key.replace(".", "_").upper())
    return Setting(section, name, kind, default, meaning, **more)  # type: ignore[arg-type]


OFF = ("", "off")

GENERAL = (
    row("directory", Kind.PATH, '"auto"',
        "Runtime directory, one directory for each tenant inside: where clients find the sockets. "
        "auto: $XDG_RUNTIME_DIR/kvd, else /run/kvd.", nothing=("auto",)),
    row("allow_uids", Kind.USERS, "[]",
        "Numeric ids of the users that may connect. Empty: the daemon's own, and 0.",
        flag="--allow-uid", most=1024),
    row("drain_seconds", Kind.SECONDS, "10",
        "From SIGTERM to exit at the latest: the time that clients have to end, and writes to get "
        "to disk.", most=3600 * NS_PER_S, field="drain_ns"),
    row("tenants", Kind.NAMES, '["default"]',
        "Names of the tenants. In the file each has a table [tenants.NAME], which may be empty; "
        "the flag (once for each) and the variable choose the tenants there are.",
        flag="--tenant", least=1, most=64),
)  # fmt: skip

DRAM = (
    row("dram.size", Kind.SIZE, '"auto"',
        "Host memory for KV. auto: a quarter of the memory there is, at most 4GiB.",
        flag="--dram", variable="KVD_DRAM", least=MIB, most=SIZE_MOST, nothing=("auto",)),
)  # fmt: skip

SSD = (
    row("ssd.data", Kind.PATHS, "[]",
        "Data directories, one for each drive; they belong together from then on. The ssd tier is "
        "on when they or a budget are given; with a budget alone they are $XDG_STATE_HOME/kvd, "
        "else /var/lib/kvd.",
        flag="--data", variable="KVD_DATA", most=255),
    row("ssd.budget", Kind.SIZE, '"auto"',
        "Disk space for everything under all data directories. "
        "auto: a tenth of what is free, at most 16GiB.",
        flag="--ssd", variable="KVD_SSD", least=MIB, most=SIZE_MOST, nothing=("auto",)),
    row("ssd.daily_writes", Kind.SIZE, '"0"',
        "The most that is written to disk in a day, to spare its life. 0: no bound.",
        least=MIB, most=SIZE_MOST, nothing=("0",)),
)  # fmt: skip

TENANTS = (
    row("tenants.NAME.dram", Kind.SIZE, '"none"',
        "The most that this tenant may hold of dram, and is sure of. none: it shares what is left.",
        least=MIB, most=SIZE_MOST, nothing=("none",)),
    row("tenants.NAME.ssd", Kind.SIZE, '"none"',
        "The most that this tenant may hold on disk, and is sure of. none: it shares what is left.",
        least=MIB, most=SIZE_MOST, nothing=("none",)),
    row("tenants.NAME.token_file", Kind.PATH, '""',
        "File of this tenant's tokens, one a line, for clients that attach by gRPC. Empty: none.",
        nothing=("",)),
    row("tenants.NAME.client_names", Kind.TEXTS, "[]",
        "Names in client certificates by which this tenant is known over TCP; needs tcp.client_ca.",
        most=64),
    row("tenants.NAME.requests_per_second", Kind.RATE, "0",
        "Requests in a second, of all sessions of this tenant. 0: no bound.", most=1_000_000),
    row("tenants.NAME.bytes_per_second", Kind.SIZE, '"0"',
        "Bytes in a second that are delivered to this tenant as pieces. 0: no bound.",
        least=64 * KIB, most=SIZE_MOST, nothing=("0",)),
)  # fmt: skip

TCP = (
    row("tcp.listen", Kind.ADDRESS, '""',
        "Where clients of other hosts connect, as 0.0.0.0:9471. Empty or off: nowhere.",
        nothing=OFF),
    row("tcp.certificate", Kind.PATH, '""',
        "Certificate of this daemon with its chain, as PEM. Empty: no TLS.", nothing=("",)),
    row("tcp.key", Kind.PATH, '""', "Private key of the certificate, as PEM.", nothing=("",)),
    row("tcp.client_ca", Kind.PATH, '""',
        "Authorities, as PEM, of which every client must show a certificate. Empty: no client "
        "needs one.", nothing=("",)),
)  # fmt: skip

OBSERVE = (
    row("metrics.listen", Kind.ADDRESS, '"127.0.0.1:9470"',
        "Where /metrics is served. Empty or off: nowhere. When nothing was said and "
        "the port is taken, the daemon goes without and warns.", nothing=OFF),
    row("log.level", Kind.WORD, '"info"', "Least level of what is logged.",
        words=("debug", "info", "warning", "error")),
    row("log.format", Kind.WORD, '"auto"',
        "Form of a line. auto: journal under systemd, else text.",
        words=("auto", "text", "json", "journal")),
    row("traces.endpoint", Kind.URL, '""',
        "Where traces are sent by OTLP over HTTP, as http://127.0.0.1:4318. Empty or off: none.",
        nothing=OFF),
)  # fmt: skip
