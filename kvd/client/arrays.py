"""The caller's tensors as addresses and strides of cells, checked against the grid of the lane.

Knows numpy arrays and torch tensors by what they can do, without importing torch. Must not keep
an address longer than the tensor it came from.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvd.errors import ErrorKind, KvdError
from kvd.shape import CellGrid, TensorShape
from kvd.types import Dtype

Tensors = Sequence[Sequence[Any]]  # [layer][tensor] of [heads, tokens, width]

_NAMES = {
    Dtype.BF16: ("uint16", "bfloat16"),  # numpy has no bfloat16 of its own: the bits are taken.
    Dtype.FP16: ("float16",),
    Dtype.FP32: ("float32",),
    Dtype.FP8_E4M3: ("uint8", "float8_e4m3fn"),
    Dtype.FP8_E5M2: ("uint8", "float8_e5m2"),
    Dtype.INT8: ("int8",),
}


@dataclass(frozen=True, slots=True)
class CellViews:
    """Where the cells of some layers lie in the caller's memory, in cell order.

    `addresses` i64[n] of token 0, channel 0; `strides` i64[n] from token to token in elements and
    `stride_bytes` i64[n] in bytes. `keep` holds the tensors.
    """

    addresses: np.ndarray
    strides: np.ndarray
    stride_bytes: np.ndarray
    tokens: int
    keep: list[Any]

    def at_token(self, token: int) -> np.ndarray:
        """Return u64[n] addresses of the cells whose first token is `token`."""
        return (self.addresses + token * self.stride_bytes).astype(np.uint64)

    def at_tokens(self, first: int, step: int, count: int) -> np.ndarray:
        """Return u64[count * n]: as `at_token` of first, first + step, and so on."""
        tokens = first + step * np.arange(count, dtype=np.int64)
        return (self.addresses + tokens[:, None] * self.stride_bytes).astype(np.uint64).reshape(-1)


@dataclass(frozen=True, slots=True)
class _Plain:
    """One tensor: address, strides of heads and tokens and channels in elements, and its owner."""

    address: int
    strides: tuple[int, int, int]
    owner: Any


def source_views(grid: CellGrid, tensors: Tensors) -> CellViews:
    """Return the cells of all layers; what has no fitting strides, or is elsewhere, is copied."""
    return _views(grid, tensors, grid.layers, copy=True)


def target_views(grid: CellGrid, tensors: Tensors, layers: int) -> CellViews:
    """Return the cells of `layers` layers to be written in place; raise INVALID if they cannot."""
    return _views(grid, tensors, layers, copy=False)


def _views(grid: CellGrid, tensors: Tensors, layers: int, *, copy: bool) -> CellViews:
    if len(tensors) != layers:
        raise _invalid(f"tensors: {len(tensors)} layers given, {layers} are wanted")
    wanted = grid.tensors
    tokens = -1
    facts = np.empty((layers, len(wanted), 3), np.int64)
    keep = []
    for layer, row in enumerate(tensors):
        if len(row) != len(wanted):
            raise _invalid(f"tensors[{layer}]: {len(row)} tensors, the shape has {len(wanted)}")
        for index, (tensor, shape) in enumerate(zip(row, wanted, strict=True)):
            name = f"tensors[{layer}][{index}]"
            tokens = _check(tensor, shape, tokens, name)
            plain = _plain(tensor, shape, name, copy=copy)
            facts[layer, index] = plain.address, plain.strides[0], plain.strides[1]
            keep.append(plain.owner)
    if not copy and tokens > 0 and len(np.unique(facts[:, :, 0])) < facts[:, :, 0].size:
        raise _invalid("two tensors are the same memory: the later one would be written over both")
    heads = np.array([head for head, _ in grid.row], np.int64)
    which = np.array([index for _, index in grid.row], np.intp)
    itemsize = np.array([t.dtype.size_bytes for t in wanted], np.int64)[which]
    chosen = facts[:, which]
    addresses = chosen[:, :, 0] + heads * chosen[:, :, 1] * itemsize
    strides = np.ascontiguousarray(chosen[:, :, 2]).reshape(-1)
    return CellViews(
        addresses.reshape(-1), strides, strides * np.tile(itemsize, layers), max(tokens, 0), keep
    )


def _check(tensor: Any, shape: TensorShape, tokens: int, name: str) -> int:
    """Return the number of tokens, the same for all tensors, or raise INVALID."""
    its_shape = tuple(getattr(tensor, "shape", ()))
    dtype = str(getattr(tensor, "dtype", type(tensor).__name__)).removeprefix("torch.")
    if dtype not in _NAMES[shape.dtype]:
        allowed = " or ".join(_NAMES[shape.dtype])
        raise _invalid(f"{name} has dtype {dtype}, the keyspace's {shape.dtype.name} is {allowed}")
    expected = (shape.heads, tokens if tokens >= 0 else "tokens", shape.width)
    if len(its_shape) != 3 or (its_shape[0], its_shape[2]) != (shape.heads, shape.width):
        raise _invalid(f"{name} has shape {its_shape}, wanted is {expected}")
    if tokens >= 0 and its_shape[1] != tokens:
        raise _invalid(f"{name} has {its_shape[1]} tokens, those before have {tokens}")
    return its_shape[1]


def _plain(tensor: Any, shape: TensorShape, name: str, *, copy: bool) -> _Plain:
    """Return address and strides of a tensor that fits, or of a copy of it."""
    torch_tensor = hasattr(tensor, "data_ptr")
    if torch_tensor and tensor.device.type != "cpu":
        if not copy:
            raise _invalid(f"{name} is on {tensor.device}; decode into host memory")
        tensor = tensor.detach().to("cpu")  # On the caller's current stream, and waits for it.
    if torch_tensor and tensor.is_neg():  # Its memory has the other sign.
        if not copy:
            raise _invalid(f"{name} is a negative view; decode into its memory")
        tensor = tensor.resolve_neg()
    plain = _torch_facts(tensor) if torch_tensor else _numpy_facts(tensor, shape, name, copy=copy)
    if plain.address == 0 and tensor.shape[1]:
        raise _invalid(f"{name} has no memory")
    if _fits(plain, tuple(tensor.shape)):
        if not copy and not _apart(plain, tuple(tensor.shape)):
            raise _invalid(f"{name} has strides {plain.strides}: heads lie in each other's memory")
        return plain
    if not copy:
        raise _invalid(f"{name} has strides {plain.strides}; channels must be contiguous")
    if torch_tensor:
        return _torch_facts(tensor.contiguous())
    return _numpy_facts(np.ascontiguousarray(tensor), shape, name, copy=copy)


def _torch_facts(tensor: Any) -> _Plain:
    return _Plain(tensor.data_ptr(), tuple(tensor.stride()), tensor)


def _numpy_facts(array: np.ndarray, shape: TensorShape, name: str, *, copy: bool) -> _Plain:
    interface = array.__array_interface__
    address, readonly = interface["data"]
    if readonly and not copy:
        raise _invalid(f"{name} cannot be written")
    if interface["strides"] is None:
        return _Plain(address, (array.shape[1] * array.shape[2], array.shape[2], 1), array)
    itemsize = shape.dtype.size_bytes
    if any(stride % itemsize for stride in array.strides):
        return _Plain(address, (0, 0, 0), array)
    heads, tokens, channels = (stride // itemsize for stride in array.strides)
    return _Plain(address, (heads, tokens, channels), array)


def _fits(plain: _Plain, shape: tuple[int, ...]) -> bool:
    """Return whether channels are contiguous and tokens do not overlap."""
    heads, tokens, width = shape
    contiguous = plain.strides[2] == 1 or width == 1
    apart = plain.strides[1] >= width or tokens <= 1
    return (contiguous and apart) or heads * tokens == 0


def _apart(plain: _Plain, shape: tuple[int, ...]) -> bool:
    """Return whether what is written to one head cannot change another, as where it is expanded."""
    heads, tokens, width = shape
    by_head, by_token = abs(plain.strides[0]), plain.strides[1]
    if heads < 2 or not tokens:
        return True
    behind_each_other = by_head >= (tokens - 1) * by_token + width
    beside_each_other = by_head >= width and (
        tokens < 2 or by_token >= (heads - 1) * by_head + width
    )
    return behind_each_other or beside_each_other


def _invalid(message: str) -> KvdError:
    return KvdError(ErrorKind.INVALID, message)
