"""Strips on the way in: chunks encoded into scratch, then laid at their extents with checksums.

Owns the form of prepared strips. Pure memory work on the caller's thread; knows no sockets.
"""

import ctypes
from dataclasses import dataclass

import numpy as np

from kvd.checksum import strip_root
from kvd.client.arrays import CellViews
from kvd.client.mapping import Buffer, Pool
from kvd.codec import (
    CodecProfile,
    cell_specs,
    encode_cells,
    strip_bytes_max,
)
from kvd.codec.copying import copy_strips
from kvd.errors import ErrorKind, KvdError
from kvd.format.strip import pack_table
from kvd.shape import CellGrid
from kvd.table import padded, table_bytes
from kvd.types import CLASS_COUNT, Lane, PlaneClass

_CLASSES = tuple(PlaneClass)


@dataclass(frozen=True, slots=True)
class Prepared:
    """Strips of n chunks, whole but for the checksums in their tables; roots need a generation.

    `addresses` u64[n, 3] in `buffers`, padded `sizes` u32[n, 3], tails zeroed. Chunk `first` of
    the sequence begins at token 0 of what was encoded.
    """

    grid: CellGrid
    chunk_tokens: int
    profile: CodecProfile
    first: int
    addresses: np.ndarray
    sizes: np.ndarray
    buffers: list[Buffer]

    @property
    def count(self) -> int:
        return len(self.sizes)

    def check(self, grid: CellGrid, chunk_tokens: int, first: int) -> None:
        """Raise INVALID unless it was made for these cells and chunks, `first` the first.

        Cells of another shape may be as many, and chunk 0 alone has sinks: neither shows later.
        """
        if not self.buffers:
            raise KvdError(ErrorKind.INVALID, "the prepared strips were given back")
        made, wanted = _named(self.grid, self.chunk_tokens), _named(grid, chunk_tokens)
        if made != wanted:
            raise KvdError(ErrorKind.INVALID, f"prepared of {made}, not of {wanted}")
        if self.first != first:
            message = f"first is {first}, the strips were prepared with first {self.first}"
            raise KvdError(ErrorKind.INVALID, message)

    def give_back(self, pool: Pool) -> None:
        """Give the memory back; it is not to be used from then on. A second time does nothing."""
        while self.buffers:
            pool.give(self.buffers.pop())


class Encoder:
    """Encodes chunks of one lane into scratch from a pool."""

    def __init__(self, grid: CellGrid, chunk_tokens: int, profile: CodecProfile) -> None:
        self.grid, self.chunk_tokens, self.profile = grid, chunk_tokens, profile
        self._table_bytes = table_bytes(grid.cell_count)
        self._bounds = strip_bytes_max(grid, chunk_tokens, profile)

    def encode(
        self, views: CellViews, chunks: range, first: int, scratch_bytes: int, pool: Pool
    ) -> Prepared:
        """Encode a leading part of `chunks`, at least one, of about scratch_bytes.

        Chunk `first` of the sequence begins at token 0 of `views`.
        """
        buffers = [
            pool.take(min(scratch_bytes, bound * (len(chunks) - 1)) + bound)
            for bound in self._bounds
        ]
        begins, ends = [], [0] * CLASS_COUNT
        for chunk in chunks:
            if any(e + b > s.size for e, b, s in zip(ends, self._bounds, buffers, strict=True)):
                break
            if sum(ends) >= scratch_bytes:
                break
            out = [buffer.data[end:] for buffer, end in zip(buffers, ends, strict=True)]
            token = (chunk - first) * self.chunk_tokens
            sizes = self._encode_chunk(views, token, out, first_chunk=chunk == 0)
            begins.append(ends)
            ends = [end + size for end, size in zip(ends, sizes, strict=True)]
        starts = np.array(begins, np.int64)
        homes = np.array([buffer.address for buffer in buffers], np.int64)
        return Prepared(
            self.grid,
            self.chunk_tokens,
            self.profile,
            first,
            (homes + starts).astype(np.uint64),
            np.diff(np.vstack([starts, [ends]]), axis=0).astype(np.uint32),
            buffers,
        )

    def _encode_chunk(
        self, views: CellViews, token: int, out: list[np.ndarray], *, first_chunk: bool
    ) -> list[int]:
        """Encode one chunk to the begin of each `out`; return the padded sizes of its strips."""
        specs, index = cell_specs(self.profile, self.grid, self.chunk_tokens, first_chunk)
        base = (self._table_bytes,) * CLASS_COUNT
        encoded = encode_cells(specs, index, views.at_token(token), views.strides, out, base)
        sums = np.zeros(self.grid.cell_count, np.uint64)
        sizes = []
        for plane_class, strip in enumerate(out):
            offsets, lengths = encoded.offsets[plane_class], encoded.lengths[plane_class]
            table = pack_table(offsets, lengths, encoded.raw, sums)
            strip[: self._table_bytes] = table.view(np.uint8)
            end = int(encoded.ends[plane_class])
            sizes.append(padded(end))
            strip[end : sizes[-1]] = 0
        return sizes


def lay(
    prepared: Prepared,
    part: slice,
    places: np.ndarray,
    names: tuple[Lane, list[bytes], int],
) -> np.ndarray:
    """Write the strips of chunks `part` at addresses `places` u64[m, 3]; return roots u64[m, 3].

    `names` are lane, chunk keys of these chunks, and generation.
    """
    lane, keys, generation = names
    homes = prepared.addresses[part].reshape(-1)
    sizes = prepared.sizes[part].reshape(-1).astype(np.uint64)
    cell_count = prepared.grid.cell_count
    copy_strips(homes, places.reshape(-1), sizes, cell_count)
    head, number = table_bytes(cell_count), prepared.profile.id
    roots = [
        strip_root(
            keys[at // CLASS_COUNT], lane, _CLASSES[at % CLASS_COUNT], generation, number,
            ctypes.string_at(home, head),
        )
        for at, home in enumerate(homes.tolist())
    ]  # fmt: skip
    return np.array(roots, np.uint64).reshape(-1, CLASS_COUNT)


def _named(grid: CellGrid, chunk_tokens: int) -> str:
    tensors = ", ".join(
        f"{t.role.name} of {t.heads} x {t.width} {t.dtype.name}" for t in grid.tensors
    )
    return f"{grid.layers} layers of {tensors} in chunks of {chunk_tokens} tokens"
