"""What a daemon takes of a host's memory besides dram."""

from kvd.limits import MIB

# It begins with less than this of its own.
_START_BYTES = 64 * MIB
# What it grows by: 400 bytes for each strip of its index; this is three hundred thousand of them.
_GROWTH_BYTES = 128 * MIB
# Of dram, with small pages: 8 bytes of each page in the daemon's table, 9 in the file's.
TABLES_PART = 256
# What is asked of operators at least: the index of a million strips (README, what was measured).
_ASKED_BYTES_LEAST = 512 * MIB


def growth_bytes(dram_bytes: int) -> int:
    """Return what a daemon with so much dram may come to use besides it and what it begins with."""
    return _GROWTH_BYTES + dram_bytes // TABLES_PART


def daemon_bytes(dram_bytes: int) -> int:
    """Return what operators are asked to leave a daemon besides so much dram."""
    return max(_ASKED_BYTES_LEAST, _START_BYTES + growth_bytes(dram_bytes))


def dram_within(memory_bytes: int) -> int:
    """Return the most dram that leaves `daemon_bytes` of so much memory; 0 if none does."""
    by_tables = (memory_bytes - _START_BYTES - _GROWTH_BYTES) * TABLES_PART // (TABLES_PART + 1)
    return max(0, min(memory_bytes - _ASKED_BYTES_LEAST, by_tables))
