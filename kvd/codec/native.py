"""The ctypes door to the CPU kernels: loads the library beside this file, passes addresses on.

Checks nothing about batches: `batch` has done so.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from kvd.codec.layout import CellSpec
from kvd.types import Dtype

if TYPE_CHECKING:
    from kvd.codec.batch import CellColumns, EncodedCells

ABI = 1
BEST, PORTABLE = 0, 1
LIBRARY_NAME = "kvd_kernels.so"
_KINDS = {Dtype.BF16: 1, Dtype.FP16: 2}
_U64, _ADDRESS, _THREE = ctypes.c_uint64, ctypes.c_void_p, ctypes.c_uint64 * 3
Places = tuple[np.ndarray, np.ndarray]  # Addresses u64[n] and token strides i64[n].


class _EncodeBatch(ctypes.Structure):
    _fields_ = (
        ("specs", _ADDRESS), ("spec_index", _ADDRESS), ("sources", _ADDRESS),
        ("token_strides", _ADDRESS), ("count", _U64), ("path", _U64), ("out", _THREE),
        ("capacity", _THREE), ("start", _THREE), ("offsets", _ADDRESS), ("lengths", _ADDRESS),
        ("raw", _ADDRESS), ("ends", _ADDRESS),
    )  # fmt: skip


class _DecodeBatch(ctypes.Structure):
    _fields_ = (
        ("specs", _ADDRESS), ("spec_index", _ADDRESS), ("strings", _THREE), ("lengths", _ADDRESS),
        ("raw", _ADDRESS), ("targets", _ADDRESS), ("token_strides", _ADDRESS), ("count", _U64),
        ("planes", _U64), ("path", _U64), ("malformed", _ADDRESS),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Library:
    """The functions of the loaded library, and the name of the path it takes on this machine."""

    encode_cells: ctypes._CFuncPtr
    decode_cells: ctypes._CFuncPtr
    checksum_cells: ctypes._CFuncPtr
    path: str


@dataclass(frozen=True, slots=True)
class Kernels:
    """A library and which of its paths to take: BEST or PORTABLE."""

    library: Library
    path: int


@dataclass(frozen=True, slots=True)
class Loaded:
    """A library, or the problem that kept it from loading."""

    library: Library | None
    problem: str


@lru_cache(maxsize=1)
def load() -> Loaded:
    """Load the kernels once per process; never raises."""
    file = Path(__file__).with_name(LIBRARY_NAME)
    if not file.exists():
        return Loaded(None, f"{file} does not exist")
    try:
        handle = ctypes.CDLL(str(file))
        handle.kvd_abi.restype = ctypes.c_uint32
        abi = handle.kvd_abi()
        if abi != ABI:
            return Loaded(None, f"{file} has ABI {abi}, needed is {ABI}")
        handle.kvd_path.restype = ctypes.c_char_p
        for name, restype, arguments in (
            ("kvd_encode_cells", _U64, [ctypes.POINTER(_EncodeBatch)]),
            ("kvd_decode_cells", _U64, [ctypes.POINTER(_DecodeBatch)]),
            ("kvd_checksum_cells", None, [_ADDRESS, _ADDRESS, _ADDRESS, _U64, _ADDRESS]),
        ):
            function = getattr(handle, name)
            function.restype, function.argtypes = restype, arguments
    except (OSError, AttributeError) as error:
        return Loaded(None, f"{file} does not load: {error}")
    library = Library(
        handle.kvd_encode_cells,
        handle.kvd_decode_cells,
        handle.kvd_checksum_cells,
        handle.kvd_path().decode(),
    )
    return Loaded(library, "")


@lru_cache(maxsize=256)
def _spec_table(specs: tuple[CellSpec, ...]) -> np.ndarray:
    """Return the C structs of specs as u32[n, 8]."""
    rows = [
        (
            _KINDS.get(spec.dtype, 0), spec.dtype.size_bytes, spec.tokens, spec.width,
            spec.grouping, spec.sinks, spec.anchor_planes, spec.group,
        )
        for spec in specs
    ]  # fmt: skip
    return np.array(rows, np.uint32).reshape(len(specs), 8)


def _address(column: np.ndarray | None) -> int:
    return 0 if column is None else column.ctypes.data


def encode(
    kernels: Kernels,
    specs: Sequence[CellSpec],
    spec_index: np.ndarray,
    sources: Places,
    buffers: Sequence[np.ndarray],
    encoded: "EncodedCells",
) -> None:
    table = _spec_table(tuple(specs))
    start = encoded.ends.copy()
    batch = _EncodeBatch(
        specs=_address(table), spec_index=_address(spec_index), sources=_address(sources[0]),
        token_strides=_address(sources[1]), count=len(spec_index), path=kernels.path,
        out=_THREE(*(_address(buffer) for buffer in buffers)),
        capacity=_THREE(*(len(buffer) for buffer in buffers)), start=_THREE(*start.tolist()),
        offsets=_address(encoded.offsets), lengths=_address(encoded.lengths),
        raw=_address(encoded.raw), ends=_address(encoded.ends),
    )  # fmt: skip
    coded = kernels.library.encode_cells(ctypes.byref(batch))
    assert coded == len(spec_index), (coded, len(spec_index))


def decode(
    kernels: Kernels,
    specs: Sequence[CellSpec],
    cells: "CellColumns",
    targets: Places,
    planes: int,
) -> np.ndarray:
    table = _spec_table(tuple(specs))
    malformed = np.zeros(cells.count, np.bool_)
    strings = (cells.anchors, cells.residuals, cells.exacts)
    batch = _DecodeBatch(
        specs=_address(table), spec_index=_address(cells.spec_index),
        strings=_THREE(*(_address(column) for column in strings)),
        lengths=_address(cells.lengths), raw=_address(cells.raw), targets=_address(targets[0]),
        token_strides=_address(targets[1]), count=cells.count, planes=planes, path=kernels.path,
        malformed=_address(malformed),
    )  # fmt: skip
    count = kernels.library.decode_cells(ctypes.byref(batch))
    assert count == int(malformed.sum())
    return malformed


def checksum(kernels: Kernels, base: int, offsets: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    sums = np.zeros(len(offsets), np.uint64)
    addresses = (_address(offsets), _address(lengths), len(offsets), _address(sums))
    kernels.library.checksum_cells(base, *addresses)
    return sums
