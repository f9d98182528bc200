"""The index against brute force: prefixes, frontier and children over random trees of chunks."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kvd.core.drops import drop_class
from kvd.core.evict import evict
from kvd.core.index import NO_ROW, ROWS_AT_START
from kvd.core.story import Why
from kvd.limits import DIGEST_BYTES
from kvd.testing.scene import Scene, branch_of, chain_of
from kvd.types import CLASS_COUNT

GROWTH = st.lists(
    st.tuples(st.integers(0, 99), st.integers(0, 6), st.integers(1, 4)), min_size=1, max_size=8
)
DROPS = st.lists(st.integers(0, 999), max_size=40)


def grow(scene: Scene, session: int, growth: list[tuple[int, int, int]]) -> list[bytes]:
    """Store chains, each of which goes on from somewhere in one before it; return them."""
    chains: list[bytes] = []
    for text, (which, stem, count) in enumerate(growth):
        if not chains or not stem:
            chains.append(chain_of(count, text))
        else:
            from_chain = chains[which % len(chains)]
            chains.append(branch_of(from_chain[: stem * DIGEST_BYTES], count, text))
        scene.put(session, chains[-1])
    return chains


def prefix_by_walk(scene: Scene, chain: bytes, plane_class: int) -> int:
    index = scene.state.index
    rows = index.trees[0].rows
    for at in range(0, len(chain), DIGEST_BYTES):
        row = rows.get(chain[at : at + DIGEST_BYTES], NO_ROW)
        if row == NO_ROW or not index.slab[row, plane_class]:
            return at // DIGEST_BYTES
    return len(chain) // DIGEST_BYTES


@settings(max_examples=60)
@given(GROWTH, DROPS)
def test_prefixes_after_any_evictions(growth: list, drops: list[int]) -> None:
    """Bisection finds what a walk finds, and the frontier is all that may go and nothing else."""
    scene = Scene(slabs=8, slab_pages=48)
    session = scene.join()
    chains = grow(scene, session, growth)
    index = scene.state.index
    for choice in drops:
        if not len(index.frontier):
            break
        row = int(index.frontier.members[choice % len(index.frontier)])
        drop_class(scene.state, row, index.top_class(row), Why.ROOM)
        scene.wait(1)  # Checks the frontier, the children and I6 from the ground.
        for chain in chains:
            walked = tuple(prefix_by_walk(scene, chain, c) for c in range(CLASS_COUNT))
            assert scene.counts(session, chain) == walked
    promises = [scene.fetch(session, chain) for chain in chains]
    for chain, promise in zip(chains, promises, strict=True):
        assert promise.counts == scene.counts(session, chain)
        assert all(slabs.all() for slabs in promise.lanes[0].slabs)


@settings(max_examples=40)
@given(GROWTH, st.lists(st.tuples(st.integers(0, 7), st.integers(0, 9)), min_size=1, max_size=6))
def test_any_mixture_of_chains_is_promised_only_as_stored(growth: list, cuts: list) -> None:
    """Digests in an order that was never stored: what is named hangs together and is there."""
    scene = Scene(slabs=8, slab_pages=48)
    session = scene.join()
    chains = grow(scene, session, growth)
    pieces = [chains[which % len(chains)][at * DIGEST_BYTES :] for which, at in cuts]
    mixture = b"".join(pieces)
    if not mixture:
        return
    promise = scene.fetch(session, mixture)
    counts = promise.counts
    assert counts[0] >= counts[1] >= counts[2]
    index, rows = scene.state.index, scene.state.index.trees[0].rows
    before = NO_ROW
    for at in range(counts[0]):
        row = rows[mixture[at * DIGEST_BYTES : (at + 1) * DIGEST_BYTES]]
        assert index.parent[row] == before
        before = row
    assert all(np.all(slabs != 0) for slabs in promise.lanes[0].slabs)


def test_rows_are_used_again_beyond_the_first_columns() -> None:
    """The columns grow, and rows that were given up come back clean."""
    scene = Scene(slabs=2, slab_pages=2048)
    session = scene.join()
    for text in range(3):
        scene.put(session, chain_of(1100, text))
        assert scene.counts(session, chain_of(1100, text)) == (1100, 1100, 1100)
        assert len(scene.state.index.parent) == 2048 > 2 * ROWS_AT_START
        while evict(scene.state, set(scene.state.slabs), scene.state.capacity_bytes):
            pass
        assert scene.state.index.row_count == 0
