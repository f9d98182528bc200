"""What a fetch brought, compared with what the engine computed again, cell by cell.

For who suspects the cache. The same values give the same cells, so their checksums are compared;
KV has the same bits again only where the same routine computed it, in the same shapes.
"""

import ctypes
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from kvd.client.fetch import Fetch
from kvd.client.hold import Hold
from kvd.client.messages import Counts
from kvd.client.reading import Area, Strips
from kvd.client.scope import invalid
from kvd.client.strips import Prepared
from kvd.codec import check_cells
from kvd.table import LENGTH_MASK, TABLE_ENTRY, table_bytes
from kvd.types import PlaneClass, Tier
from kvd.wire import WHOLE


@dataclass(frozen=True, slots=True)
class Difference:
    """A cell of other bytes than were computed again.

    `tier`: where the class was when it was promised; SSD if any of it had to be read. `generation`
    numbers the put that it is of: the fewer puts since (`kvd_generation`), the younger it is.
    """

    chunk: int
    plane_class: PlaneClass
    layer: int
    head: int
    tensor: int
    tier: Tier
    generation: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """Chunks compared per class, and what differed, by class, then chunk, then cell."""

    counts: Counts
    differences: tuple[Difference, ...]


def compare(fetch: Fetch, prepared: Prepared, first: int = 0) -> Comparison:
    """Compare what has arrived with chunks `first` on as `Space.prepare` made them of KV.

    What fails its checksum is no difference, but counted as ever. Differing chunks stay as they are
    unless they are named to `release`. Raise INVALID for another codec profile, strips of another
    shape, or prepared with another `first`.
    """
    hold = fetch.hold
    if hold is None:
        return Comparison((0, 0, 0), ())
    strips = hold.granted.strips
    prepared.check(strips.grid, strips.chunk_tokens, first)
    counts: list[int] = []
    found: list[Difference] = []
    for plane_class in PlaneClass:
        end = max(first, min(first + prepared.count, hold.counts[plane_class]))
        _check_profile(strips, prepared, slice(first, end))
        act = partial(_compare, hold, plane_class, (prepared, first), found)
        area = Area(*hold.granted.layers, first, end)
        counts.append(hold.read(area, plane_class + 1, partial(act, area)) if end > first else 0)
    counters = hold.scope.link.counters
    counters.compared_chunks += counts[0]
    counters.differing_chunks += len({each.chunk for each in found})
    return Comparison((counts[0], counts[1], counts[2]), tuple(found))


def _compare(
    hold: Hold,
    plane_class: PlaneClass,
    made: tuple[Prepared, int],
    found: list[Difference],
    area: Area,
) -> int:
    """Add what differs in a class of an area to `found`; return the end of its good chunks."""
    strips, (prepared, first) = hold.granted.strips, made
    good = strips.check(area, plane_class + 1)
    area = replace(area, chunk_end=good)
    table = strips.table(plane_class)[area.chunk_begin : area.chunk_end]
    rows = slice(area.chunk_begin - first, area.chunk_end - first)
    homes = prepared.addresses[rows, plane_class]
    mine = _tables(homes, strips.grid.cell_count)
    lengths = np.ascontiguousarray(mine["length"] & LENGTH_MASK)
    wrong = np.zeros(table.shape, bool)
    sums = np.ascontiguousarray(table["checksum"])
    places = homes[:, None] + mine["offset"].astype(np.uint64)
    wrong.reshape(-1)[check_cells(0, places.reshape(-1), lengths.reshape(-1), sums.reshape(-1))] = (
        True
    )
    wrong |= mine["length"] != table["length"]  # Coded there and raw here.
    promised, row = strips.promised, strips.grid.row
    cells = slice(area.layer_begin * len(row), area.layer_end * len(row))
    tier = Tier.DRAM if promised.ready[plane_class] == WHOLE else Tier.SSD
    for at, place in np.argwhere(wrong[:, cells]).tolist():
        cell = cells.start + place
        chunk, layer = area.chunk_begin + at, cell // len(row)
        head, tensor = row[cell % len(row)]
        generation = int(promised.generations[chunk])
        found.append(Difference(chunk, plane_class, layer, head, tensor, tier, generation))
    return good


def _check_profile(strips: Strips, prepared: Prepared, chunks: slice) -> None:
    """Raise INVALID where a chunk is encoded otherwise, so that no cell can be compared."""
    of = strips.promised.profiles[chunks].tolist()
    other = [number for number in of if number != prepared.profile.id]
    if other:
        what = f"prepared with codec profile {prepared.profile.id}"
        raise invalid(f"{what}, stored with {other[0]}: their cells cannot be compared")


def _tables(homes: np.ndarray, cell_count: int) -> np.ndarray:
    size = table_bytes(cell_count)
    heads = b"".join(ctypes.string_at(home, size) for home in homes.tolist())
    return np.frombuffer(heads, TABLE_ENTRY).reshape(len(homes), cell_count)
