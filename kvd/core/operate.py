"""What an operator does to the cache: frees dram, clears for good, pins and unpins prefixes.

No step takes long: what there is more of is told, and the operator's door asks again.
"""

import numpy as np

from kvd.core import clear
from kvd.core.drops import drop_class, free_copy, held_rows
from kvd.core.effects import Answer, Effect, Evicted, Pinned, Unpinned
from kvd.core.find import walk
from kvd.core.index import Saving, Tree
from kvd.core.load import Counts, plan
from kvd.core.operator_events import (
    OPERATOR,
    EvictWanted,
    ForgetWanted,
    OperatorWish,
    PinWanted,
    UnpinWanted,
)
from kvd.core.shares import group_of
from kvd.core.slabs import settle
from kvd.core.state import Pin, State
from kvd.core.story import Why
from kvd.errors import ErrorKind, KvdError
from kvd.limits import DIGEST_BYTES
from kvd.types import CLASS_COUNT

STRIPS_PER_STEP = 1024
PINS_MAX = 1024
PINNED_SHARE = 0.5  # Of a group's dram, at most: what is left has to serve everybody in it.


def on_wish(state: State, event: OperatorWish) -> list[Effect]:
    match event:
        case EvictWanted():
            return _on_evict(state, event)
        case ForgetWanted():
            return _on_forget(state, event)
        case PinWanted():
            return _on_pin(state, event)
        case UnpinWanted():
            return _on_unpin(state, event)


def trees_of(state: State, tenant: str, keyspace: bytes) -> list[Tree]:
    """Return the trees of a keyspace, which raise INVALID where there are none, or of a tenant."""
    trees = state.index.trees
    if not keyspace:
        return [tree for tree in trees if tree.tenant == tenant]
    found = [t for t in trees if t.digest == keyspace and tenant in ("", t.tenant)]
    if not found:
        what = f"nothing was ever stored for keyspace {keyspace.hex()[:16]}"
        raise KvdError(ErrorKind.INVALID, what)
    return found


# ---- evict ----


def _on_evict(state: State, event: EvictWanted) -> list[Effect]:
    """Free the coldest strips that nobody holds, a bounded number of them."""
    index = state.index
    trees = [tree.id for tree in trees_of(state, event.tenant, event.keyspace)]
    wanted = event.size_bytes or state.config.dram_bytes
    strips = _in_dram(state, np.array(trees), lossy=event.lossy)
    slabs: set[int] = set()
    count, freed, left = 0, 0, len(strips)
    for strip in strips.tolist():
        left -= 1
        row, plane_class = divmod(strip, CLASS_COUNT)
        size = int(index.size[row, plane_class])
        if index.segment[row, plane_class]:
            slabs.add(free_copy(state, row, plane_class, Why.EVICTED))
        elif index.children[row, plane_class] or index.top_class(row) != plane_class:
            continue  # What stands on it is on disk.
        else:
            slabs.add(drop_class(state, row, plane_class, Why.EVICTED))
        count, freed = count + 1, freed + size
        if freed >= wanted or count >= STRIPS_PER_STEP:
            break
    more = left > 0 and freed < wanted
    settled = [effect for slab in sorted(slabs) for effect in settle(state, slab)]
    return [*settled, Answer(event.request, OPERATOR, Evicted(count, freed, more))]


def _in_dram(state: State, trees: np.ndarray, *, lossy: bool) -> np.ndarray:
    """Return i64: strips that may be freed: copies by heat, then, leaves first, the only ones."""
    index = state.index
    live = np.flatnonzero(index.present[:, 0] & np.isin(index.tree_id, trees))
    there = (index.slab[live] != 0) & (index.missing[live] == 0) & (index.reads[live] == 0)
    there &= (index.saving[live] != Saving.WRITING)[:, None]
    copies = there & (index.segment[live] != 0)
    by_heat = np.argsort(index.heat[live], kind="stable")
    rows, classes = np.nonzero(copies[by_heat])
    found = live[by_heat][rows] * CLASS_COUNT + classes
    if not lossy:
        return found
    held = [held_rows(state, plane_class)[live] for plane_class in range(CLASS_COUNT)]
    only = there & ~copies & ~np.stack(held, axis=1)
    by_depth = np.lexsort((index.heat[live], -index.depth[live]))
    rows, classes = np.nonzero(only[by_depth][:, ::-1])
    fresh = live[by_depth][rows] * CLASS_COUNT + (CLASS_COUNT - 1 - classes)
    return np.concatenate((found, fresh))


