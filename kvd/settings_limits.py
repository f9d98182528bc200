"""The rows of [limits]: the bounds of kvd.limits that an operator may move, and how far."""

from kvd.clock import NS_PER_S
from kvd.limits import GIB, MIB, Limits
from kvd.settings import DRAM, GENERAL, OBSERVE, SSD, TCP, TENANTS, Kind, Setting, row
from kvd.units import seconds_text, size_text

# Both sides count on these, or nothing depends on them that an operator can see.
NOT_SETTABLE = frozenset({
    "frame_bytes_max", "piece_bytes_max", "chunks_per_request_max", "lanes_per_request_max",
    "fds_per_message_max", "tick_ns",
})  # fmt: skip
_DEFAULTS = Limits()


def _count(field: str, least: int, most: int, meaning: str) -> Setting:
    return row(
        f"limits.{field}", Kind.COUNT, str(getattr(_DEFAULTS, field)), meaning,
        least=least, most=most, field=field,
    )  # fmt: skip


def _size(field: str, least: int, most: int, meaning: str) -> Setting:
    default = f'"{size_text(getattr(_DEFAULTS, field))}"'
    return row(f"limits.{field}", Kind.SIZE, default, meaning, least=least, most=most, field=field)


def _time(field: str, least_s: float, most_s: int, meaning: str) -> Setting:
    return row(
        "limits." + field.replace("_ns", "_seconds"), Kind.SECONDS,
        seconds_text(getattr(_DEFAULTS, field)), meaning,
        least=int(least_s * NS_PER_S), most=most_s * NS_PER_S, field=field,
    )  # fmt: skip


LIMITS = (
    _count("sessions_max", 1, 4096, "Sessions of all tenants together."),
    _count("keyspaces_per_session_max", 1, 4096, "Keyspaces that one session may register."),
    _count("requests_per_session_max", 16, 4096, "Requests of one session without an answer."),
    _count("leases_per_session_max", 1, 65_536, "Leases that one session may hold."),
    _size("lease_bytes_per_session_max", MIB, 1024 * GIB,
          "Bytes that the leases of one session may hold."),
    _count("reservations_per_session_max", 1, 4096, "Puts of one session that are not sealed."),
    _size("slab_bytes", 4 * MIB, GIB,
          "Size of the pieces that dram is shared out in; a multiple of 4KiB. No strip may be "
          "larger."),
    _time("lease_ttl_ns", 1, 3600, "A lease without progress ends after this time."),
    _time("quarantine_ns", 30, 3600,
          "How long memory of a lost lease stays as it is, for a reader that says nothing. Clients "
          "count on 30."),
    _time("reservation_ttl_ns", 1, 3600, "A put that makes no progress ends after this time."),
    _time("deadline_ns", 0.1, 600, "Deadline of a request that states none."),
    _time("deadline_ns_max", 1, 3600, "The longest deadline that a request may state."),
    _time("recall_ns", 0.1, 60, "A session's time to give up a slab that is asked back."),
    _size("write_batch_bytes", MIB, 64 * MIB, "Strips written to disk and synced together."),
    _count("writes_in_flight_max", 1, 4,
           "Batches of each stripe that are written at a time; more would only hold up readers."),
    _size("reads_in_flight_bytes_max", 64 * MIB, GIB,
          "Bytes that are read from disk at a time, for all fetches together."),
    _time("growth_wait_ns", 0, 60,
          "How long a fetch that finds no room waits while dram still grows."),
    _time("read_ns", 1, 600, "A read of the disk that takes longer counts as hung."),
    _time("write_ns", 1, 600, "A write or a commit that takes longer counts as hung."),
    _time("probe_ns", 1, 3600, "Between two looks whether a data directory works."),
    _time("space_ns", 0.5, 60, "Between two looks at the free space of the data directories."),
)  # fmt: skip

SETTINGS = (*GENERAL, *DRAM, *SSD, *TENANTS, *TCP, *OBSERVE, *LIMITS)
