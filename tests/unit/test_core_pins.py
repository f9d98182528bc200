"""Pins of operators: chains that never were, dram that is full, and slabs that others want."""

from kvd.core.drops import drop_class
from kvd.core.effects import CreateSlab, NotAdmitted, Pinned, RecallSlab
from kvd.core.events import ProcessGone, SlabDetached
from kvd.core.operator_events import PinWanted
from kvd.core.quotas import Quota
from kvd.core.story import Why
from kvd.errors import ErrorKind, KvdError
from kvd.limits import DIGEST_BYTES, PAGE_BYTES
from kvd.testing.scene import Scene, chain_of, kind_of
from kvd.types import PlaneClass
from tests.unit.disk_scene import DiskScene, demote

CHUNK_PAGES = 3


def pin(scene: Scene, chain: bytes, tenant: str = "red", class_count: int = 3) -> Pinned | KvdError:
    digest = next(tree.digest for tree in scene.state.index.trees if tree.tenant == tenant)
    return scene.ask(PinWanted(scene.number(), digest, chain, class_count))


def test_a_chain_that_never_was_is_pinned_as_far_as_it_is_stored() -> None:
    """Chunks of another text behind the first one do not stand for classes that it lacks."""
    scene = Scene()
    session, first, others = scene.join(), chain_of(1, 1), chain_of(9, 2)
    scene.put(session, first)
    scene.put(session, others)
    row = scene.state.index.trees[0].rows[first]
    for plane_class in (PlaneClass.EXACT, PlaneClass.RESIDUAL):
        drop_class(scene.state, row, plane_class, Why.ROOM)
    assert pin(scene, first + others).counts == (1, 0, 0)


def test_a_pin_names_a_keyspace() -> None:
    """Without one there is no tree to walk, which ended the daemon."""
    scene = Scene()
    scene.put(scene.join(), chain_of(1))
    for digest in (b"", bytes(DIGEST_BYTES)):
        outcome = scene.ask(PinWanted(scene.number(), digest, chain_of(1), 3))
        assert kind_of(outcome) == ErrorKind.INVALID


def full_of_others() -> tuple[DiskScene, bytes]:
    """Return a scene whose dram is full of others' idle slabs, and a chain that is on disk only."""
    scene, chain = DiskScene(segments=100), chain_of(3)
    for tenant in ("red", "blue", "green"):
        session = scene.join(tenant)
        scene.put(session, chain)
        scene.save()
        if tenant == "red":
            demote(scene)
        for text in range(3 * (tenant != "red")):
            scene.put(session, chain_of(15, 100 + text))
            scene.save()
        scene.tell(ProcessGone(session))
    scene.wait()
    return scene, chain


def test_a_pin_without_room_makes_some_for_the_next_try() -> None:
    """What was begun to make room is not lost with the refusal: the slab asked for is made."""
    scene, chain = full_of_others()
    created, outcome = 0, None
    for _ in range(8):
        outcome = pin(scene, chain)
        created += sum(isinstance(effect, CreateSlab) for effect in scene.effects)
        if isinstance(outcome, Pinned):
            break
        assert outcome.kind == ErrorKind.OVERLOADED
    assert created and not scene.state.touching
    assert isinstance(outcome, Pinned) and outcome.counts == (3, 3, 3)


def test_a_pin_names_the_last_chunk_that_it_holds() -> None:
    """Where the rest of the chain finds no place."""
    scene = DiskScene(slabs=4, segments=100)
    session, chain, held = scene.join(), chain_of(30), chain_of(14, 7)
    for part in (chain[: 15 * DIGEST_BYTES], chain):
        scene.put(session, part)
        scene.save()
        demote(scene)
    scene.put(session, held)
    assert scene.fetch(session, held).counts == (14, 14, 14)
    pinned = pin(scene, chain, class_count=1)
    count = pinned.counts[0]
    assert 0 < count < 30
    last = chain[(count - 1) * DIGEST_BYTES : count * DIGEST_BYTES]
    assert scene.state.pins[pinned.pin].chunk == last


def test_pins_leave_half_of_what_a_tenant_may_have() -> None:
    """Not half of all dram: of that a quota may be the smaller part."""
    slab_pages = 4 * CHUNK_PAGES
    quotas = {"red": Quota(dram_bytes=2 * slab_pages * PAGE_BYTES)}
    scene = Scene(slabs=8, slab_pages=slab_pages, quotas=quotas)
    session = scene.join()
    for text in range(8):
        scene.put(session, chain_of(1, text))
    outcomes = [pin(scene, chain_of(1, text)) for text in range(8)]
    assert [isinstance(outcome, Pinned) for outcome in outcomes] == [True] * 4 + [False] * 4
    assert kind_of(outcomes[4]) == ErrorKind.INVALID and "tenant red" in outcomes[4].message
    assert scene.put(session, chain_of(1, 100)) == NotAdmitted.NONE
    blue = scene.join("blue")
    scene.put(blue, chain_of(2, 200))
    assert isinstance(pin(scene, chain_of(2, 200), "blue"), Pinned), "its own bound is another"


def test_a_slab_with_a_pin_in_it_is_not_emptied_for_others() -> None:
    """That would cost its tenant all the rest, and win nothing."""
    scene = Scene(slabs=4, slab_pages=4 * CHUNK_PAGES)
    red, blue = scene.join("red"), scene.join("blue")
    for text in range(16):
        scene.put(red, chain_of(1, text))
    pin(scene, chain_of(1, 0))
    tries = 0
    while scene.put(blue, chain_of(1, 500)) != NotAdmitted.NONE:
        tries += 1
        assert tries < 10, "blue gets no slab"
        for effect in [e for e in scene.effects if isinstance(e, RecallSlab)]:
            scene.tell(SlabDetached(effect.session, effect.slab))
    kept = sum(scene.counts(red, chain_of(1, text))[2] for text in range(16))
    assert kept >= 12, "one slab of four went"
