"""Quotas of dram: what a tenant is sure of, what it may not pass, what is refused at the start."""

import pytest

from kvd.core.effects import CreateSlab, NotAdmitted, RecallSlab, Reserved
from kvd.core.events import ProcessGone, SessionEnded, SlabDetached, Ticked
from kvd.core.quotas import Quota, check_tenants
from kvd.core.ssd import SsdConfig
from kvd.core.state import CoreConfig
from kvd.core.step import step
from kvd.core.story import Why
from kvd.errors import ErrorKind, KvdError
from kvd.limits import MIB, PAGE_BYTES, Limits
from kvd.testing.scene import Scene, chain_of

SLABS, SLAB_PAGES = 6, 12
SLAB_BYTES = SLAB_PAGES * PAGE_BYTES
CHUNKS_OF_SLAB = SLAB_PAGES // 3


def quota(slabs: int) -> Quota:
    return Quota(dram_bytes=slabs * SLAB_BYTES)


def scene_of(**slabs: int) -> Scene:
    return Scene(SLABS, SLAB_PAGES, quotas={name: quota(count) for name, count in slabs.items()})


def held(scene: Scene, tenant: str) -> int:
    return sum(slab.tenant == tenant for slab in scene.state.slabs.values())


def honour(scene: Scene) -> None:
    for effect in [e for e in scene.effects if isinstance(e, RecallSlab)]:
        scene.tell(SlabDetached(effect.session, effect.slab))


def flood(scene: Scene, session: int, chunks: int, text: int = 1000) -> list[NotAdmitted]:
    reasons = []
    for at in range(chunks):
        reasons.append(scene.put(session, chain_of(1, text + at)))
        honour(scene)
    return reasons


def test_a_tenant_takes_no_more_slabs_than_its_quota() -> None:
    scene = scene_of(red=2)
    red = scene.join("red")
    assert set(flood(scene, red, 60)) == {NotAdmitted.NONE}, "its own strips make room"
    assert held(scene, "red") == 2


def test_what_a_quota_names_is_there_though_others_came_first() -> None:
    """At once: nothing has to be evicted, recalled or waited for."""
    scene = scene_of(red=2)
    blue, green = scene.join("blue"), scene.join("green")
    for session in (blue, green):
        flood(scene, session, 60)
    assert held(scene, "blue") + held(scene, "green") == SLABS - 2
    red = scene.join("red")
    assert scene.put(red, chain_of(2 * CHUNKS_OF_SLAB)) == NotAdmitted.NONE
    assert held(scene, "red") == 2


def test_a_flood_takes_nothing_from_a_tenant_with_a_quota() -> None:
    """Whether its session lives or is gone, its process as well or not."""
    for end in (None, SessionEnded, ProcessGone):
        scene = scene_of(red=2, green=1)
        red = scene.join("red")
        chain = chain_of(2 * CHUNKS_OF_SLAB)
        assert scene.put(red, chain) == NotAdmitted.NONE
        if end:
            scene.tell(end(red))
            scene.wait(scene.limits.quarantine_ns)
        for tenant in ("blue", "green", "pink"):
            flood(scene, scene.join(tenant), 60, text=2000)
            scene.wait()
        assert scene.counts(scene.join("red"), chain) == (2 * CHUNKS_OF_SLAB,) * 3
        assert held(scene, "green") == 1 and held(scene, "red") == 2


def test_writers_share_the_slabs_of_their_own_tenant_only() -> None:
    scene = scene_of(red=4)
    rich, poor, other = scene.join("red"), scene.join("red"), scene.join("blue")
    flood(scene, other, 20)
    flood(scene, rich, 40)
    for at in range(60):
        flood(scene, rich, 1, text=3000 + at)
        flood(scene, poor, 1, text=4000 + at)
        scene.wait(10**8)
    owned = [len(scene.state.sessions[s].slabs_owned) for s in (rich, poor, other)]
    assert owned[0] + owned[1] <= 4 and owned[1] >= 1 and owned[2] == SLABS - 4


def test_a_recall_of_others_does_not_stand_in_the_way() -> None:
    """One tenant's writer that keeps its slab holds up no other tenant."""
    scene = scene_of(red=2)
    lazy, mate = scene.join("blue"), scene.join("green")
    first, second = scene.join("red"), scene.join("red")
    flood(scene, lazy, 60)
    scene.put(mate, chain_of(1, 7))
    assert any(isinstance(effect, RecallSlab) for effect in scene.effects)
    flood(scene, first, 20)
    scene.put(second, chain_of(1, 8))
    recalled = [effect.session for effect in scene.effects if isinstance(effect, RecallSlab)]
    assert recalled == [first]


