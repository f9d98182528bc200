"""What each tenant may have on disk: at its quota something new is written only as its own goes.

What goes is colder than what comes, and leaves the disk only: dram keeps what it has of it.
"""

import numpy as np

from kvd.core.drops import closure_of, held_rows, leave_disk
from kvd.core.index import NO_ROW, tenant_of
from kvd.core.quotas import promised_bytes_max
from kvd.core.segments import find_ssd
from kvd.core.state import State
from kvd.core.story import Why
from kvd.types import PlaneClass

ROWS_PER_STEP = 256  # That leave the disk at once, at most.
# More goes at a time than has to, as looking for it costs a walk over all rows.
_PARTS = 32
ALIKE_BITS = 0.1  # Heats so near each other find the same to be colder, for the time of a tick.


def _quota_of(state: State, tenant: str) -> int | None:
    quota = state.config.quotas.get(tenant)
    return None if quota is None else quota.ssd_bytes


def admits(state: State, row: int, classes: list[int]) -> bool:
    """Return whether these strips of a row may be written, now that what is colder has gone."""
    if not state.config.quotas:
        return True
    index, ssd = state.index, find_ssd(state)
    tenant = tenant_of(index, row)
    quota = _quota_of(state, tenant)
    if quota is None:
        return True
    wanted = int(index.size[row, classes].sum(dtype=np.int64))
    over = ssd.used[tenant] + wanted - quota
    if over <= 0:
        return True
    if wanted > quota or ssd.used[tenant] > quota:
        return False  # Nothing comes before `trim` has done its work.
    heat = float(index.heat[row])
    until_ns, coldest = ssd.coldest.get(tenant, (0, heat))
    if state.now_ns < until_ns and heat <= coldest + ALIKE_BITS:
        return False  # Else each put of a tenant at its quota would cost a walk over all rows.
    ahead = min(quota // _PARTS, state.config.limits.write_batch_bytes)
    if not _cool(state, tenant, over + ahead, row):
        ssd.coldest[tenant] = state.now_ns + state.config.limits.tick_ns, heat
    return ssd.used[tenant] + wanted <= quota


def trim(state: State) -> None:
    """Take some of what is beyond a quota off the disk: it was lowered since it was written."""
    ssd = find_ssd(state)
    for tenant in state.config.quotas:
        quota = _quota_of(state, tenant)
        if quota is not None and ssd.used[tenant] > quota:
            _cool(state, tenant, ssd.used[tenant] - quota)


def _cool(state: State, tenant: str, size_bytes: int, row: int = NO_ROW) -> bool:
    """Take a tenant's coldest chunks off the disk, with what is built on them.

    With a `row` only what is colder, and nothing that it stands on. Return whether there may be
    more to take.
    """
    index, ssd = state.index, find_ssd(state)
    theirs = np.array([tree.tenant == tenant for tree in index.trees], bool)
    rows = np.flatnonzero(index.segment[:, PlaneClass.ANCHOR])
    rows = rows[theirs[index.tree_id[rows]]]
    rows = rows[~held_rows(state, PlaneClass.ANCHOR, row)[rows]]
    if row != NO_ROW:
        rows = rows[index.heat[rows] < index.heat[row]]
    target, left = ssd.used[tenant] - size_bytes, ROWS_PER_STEP
    for cold in rows[np.argsort(index.heat[rows], kind="stable")].tolist():
        if ssd.used[tenant] <= target or left <= 0:
            return True
        if not index.segment[cold, PlaneClass.ANCHOR]:
            continue  # It went with one before.
        behind = closure_of(state, cold, PlaneClass.ANCHOR)
        assert behind is not None, "what is held does not change while some of it goes"
        left -= len(behind)
        leave_disk(state, behind, Why.SSD_QUOTA)
    return ssd.used[tenant] <= target


def sheltered(state: State) -> np.ndarray | None:
    """Return bool by tree: whose strips are written again rather than dropped for room.

    Those of tenants with a quota that they do not pass. None when there are none, or more of them
    than can be kept, as the budget shrank.
    """
    if not state.config.quotas:
        return None
    ssd = find_ssd(state)
    within = [
        tenant for tenant in state.config.quotas
        if ssd.used[tenant] <= (_quota_of(state, tenant) or -1)
    ]  # fmt: skip
    used = sum(ssd.used[tenant] for tenant in within)
    if not used or used > promised_bytes_max(ssd.config, ssd.segments_max):
        return None
    return np.array([tree.tenant in within for tree in state.index.trees], bool)