# ---- clear ----


def _on_forget(state: State, event: ForgetWanted) -> list[Effect]:
    trees = trees_of(state, event.tenant, event.keyspace)
    clear.begin(state, event.request, OPERATOR, trees, event.deadline_ns)
    state.counts.clears[trees[0].tenant if trees else event.tenant] += 1
    return []


# ---- pins ----


def _on_pin(state: State, event: PinWanted) -> list[Effect]:
    """Hold the longest prefix that every lane has; what is on disk only is read."""
    if len(state.pins) >= PINS_MAX:
        raise KvdError(ErrorKind.OVERLOADED, f"there are {PINS_MAX} pins, the most; unpin some")
    if not event.keyspace:
        raise KvdError(ErrorKind.INVALID, "a pin is of one keyspace, and none is named")
    index = state.index
    trees = tuple(trees_of(state, "", event.keyspace))
    rows, counts, _ = walk(index, trees, event.chain, event.class_count)
    if not counts[0]:
        raise KvdError(ErrorKind.INVALID, "nothing of this chain is stored; see explain")
    tenant = trees[0].tenant
    _check_room(state, tenant, rows, counts)
    planned = plan(state, tenant, rows, counts)
    if not planned.counts[0]:
        # What was done to make room is done: its effects go out with the refusal.
        full = KvdError(ErrorKind.OVERLOADED, "dram has no room for it now", retry_after_ms=1000)
        return [*planned.effects, Answer(event.request, OPERATOR, full)]
    strips = np.concatenate([each.ravel() for each in planned.strips])
    ends = [
        (int(lane[count - 1]), plane_class)
        for lane in rows for plane_class, count in enumerate(planned.counts) if count
    ]  # fmt: skip
    index.reads.reshape(-1)[strips] += 1
    for row, plane_class in ends:
        index.pins[row, plane_class] += 1
    size_bytes = int(index.size.reshape(-1)[strips].sum(dtype=np.int64))
    state.pin_id += 1
    pin = Pin(
        state.pin_id, tenant, event.keyspace,
        event.chain[: planned.counts[0] * DIGEST_BYTES][-DIGEST_BYTES:],
        planned.counts, ends, strips, size_bytes, state.now_ns,
    )  # fmt: skip
    state.pins[pin.id] = pin
    pinned = Pinned(pin.id, pin.counts, size_bytes)
    return [*planned.effects, Answer(event.request, OPERATOR, pinned)]


def _check_room(state: State, tenant: str, rows: list[np.ndarray], counts: Counts) -> None:
    """Raise INVALID when pins would hold more than half of what the tenant's group may have."""
    index, group = state.index, group_of(state, tenant)
    wanted = sum(
        int(index.size[lane[:count], c].sum(dtype=np.int64))
        for lane in rows for c, count in enumerate(counts)
    )  # fmt: skip
    theirs = (pin for pin in state.pins.values() if group_of(state, pin.tenant) == group)
    held = sum(pin.size_bytes for pin in theirs)
    limit = int(state.slabs_max[group] * state.config.slab_bytes * PINNED_SHARE)
    if held + wanted > limit:
        whose = "dram" if len(state.slabs_max) == 1 else f"the dram that tenant {tenant} may have"
        raise KvdError(
            ErrorKind.INVALID,
            f"pins of {held} bytes and {wanted} more pass half of {whose}, {limit}; "
            "unpin some, pin fewer classes, or raise dram",
        )


def _on_unpin(state: State, event: UnpinWanted) -> list[Effect]:
    pin = state.pins.get(event.pin)
    if pin is None:
        raise KvdError(ErrorKind.INVALID, f"there is no pin {event.pin}; see pins")
    clear.unpin(state, pin)
    return [Answer(event.request, OPERATOR, Unpinned())]
