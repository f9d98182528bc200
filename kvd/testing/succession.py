"""A restart of the simulated daemon that keeps dram: what is left, damaged, lost, and taken over.

Writers of the daemon before may live on, and write where they were given places.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from kvd.clock import NS_PER_MS
from kvd.core.dram import LeftDram
from kvd.core.events import Adopted, DrainEnded
from kvd.core.handover import leave_dram
from kvd.core.slabs import is_own
from kvd.testing.memory import POISON, SECTOR_BYTES, Strip
from kvd.testing.oracles import require

if TYPE_CHECKING:
    from kvd.testing.world import World

HANDED_OVER = 0.6  # Of the ends in good order.


def leave(world: "World") -> LeftDram | None:
    """End all sessions, and return what the next daemon finds; None when nobody keeps it."""
    if world.fate.random() > HANDED_OVER:
        return None
    known = {number: world.revokes.get(number, 0) for number in world.state.sessions}
    for client in world.clients.values():
        client.stop(gone=False)
    world.writers = {
        slab for client in world.clients.values() if client.alive for slab in client.writable
    }
    world.tell(DrainEnded())
    for number, counter in known.items():
        moved = is_own(number) or world.revokes.get(number, 0) > counter
        require(moved, f"I2: session {number} may trust what it reads behind a restart")
    left = leave_dram(world.state)
    if world.fate.random() < 0.2 and len(left.slabs) > 1:
        left = _lose_slab(world, left)
    return left


def _lose_slab(world: "World", left: LeftDram) -> LeftDram:
    """Have the store not keep one of them."""
    lost = world.fate.choice(left.slabs).slab
    slabs = tuple(slab for slab in left.slabs if slab.slab != lost)
    return replace(left, slabs=slabs, rows=_without(left, left.rows.slabs == lost))


def _without(left: LeftDram, gone: np.ndarray) -> object:
    names = ("slabs", "offsets", "sizes", "roots")
    return replace(left.rows, **{n: np.where(gone, 0, getattr(left.rows, n)) for n in names})


def take_over(world: "World", left: LeftDram) -> None:
    """Check every table, as the hand does, and have the core adopt what is good."""
    unfit = np.zeros(left.rows.slabs.shape, bool)
    for at, plane_class in np.argwhere(left.rows.slabs).tolist():
        strip = _strip(world, left, at, plane_class)
        require(strip.fill.sealed, f"I1: {strip.fill.name()} is left, and was not sealed")
        word = strip.wrong_word()
        require(word is None, f"I4: {strip.fill.name()} is left, and there is another's")
        if world.fate.random() < 0.02:
            strip.damage()
        unfit[at, plane_class] = strip.is_flipped(1)
    if unfit.any():
        world.saw("a strip left that does not fit its root")
    world.tell(Adopted(replace(left, rows=_without(left, unfit))))
    index = world.state.index
    if ((index.slab != 0) & (index.segment != 0)).any():
        world.saw("a copy taken over")
    if index.slab.any():
        world.saw("dram taken over")
    if any(slab.orphan for slab in left.slabs):
        world.saw("a slab taken over from a writer that lives")
    if any(slab.slab not in world.state.slabs for slab in left.slabs):
        world.saw("a slab left without room for it")
    _write_on(world, left)


def _strip(world: "World", left: LeftDram, at: int, plane_class: int) -> Strip:
    rows = left.rows
    fill = world.memory.find_fill(int(rows.generations[at]), rows.keys.chain[at])
    slab, offset = int(rows.slabs[at, plane_class]), int(rows.offsets[at, plane_class])
    mapping = world.memory.slabs[slab]
    return Strip(slab, mapping, offset, int(rows.sizes[at, plane_class]), fill, plane_class)


def _write_on(world: "World", left: LeftDram) -> None:
    """Have writers of the daemon before write, sooner or later, all that was not sealed there."""
    for slab in left.slabs:
        if slab.slab not in world.writers:
            continue
        mapping = world.memory.slabs[slab.slab]
        unsealed = np.ones(len(mapping), bool)
        for at, plane_class in np.argwhere(left.rows.slabs == slab.slab).tolist():
            begin = int(left.rows.offsets[at, plane_class]) // SECTOR_BYTES
            unsealed[begin : begin + int(left.rows.sizes[at, plane_class]) // SECTOR_BYTES] = False

        def write(mapping: np.ndarray = mapping, unsealed: np.ndarray = unsealed) -> None:
            mapping[unsealed] = POISON

        world.after(world.fate.choice((1, 200, 3000)) * NS_PER_MS, write)
