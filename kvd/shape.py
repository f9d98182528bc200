"""Block shapes: a model is data. Tensors per layer, heads, widths, dtypes; and the grid of cells.

A cell is one (layer, head, tensor). Cells are numbered layer, then head, then tensor, so that a
layer band, and a head range within a layer, are contiguous in a strip.
"""

from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache

from kvd.errors import ErrorKind, KvdError
from kvd.limits import CELLS_PER_STRIP_MAX
from kvd.types import Dtype, Lane, Role, ShardScheme


class HitRule(IntEnum):
    """When a prefix of a kv group counts as found."""

    ALL = 0
    TRAILING = 1
    STATE = 2


@dataclass(frozen=True, slots=True)
class TensorShape:
    """One tensor of a layer for one chunk: `[heads, chunk tokens, width]` of dtype."""

    role: Role
    heads: int
    width: int
    dtype: Dtype


@dataclass(frozen=True, slots=True)
class KvGroup:
    """Layers that share a cache rule; `trailing_chunks` belongs to HitRule.TRAILING."""

    layers: int
    tensors: tuple[TensorShape, ...]
    hit_rule: HitRule = HitRule.ALL
    trailing_chunks: int = 0


@dataclass(frozen=True, slots=True)
class BlockShape:
    groups: tuple[KvGroup, ...]

    @staticmethod
    def of_attention(layers: int, heads: int, width: int, dtype: Dtype) -> "BlockShape":
        """Return the common case: K and V of `heads` KV heads in every layer."""
        k = TensorShape(Role.K, heads, width, dtype)
        v = TensorShape(Role.V, heads, width, dtype)
        return BlockShape((KvGroup(layers, (k, v)),))


@dataclass(frozen=True, slots=True)
class CellGrid:
    """The cells of one strip of one lane: `layers` rows of the same `row` of (head, tensor)."""

    layers: int
    tensors: tuple[TensorShape, ...]
    row: tuple[tuple[int, int], ...]

    @property
    def cell_count(self) -> int:
        return self.layers * len(self.row)

    def values_per_token(self) -> int:
        return self.layers * sum(self.tensors[t].width for _, t in self.row)

    def bytes_per_token(self) -> int:
        """Return the size of the values as the engine holds them."""
        widths = (self.tensors[t].width * self.tensors[t].dtype.size_bytes for _, t in self.row)
        return self.layers * sum(widths)


def _refuse(message: str) -> KvdError:
    return KvdError(ErrorKind.INVALID, message)


def validate_shape(shape: BlockShape) -> None:
    """Raise INVALID for a shape that no engine can mean, naming the value and the bound."""
    if not 1 <= len(shape.groups) <= 16:
        raise _refuse(f"block shape has {len(shape.groups)} kv groups, allowed are 1 to 16")
    for index, group in enumerate(shape.groups):
        if not 1 <= group.layers <= 1024:
            raise _refuse(f"kv group {index} has {group.layers} layers, allowed are 1 to 1024")
        if not 1 <= len(group.tensors) <= 8:
            raise _refuse(f"kv group {index} has {len(group.tensors)} tensors, allowed are 1 to 8")
        if group.hit_rule != HitRule.ALL:
            raise KvdError(
                ErrorKind.INCOMPATIBLE,
                f"kv group {index} asks for hit rule {group.hit_rule.name}; this daemon has ALL",
            )
        for tensor in group.tensors:
            if tensor.role == Role.STATE:
                # Its rows are no tokens: a prefix of it, cut anywhere, would be wrong bytes.
                raise _refuse(
                    f"kv group {index} has a tensor STATE under hit rule ALL, which is of tokens; "
                    "a state needs hit rule STATE"
                )
            if not (1 <= tensor.heads <= 1024 and 1 <= tensor.width <= 65_536):
                raise _refuse(
                    f"tensor {tensor.role.name} of kv group {index} has {tensor.heads} heads of "
                    f"width {tensor.width}, allowed are 1 to 1024 heads of width 1 to 65536"
                )


@lru_cache(maxsize=256)
def cell_grid(shape: BlockShape, lane: Lane) -> CellGrid:
    """Return the cells that `lane` holds of each chunk.

    Raise INVALID when the lane is outside the shape or divides it unevenly, or its strips would
    have more than CELLS_PER_STRIP_MAX cells.
    """
    if not 0 <= lane.kv_group < len(shape.groups):
        raise _refuse(f"kv group {lane.kv_group} is outside the {len(shape.groups)} declared")
    group, shard = shape.groups[lane.kv_group], lane.shard
    layers, tensors = group.layers, group.tensors
    if shard.scheme == ShardScheme.LAYERS:
        if layers % shard.count:
            raise _refuse(f"{layers} layers do not divide into {shard.count} shards")
        layers //= shard.count
    if shard.scheme == ShardScheme.HEADS:
        for tensor in tensors:
            if tensor.heads % shard.count:
                raise _refuse(f"{tensor.heads} heads do not divide into {shard.count} shards")
        tensors = tuple(
            TensorShape(t.role, t.heads // shard.count, t.width, t.dtype) for t in tensors
        )
    heads_max = max(t.heads for t in tensors)
    row = tuple(
        (head, index)
        for head in range(heads_max)
        for index, tensor in enumerate(tensors)
        if head < tensor.heads
    )
    assert row and len(set(row)) == len(row)
    if layers * len(row) > CELLS_PER_STRIP_MAX:
        raise _refuse(
            f"a strip would have {layers * len(row)} cells, the limit is {CELLS_PER_STRIP_MAX}: "
            "use more shards or kv groups"
        )
    return CellGrid(layers, tensors, row)
