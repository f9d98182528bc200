"""A clear that is late goes on to its end, and no more of them wait than a bound says."""

from kvd.clock import NS_PER_S
from kvd.core import clear
from kvd.core.effects import Answer
from kvd.core.events import ClearWanted, SessionEnded
from kvd.errors import ErrorKind
from kvd.testing.scene import Scene, chain_of, kind_of
from tests.unit.disk_scene import DiskScene

SOON_NS = NS_PER_S // 2
CHUNKS = 20


def late(scene: Scene, session: int) -> list[ErrorKind | None]:
    """Ask for a clear, let its deadline pass, and return how it was answered."""
    scene.tell(ClearWanted(scene.number(), session, 1, scene.now_ns + SOON_NS))
    scene.wait(2 * SOON_NS)
    return [kind_of(effect.outcome) for effect in scene.effects if isinstance(effect, Answer)]


def test_what_a_late_clear_left_is_dropped_all_the_same(monkeypatch) -> None:
    monkeypatch.setattr(clear, "ROWS_PER_STEP", 4)
    scene = DiskScene(segments=40)
    session = scene.join()
    scene.put(session, chain_of(CHUNKS))
    scene.save()
    assert late(scene, session) == [ErrorKind.LATE]
    assert scene.state.index.row_count, "some of it is left"
    for _ in range(CHUNKS):
        scene.settle()
        scene.wait()
    assert not scene.state.index.row_count and not scene.state.clears
    dropped = {digest for commit in scene.commits for digest in commit.dropped.chain}
    assert len(dropped) == CHUNKS, "nothing comes back with a restart"
    answers = [effect for effect in scene.seen if isinstance(effect, Answer)]
    assert len({answer.request for answer in answers}) == len(answers)


def test_a_clear_goes_on_past_its_deadline_without_its_session(monkeypatch) -> None:
    monkeypatch.setattr(clear, "ROWS_PER_STEP", 4)
    scene = Scene(slabs=8)
    session = scene.join()
    scene.put(session, chain_of(CHUNKS))
    scene.tell(ClearWanted(scene.number(), session, 1, scene.now_ns + SOON_NS))
    scene.tell(SessionEnded(session))
    for _ in range(CHUNKS):
        scene.wait()
    assert not scene.state.index.row_count and not scene.state.clears


def test_no_more_clears_are_under_way_than_the_bound_says(monkeypatch) -> None:
    monkeypatch.setattr(clear, "ROWS_PER_STEP", 1)
    monkeypatch.setattr(clear, "CLEARS_MAX", 2)
    scene = Scene()
    session = scene.join()
    scene.put(session, chain_of(9))
    assert late(scene, session) == late(scene, session) == [ErrorKind.LATE]
    refusal = scene.ask(ClearWanted(scene.number(), session, 1, 0))
    assert kind_of(refusal) == ErrorKind.OVERLOADED and "2 clears" in refusal.message
