"""Quotas of disk: counted exactly, kept at every step, and what others write does not pass them."""

import numpy as np
import pytest

from kvd.clock import NS_PER_S
from kvd.core import admission
from kvd.core.admission import sheltered
from kvd.core.counts import SSD, Shed
from kvd.core.drops import free_copy
from kvd.core.effects import Answer, Cleared
from kvd.core.events import ClearWanted
from kvd.core.quotas import Quota
from kvd.core.story import Why
from kvd.limits import PAGE_BYTES
from kvd.testing.scene import chain_of
from kvd.types import CLASS_COUNT
from tests.unit.disk_scene import DiskScene, demote, recovered

CHUNK_BYTES = CLASS_COUNT * PAGE_BYTES


def scene_of(event: object = None, segments: int = 12, **chunks: int) -> DiskScene:
    """Return a scene in which tenants may have so many chunks on disk."""
    quotas = {name: Quota(ssd_bytes=count * CHUNK_BYTES) for name, count in chunks.items()}
    return DiskScene(segments=segments, event=event, quotas=quotas)


def put_apart(scene: DiskScene, session: int, count: int, text: int = 0) -> list[bytes]:
    """Put chunks of different texts, some time between them, each to disk; return them."""
    chains = [chain_of(1, text + at) for at in range(count)]
    for chain in chains:
        scene.now_ns += 60 * NS_PER_S
        scene.put(session, chain)
        scene.save()
    return chains


def on_disk(scene: DiskScene, chain: bytes, tenant: str = "red") -> bool:
    index = scene.state.index
    rows = [t.rows[chain] for t in index.trees if t.tenant == tenant and chain in t.rows]
    return bool(rows) and bool(index.segment[rows[0]].all())


def used(scene: DiskScene, tenant: str = "red") -> int:
    return scene.state.ssd.used[tenant] // CHUNK_BYTES


def test_at_its_quota_a_tenant_writes_only_as_its_own_coldest_go() -> None:
    scene = scene_of(red=4)
    chains = put_apart(scene, scene.join(), 10)
    assert [on_disk(scene, chain) for chain in chains] == [False] * 6 + [True] * 4
    assert used(scene) == 4
    counts = scene.state.counts
    assert counts.evicted_strips["red", SSD, 0, Why.SSD_QUOTA] == 6


def test_what_leaves_the_disk_stays_in_dram() -> None:
    scene = scene_of(red=4)
    session = scene.join()
    chains = put_apart(scene, session, 10)
    assert all(scene.counts(session, chain) == (1, 1, 1) for chain in chains)
    demote(scene)
    found = [scene.counts(session, chain)[0] for chain in chains]
    assert found == [1] * 10, "six in dram only, and four on disk only"
    scene.save()
    assert used(scene) == 4


def test_what_left_dram_before_is_gone_when_it_leaves_the_disk() -> None:
    scene = scene_of(red=4)
    session = scene.join()
    old = put_apart(scene, session, 4)
    demote(scene)
    new = put_apart(scene, session, 2, text=100)
    assert [scene.counts(session, chain)[0] for chain in (*old, *new)] == [0, 0, 1, 1, 1, 1]


def test_parts_that_dram_has_not_go_with_the_disk() -> None:
    """Of a chain whose second chunk has no residual in dram, all in front of that stays."""
    scene = scene_of(red=3)
    session, chain = scene.join(), chain_of(3)
    scene.put(session, chain)
    scene.save()
    demoted = scene.state.index.trees[0].rows[chain[32:64]]
    free_copy(scene.state, demoted, 1)
    put_apart(scene, session, 3, text=100)
    assert scene.counts(session, chain) == (3, 1, 1)


def test_what_is_hot_is_not_pushed_out_by_what_comes_once() -> None:
    scene = scene_of(red=4)
    session = scene.join()
    hot = put_apart(scene, session, 4)
    for _ in range(8):
        for chain in hot:
            scene.release(session, scene.look_up(session, chain, lease=True).lease)
    new = put_apart(scene, session, 3, text=100)
    assert all(on_disk(scene, chain) for chain in hot)
    assert not any(on_disk(scene, chain) for chain in new)
    assert scene.state.counts.ssd_shed_chunks[Shed.QUOTA] == 3
    notes = [note.why for notes in scene.state.story.notes.values() for note in notes]
    assert notes == [Why.SSD_QUOTA] * 3
    assert all(scene.counts(session, chain) == (1, 1, 1) for chain in new), "in dram"


def test_a_chain_at_its_quota_does_not_cut_what_it_stands_on() -> None:
    scene = scene_of(red=4)
    session, chain = scene.join(), chain_of(9)
    scene.put(session, chain)
    for _ in range(3):
        scene.save()
    saved = [on_disk(scene, chain[at : at + 32]) for at in range(0, len(chain), 32)]
    assert saved == sorted(saved, reverse=True) and used(scene) <= 4


