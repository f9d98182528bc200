"""The public door of the SDK: clients, keyspaces, and the words that they speak.

A daemon that is away, late or broken means misses; only the caller's own mistakes raise KvdError.
"""

from kvd.client.asynchronous import AsyncClient, AsyncFetch, AsyncSpace
from kvd.client.client import Client
from kvd.client.comparing import Comparison, Difference, compare
from kvd.client.fetch import Fetch
from kvd.client.outcomes import (
    Arrival,
    Cleared,
    Counters,
    Delivery,
    Found,
    Reason,
    Status,
    Stored,
)
from kvd.client.space import Space
from kvd.client.strips import Prepared
from kvd.codec import EXACT
from kvd.errors import ErrorKind, KvdError
from kvd.identity import Keyspace
from kvd.shape import BlockShape, CellGrid, HitRule, KvGroup, TensorShape
from kvd.types import Dtype, Lane, Part, PlaneClass, Role, Shard, ShardScheme

__all__ = [
    "EXACT",
    "Arrival",
    "AsyncClient",
    "AsyncFetch",
    "AsyncSpace",
    "Comparison",
    "BlockShape",
    "CellGrid",
    "Cleared",
    "Client",
    "Counters",
    "Delivery",
    "Difference",
    "Dtype",
    "ErrorKind",
    "Fetch",
    "Found",
    "HitRule",
    "Keyspace",
    "KvGroup",
    "KvdError",
    "Lane",
    "Part",
    "PlaneClass",
    "Prepared",
    "Reason",
    "Role",
    "Shard",
    "ShardScheme",
    "Space",
    "Status",
    "Stored",
    "TensorShape",
    "compare",
]