def test_what_a_quota_is_full_of_and_cannot_go_refuses_with_its_name() -> None:
    scene = scene_of(red=1)
    red = scene.join("red")
    chain = chain_of(CHUNKS_OF_SLAB)
    assert scene.put(red, chain) == NotAdmitted.NONE
    lease = scene.look_up(red, chain, lease=True).lease
    assert scene.put(red, chain_of(1, 1)) == NotAdmitted.QUOTA
    assert [note.why for notes in scene.state.story.notes.values() for note in notes] == [Why.QUOTA]
    scene.release(red, lease)
    assert scene.put(red, chain_of(1, 1)) == NotAdmitted.NONE


def test_others_are_refused_for_capacity_as_ever() -> None:
    scene = scene_of(red=5)
    blue = scene.join("blue")
    chain = chain_of(CHUNKS_OF_SLAB)
    assert scene.put(blue, chain) == NotAdmitted.NONE
    assert scene.look_up(blue, chain, lease=True).lease
    assert scene.put(blue, chain_of(1, 1)) == NotAdmitted.CAPACITY


def test_a_slab_that_is_made_for_others_is_not_waited_for() -> None:
    scene = scene_of(red=1)
    red = scene.join("red")
    assert scene.put(red, chain_of(CHUNKS_OF_SLAB)) == NotAdmitted.NONE
    del scene.state.slabs[SLABS]
    assert [type(e) for e in step(scene.state, Ticked(), scene.now_ns)] == [CreateSlab]
    assert scene.put(red, chain_of(1, 1)) == NotAdmitted.NONE
    more = chain_of((SLABS - 2) * CHUNKS_OF_SLAB + 1, 1)
    assert scene.reserve(scene.join("blue"), more).reason == NotAdmitted.GROWING


@pytest.mark.parametrize("name", ("_default", "default", "nobody-knows"))
def test_a_name_means_itself(name: str) -> None:
    """No name stands for another one, and one without a quota has what is left."""
    scene = scene_of(red=2, default=1)
    session = scene.join(name)
    flood(scene, session, 60)
    assert held(scene, name) == (1 if name == "default" else SLABS - 3)


def test_parts_of_slabs_do_not_count() -> None:
    scene = Scene(SLABS, SLAB_PAGES, quotas={"red": Quota(3 * SLAB_BYTES - 1)})
    assert isinstance(scene.reserve(scene.join("red"), chain_of(1)), Reserved)
    flood(scene, scene.join("red"), 40)
    assert held(scene, "red") == 2


def config(ssd: SsdConfig | None = None, **quotas: Quota) -> CoreConfig:
    return CoreConfig(8 * MIB, Limits(slab_bytes=2 * MIB), ssd, quotas)


@pytest.mark.parametrize(
    ("quotas", "told"),
    (
        ({"red": Quota(2 * MIB - 1)}, ("tenant red", "less than a slab of 2MiB", "slab_bytes")),
        ({"red": Quota(0)}, ("tenant red is 0MiB", "less than a slab")),
        ({"red": Quota(-1)}, ("tenant red", "less than a slab")),
        ({"red": Quota(6 * MIB), "blue": Quota(4 * MIB)}, ("10MiB together", "dram is 8MiB")),
        ({"red": Quota(None, MIB)}, ("ssd quota of tenant red is 1MiB", "no ssd tier", "--ssd")),
    ),
)
def test_a_quota_that_cannot_be_kept_is_refused(
    quotas: dict[str, Quota], told: tuple[str, ...]
) -> None:
    with pytest.raises(KvdError) as refused:
        config(**quotas)
    assert refused.value.kind == ErrorKind.INVALID
    assert all(part in refused.value.message for part in told), refused.value.message
    assert "\n" not in refused.value.message


def test_ssd_quotas_leave_room_to_write_in() -> None:
    ssd = SsdConfig(1, 4 * MIB, 16)  # 12 segments can be full, and 9 of them promised.
    config(ssd, red=Quota(None, 35 * MIB))
    for quotas in ({"red": Quota(None, 36 * MIB)}, {"red": Quota(None, -1)}):
        with pytest.raises(KvdError, match="ssd quota"):
            config(ssd, **quotas)


def test_tenants_without_a_quota_need_a_slab_that_is_left() -> None:
    quotas = {"red": Quota(4 * MIB), "blue": Quota(4 * MIB)}
    check_tenants(quotas, ("red", "blue"), 4, 2 * MIB)
    check_tenants({"red": Quota(6 * MIB)}, ("red", "green"), 4, 2 * MIB)
    with pytest.raises(KvdError, match="leave no slab of 2MiB to green"):
        check_tenants(quotas, ("red", "blue", "green"), 4, 2 * MIB)
