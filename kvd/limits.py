"""Every bound of kvd (I9), in one place; a test compares this table with the documents."""

import random
from dataclasses import dataclass, replace

from kvd.clock import NS_PER_S

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30

PAGE_BYTES = 4096  # Strips, extents and slabs are multiples of it; fits O_DIRECT everywhere.
CELL_ALIGN_BYTES = 8  # Cells start on it inside a strip: one aligned word load for readers.
CELL_BYTES_MAX = (1 << 28) - 1  # A strip's table has no more bits for a length.
CELLS_PER_STRIP_MAX = 1 << 20
STRIP_BYTES_MAX = (1 << 32) - (1 << 28)  # So that no end of a cell passes 32 bits.
CHUNK_TOKENS_DEFAULT = 64
DIGEST_BYTES = 32  # Of a keyspace and of a chain position.
CHUNK_KEY_BYTES = 16
# That anything kept may name: what is given out from there on has its place in a u64 for ever.
GENERATION_MAX = (1 << 63) - 1
SEGMENT_NUMBER_MAX = 10**8 - 1  # A file's name has eight digits.

# A strip is read from ssd in pieces of one size, so that its first layers are there early. Below
# the minimum the cost of a read outweighs that of its bytes.
READ_PIECE_BYTES_MIN = 256 * KIB
READ_PIECES_MAX = 63  # Of one strip: a bit each, in a word with a sign.

PROTOCOL_MIN = 1
PROTOCOL_MAX = 1


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds that the daemon enforces; sizes in bytes, times in nanoseconds."""

    frame_bytes_max: int = 8 * MIB  # One message on a stream: a chain of 250,000 chunks fits.
    piece_bytes_max: int = 1 * MIB  # Of a byte-delivery frame: the knee of the cost curve.
    chunks_per_request_max: int = 65_536
    keyspaces_per_session_max: int = 64
    lanes_per_request_max: int = 64
    sessions_max: int = 256
    requests_per_session_max: int = 256  # Unanswered wishes.
    leases_per_session_max: int = 1024
    lease_bytes_per_session_max: int = 64 * GIB
    reservations_per_session_max: int = 64
    fds_per_message_max: int = 64  # 254 in one message fail; a margin below it.
    slab_bytes: int = 64 * MIB
    lease_ttl_ns: int = 30 * NS_PER_S
    quarantine_ns: int = 30 * NS_PER_S  # Extents of a lost lease, when nobody confirms earlier.
    reservation_ttl_ns: int = 60 * NS_PER_S
    deadline_ns: int = 10 * NS_PER_S  # Of a request that states none.
    deadline_ns_max: int = 600 * NS_PER_S
    recall_ns: int = 5 * NS_PER_S  # A session's time to detach from a slab that is asked back.
    drain_ns: int = 10 * NS_PER_S  # From SIGTERM to exit.
    tick_ns: int = NS_PER_S // 4
    write_batch_bytes: int = 16 * MIB  # Strips written to ssd and synced together.
    writes_in_flight_max: int = 2  # Batches; more would only hold up readers.
    reads_in_flight_bytes_max: int = 512 * MIB  # From ssd, of all fetches together.
    growth_wait_ns: int = 2 * NS_PER_S  # Of a fetch that finds no room while dram still grows.
    read_ns: int = 10 * NS_PER_S  # Until a read of the ssd counts as hung.
    write_ns: int = 30 * NS_PER_S  # Until a write or a commit of the ssd counts as hung.
    probe_ns: int = 10 * NS_PER_S  # Between two canaries of a data directory.
    space_ns: int = 2 * NS_PER_S  # Between two looks at the free space of the data directories.


@dataclass(frozen=True, slots=True)
class DiskBounds:
    """Of each data directory (I9). What is beyond a bound is answered CANCELLED at once."""

    read_threads: int = 4
    hung_threads_max: int = 16  # Beyond these, reads wait for one to come back, or their deadline.
    read_queue_bytes_max: int = 1024 * MIB
    read_queue_items_max: int = 65_536
    write_queue_bytes_max: int = 256 * MIB
    write_queue_items_max: int = 16_384
    open_segments_max: int = 512  # Descriptors kept.
    job_bytes: int = 2 * MIB  # Of reads by one thread before it reports.
    close_ns_max: int = NS_PER_S  # How long `close` waits for threads.


@dataclass(frozen=True, slots=True)
class CatalogBounds:
    """Of what waits to be committed (I9); beyond them the answer is CANCELLED at once."""

    batches_max: int = 1024
    items_max: int = 1 << 20
    group_items_max: int = 1 << 16  # Of one transaction of several batches.
    map_bytes_min: int = 1 * MIB
    reader_check_s: float = 60.0
    close_s: float = 1.0


def squeeze(limits: Limits, seed: int) -> Limits:
    """Shrink the bounds that rare branches hang on, so that a simulation reaches them."""
    rng = random.Random(seed)
    return replace(
        limits,
        leases_per_session_max=rng.randint(2, 8),
        reservations_per_session_max=rng.randint(1, 4),
        requests_per_session_max=rng.randint(2, 16),
        lease_ttl_ns=rng.randint(1, 20) * NS_PER_S // 10,
        quarantine_ns=rng.randint(1, 20) * NS_PER_S // 10,
        reservation_ttl_ns=rng.randint(1, 20) * NS_PER_S // 10,
        recall_ns=rng.randint(1, 10) * NS_PER_S // 10,
    )
