"""Which classes of which chunks can stay: what one loses, everything behind it loses as well."""

import numpy as np

from kvd.format.rows import lane_starts
from kvd.limits import DIGEST_BYTES
from kvd.types import CLASS_COUNT

_TEXT = f"S{DIGEST_BYTES}"  # Of one length: its order and equality are those of the bytes.


def parents_of(rows: np.ndarray) -> np.ndarray:
    """Return i64[n]: the row of each one's parent; n for none, n + 1 for one that is not there.

    `rows` are in the order of their keys, as the catalog gives them.
    """
    count = len(rows)
    parents = np.full(count, count, np.int64)
    starts = [*lane_starts(rows).tolist(), count]
    for begin, end in zip(starts, starts[1:], strict=False):
        lane = rows[begin:end]
        wanted = np.ascontiguousarray(lane["parent"])
        behind = np.flatnonzero(wanted.any(axis=1))
        if not len(behind):
            continue
        chains = np.ascontiguousarray(lane["chain"]).view(_TEXT).reshape(-1)
        wanted = wanted.view(_TEXT).reshape(-1)[behind]
        at = np.minimum(np.searchsorted(chains, wanted), end - begin - 1)
        parents[begin + behind] = np.where(chains[at] == wanted, begin + at, count + 1)
    return parents


def settled(kept: np.ndarray, parents: np.ndarray) -> np.ndarray:
    """Return u8[n]: how many classes each row can keep at most, by what all before it keep.

    Rows whose chain has no beginning keep none.
    """
    count = len(kept)
    least = np.concatenate((kept, [CLASS_COUNT, 0])).astype(np.uint8)
    ancestor = np.concatenate((parents, [count, count + 1]))
    for _ in range(count.bit_length() + 1):
        # Each round looks twice as far back as the one before.
        least = np.minimum(least, least[ancestor])
        if (ancestor >= count).all():
            break
        ancestor = ancestor[ancestor]
    endless = ancestor[:count] < count
    return np.where(endless, 0, least[:count]).astype(np.uint8)
