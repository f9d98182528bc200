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
    EncodedCells,
    cell_specs,
    encode_cells,
    strip_bytes_max,
)
from kvd.codec.copying import StripCopies, copy_strips
from kvd.format.strip import pack_table, padded, table_bytes
from kvd.shape import CellGrid
from kvd.types import CLASS_COUNT, Lane, PlaneClass

_CLASSES = tuple(PlaneClass)


@dataclass(frozen=True, slots=True)
class Prepared:
    """Strips of n chunks, whole but for tables and roots, which need a generation.

    `addresses` u64[n, 3], padded `sizes` u32[n, 3]; `offsets`, `lengths` u32[n, 3, cells] and
    `raw` bool[n, cells]. `buffers` hold the bytes, tails zeroed.
    """

    profile: CodecProfile
    addresses: np.ndarray
    sizes: np.ndarray
    offsets: np.ndarray
    lengths: np.ndarray
    raw: np.ndarray
    buffers: tuple[Buffer, ...]

    @property
    def count(self) -> int:
        return len(self.sizes)

    def give_back(self, pool: Pool) -> None:
        for buffer in self.buffers:
            pool.give(buffer)


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
        buffers = tuple(
            pool.take(min(scratch_bytes, bound * (len(chunks) - 1)) + bound)
            for bound in self._bounds
        )
        begins, columns, ends = [], [], [0] * CLASS_COUNT
        for chunk in chunks:
            if any(e + b > s.size for e, b, s in zip(ends, self._bounds, buffers, strict=True)):
                break
            if sum(ends) >= scratch_bytes:
                break
            out = [buffer.data[end:] for buffer, end in zip(buffers, ends, strict=True)]
            token = (chunk - first) * self.chunk_tokens
            encoded = self._encode_chunk(views, token, out, first_chunk=chunk == 0)
            stops = [begin + int(e) for begin, e in zip(ends, encoded.ends, strict=True)]
            begins.append(ends)
            ends = [padded(stop) for stop in stops]
            for buffer, stop, end in zip(buffers, stops, ends, strict=True):
                buffer.data[stop:end] = 0
            columns.append(encoded)
        starts = np.array(begins, np.int64)
        homes = np.array([buffer.address for buffer in buffers], np.int64)
        return Prepared(
            self.profile,
            (homes + starts).astype(np.uint64),
            np.diff(np.vstack([starts, [ends]]), axis=0).astype(np.uint32),
            np.stack([c.offsets for c in columns]),
            np.stack([c.lengths for c in columns]),
            np.stack([c.raw for c in columns]),
            buffers,
        )

    def _encode_chunk(
        self, views: CellViews, token: int, out: list[np.ndarray], *, first_chunk: bool
    ) -> EncodedCells:
        specs, index = cell_specs(self.profile, self.grid, self.chunk_tokens, first_chunk)
        base = (self._table_bytes,) * CLASS_COUNT
        return encode_cells(specs, index, views.at_token(token), views.strides, out, base)


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
    offsets, lengths = prepared.offsets[part], prepared.lengths[part]
    count, _, cells = offsets.shape
    strips = count * CLASS_COUNT
    offsets, lengths = offsets.reshape(strips, cells), lengths.reshape(strips, cells)
    copies = StripCopies(
        prepared.addresses[part].reshape(-1),
        places.reshape(-1),
        prepared.sizes[part].reshape(-1).astype(np.uint64),
        offsets,
        lengths,
    )
    sums = copy_strips(copies)
    raw = np.repeat(prepared.raw[part, None, :], CLASS_COUNT, axis=1)
    tables = pack_table(offsets.reshape(-1), lengths.reshape(-1), raw.reshape(-1), sums.reshape(-1))
    heads = tables.view(np.uint8).reshape(strips, -1)
    size, address = heads.shape[1], heads.ctypes.data
    for at, place in enumerate(copies.targets.tolist()):
        ctypes.memmove(place, address + at * size, size)
    number = prepared.profile.id
    roots = [
        strip_root(
            keys[at // CLASS_COUNT], lane, _CLASSES[at % CLASS_COUNT], generation, number, head
        )
        for at, head in enumerate(heads)
    ]
    return np.array(roots, np.uint64).reshape(count, CLASS_COUNT)