def test_nothing_of_a_tenant_with_a_quota_of_nothing_is_written() -> None:
    scene = scene_of(red=0)
    session = scene.join()
    chains = put_apart(scene, session, 3)
    assert used(scene) == 0 and not any(on_disk(scene, chain) for chain in chains)
    assert all(scene.counts(session, chain) == (1, 1, 1) for chain in chains)


@pytest.mark.parametrize("flooder", ("blue", "green"))
def test_a_flood_drops_nothing_of_a_tenant_within_its_quota(flooder: str) -> None:
    """Of one without a quota, or at its own; what the flood leaves in the way is written again."""
    scene = scene_of(red=10, green=3)
    red, other = scene.join("red"), scene.join(flooder)
    quiet = put_apart(scene, red, 10)
    demote(scene)
    for text in range(30):
        put_apart(scene, other, 1, text=1000 + text)
        demote(scene)
        assert used(scene, "green") <= 3
    assert scene.state.counts.ssd_segments_cleared[()] > 3 or flooder == "green"
    assert all(scene.counts(red, chain) == (1, 1, 1) for chain in quiet)
    assert used(scene) == 10


def test_without_quotas_a_flood_takes_all() -> None:
    """What the test above would show if nothing held the flood back."""
    scene = scene_of()
    red, blue = scene.join("red"), scene.join("blue")
    quiet = put_apart(scene, red, 10)
    demote(scene)
    for text in range(30):
        put_apart(scene, blue, 1, text=1000 + text)
        demote(scene)
    assert sum(scene.counts(red, chain)[2] for chain in quiet) < 5


def test_a_quota_that_was_lowered_is_reached_step_by_step() -> None:
    scene = scene_of()
    chains = put_apart(scene, scene.join(), 8)
    fresh = scene_of(recovered(scene), red=3)
    assert used(fresh) == 8
    fresh.wait()
    assert used(fresh) == 3
    fresh.save()
    dropped = {digest for commit in fresh.commits for digest in commit.dropped.chain}
    assert dropped == set(chains[:5]), "the coldest, and the catalog was told"


def test_what_is_read_stays_beyond_a_lowered_quota_until_it_was() -> None:
    scene = scene_of()
    chains = put_apart(scene, scene.join(), 6)
    fresh = scene_of(recovered(scene), red=1)
    session = fresh.join()
    promises = [fresh.fetch(session, chain) for chain in chains[:3]]
    fresh.settle()
    fresh.wait()
    assert used(fresh) == 3
    put_apart(fresh, session, 1, text=100)
    assert used(fresh) == 3, "nothing new as long as there is too much"
    for promise in promises:
        fresh.release(session, promise.lease)
    fresh.wait()
    assert used(fresh) == 1


def test_a_clear_while_leased_gives_back_what_it_can() -> None:
    """What is still read counts until it is gone."""
    scene = scene_of(red=4)
    session = scene.join()
    chains = put_apart(scene, session, 4)
    promise = scene.fetch(session, chains[0])
    scene.tell(ClearWanted(scene.number(), session, 1, scene.now_ns + 60 * NS_PER_S))
    scene.settle()
    answers = [e.outcome for e in scene.seen if isinstance(e, Answer)]
    assert Cleared(3, 1) in answers
    assert used(scene) == 1
    scene.release(session, promise.lease)
    put_apart(scene, session, 6, text=100)
    assert 3 <= used(scene) <= 4, "that chunk went first"
    assert on_disk(scene, chain_of(1, 105)) and not on_disk(scene, chains[0])


def test_where_nothing_is_colder_a_tick_looks_once_however_much_was_put(monkeypatch) -> None:
    walks = 0
    real = admission.held_rows

    def held_rows(state, plane_class: int, also: int) -> np.ndarray:
        nonlocal walks
        walks += 1
        return real(state, plane_class, also)

    monkeypatch.setattr(admission, "held_rows", held_rows)
    scene = scene_of(red=2)
    session = scene.join()
    hot = put_apart(scene, session, 2)
    for chain in hot * 4:
        scene.release(session, scene.look_up(session, chain, lease=True).lease)
    walks = 0
    for text in range(30):
        scene.now_ns += 10**6  # Each is a little hotter than the one before.
        scene.put(session, chain_of(1, 100 + text))
    scene.settle()
    scene.wait()
    assert scene.state.counts.ssd_shed_chunks[Shed.QUOTA] == 30 and 0 < walks <= 4
    scene.now_ns += 3600 * NS_PER_S
    scene.put(session, chain_of(1, 200))
    scene.save()
    assert on_disk(scene, chain_of(1, 200)), "what is hotter by now is written"


def test_a_shrunk_budget_keeps_no_promise() -> None:
    """Less can be kept than the quotas name: then all are alike, and writing goes on."""
    scene = scene_of(red=12)
    put_apart(scene, scene.join("red"), 12)
    scene.put(scene.join("blue"), chain_of(1))
    assert sheltered(scene.state).tolist() == [True, False]
    scene.state.ssd.segments_max = 8
    assert sheltered(scene.state) is None
