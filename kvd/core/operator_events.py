"""What an operator may wish: answered like any wish, to the session OPERATOR that nobody opens.

An empty `keyspace` means all of the tenant's.
"""

from dataclasses import dataclass

OPERATOR = 0  # Sessions of clients have numbers above it, the daemon's own below.


@dataclass(frozen=True, slots=True)
class EvictWanted:
    """Free dram, the coldest first, of what is on disk too; with `lossy` of what is not as well.

    `size_bytes` 0: as much as there is.
    """

    request: int
    tenant: str
    keyspace: bytes
    size_bytes: int
    lossy: bool
    session: int = OPERATOR


@dataclass(frozen=True, slots=True)
class ForgetWanted:
    """Clear keyspaces for good: answered once it is durable."""

    request: int
    tenant: str
    keyspace: bytes
    deadline_ns: int
    session: int = OPERATOR


@dataclass(frozen=True, slots=True)
class PinWanted:
    """Keep a prefix in dram, in every lane of a keyspace, until it is unpinned or cleared."""

    request: int
    keyspace: bytes
    chain: bytes
    class_count: int
    session: int = OPERATOR


@dataclass(frozen=True, slots=True)
class UnpinWanted:
    request: int
    pin: int
    session: int = OPERATOR


OperatorWish = EvictWanted | ForgetWanted | PinWanted | UnpinWanted
