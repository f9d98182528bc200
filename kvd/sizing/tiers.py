"""How many chunks a tier of a size holds, at least: whole strips in slabs, and in segments."""

from pathlib import Path

from kvd.daemon.budget import Places, divide
from kvd.limits import PAGE_BYTES
from kvd.sizing.chunks import Strips

# Of the catalog, for each chunk: what `kvd.catalog.contract` reckons with.
CATALOG_CHUNK_BYTES = 370
SPARE_SEGMENTS = 1  # Kept free for what moves.


def dram_chunks(dram_bytes: int, slab_bytes: int, strips: Strips) -> int:
    """Return how many chunks fit slabs; 0 when a strip is larger than a slab."""
    slabs = dram_bytes // slab_bytes
    together = slabs * (slab_bytes // sum(strips))
    return max(together, _apart(slabs, slab_bytes, strips))


def ssd_chunks(budget_bytes: int, directories: int, strips: Strips) -> int:
    """Return how many chunks fit a budget; raise INVALID for one that is too small for any.

    0 when a strip is larger than a segment can hold: it stays in memory only.
    """
    paths = tuple(Path(str(number)) for number in range(directories))
    budget = divide(Places(paths, (), budget_bytes, 0, is_new=True), budget_bytes)
    segments = budget.segments_max - SPARE_SEGMENTS
    held = _apart(segments, budget.segment_bytes - PAGE_BYTES, strips)
    return min(held, budget.map_bytes // CATALOG_CHUNK_BYTES)


def _apart(units: int, unit_bytes: int, strips: Strips) -> int:
    """Return the most chunks whose strips fit units that hold strips of one class each."""
    each = [unit_bytes // strip for strip in strips]
    if min(each) == 0:
        return 0
    least, most = 0, units * min(each)
    while least < most:
        middle = (least + most + 1) // 2
        if sum(-(-middle // count) for count in each) <= units:
            least = middle
        else:
            most = middle - 1
    return least
