"""The ssd tier's turn: what disk and catalog said, and what is to be done next about it."""

from kvd.core import (
    admission,
    clear,
    commits,
    deliver,
    load,
    reclaim,
    recover,
    save,
    segments,
    waits,
)
from kvd.core.disk_events import (
    Committed,
    DayBegan,
    DiskEvent,
    Probed,
    ReadReleased,
    Recovered,
    SegmentDone,
    SpaceSeen,
    StripsRead,
    StripsWritten,
)
from kvd.core.effects import Effect
from kvd.core.state import State


def on_disk_event(state: State, event: DiskEvent) -> list[Effect]:
    return [*_take(state, event), *pump(state)]


def _take(state: State, event: DiskEvent) -> list[Effect]:
    match event:
        case StripsRead():
            return load.on_strips_read(state, event)
        case StripsWritten():
            save.on_strips_written(state, event)
        case Committed():
            commits.on_committed(state, event)
            on_commit = clear.on_commit_failed if event.fault else clear.on_commit_durable
            on_commit(state, event.batch)
        case SegmentDone():
            segments.on_segment_done(state, event)
        case Probed():
            return segments.on_probed(state, event)
        case SpaceSeen():
            return segments.on_space_seen(state, event)
        case ReadReleased():
            return load.on_read_released(state, event)
        case Recovered():
            return recover.on_recovered(state, event)
        case DayBegan(day):
            save.on_day(state, day)
        case _:
            raise AssertionError(f"no such event: {event}")
    return []


def pump(state: State) -> list[Effect]:
    """Do whatever can be done now: tell readers, make room, write, commit, answer."""
    if state.ssd is None:
        return clear.advance(state) if state.clears else []
    # First those who wait: what is durable now may be dropped for room in this very step.
    effects = [*waits.settle(state), *deliver.progress(state)]
    if state.clears:
        effects += clear.advance(state)
    save.refill(state)
    effects += reclaim.advance(state)
    effects += save.write_due(state)
    sent = commits.commit_due(state)
    for commit in sent:
        clear.on_commit_sent(state, commit)
    return [*effects, *sent]


def on_tick(state: State) -> list[Effect]:
    if state.ssd is None:
        return pump(state)
    commits.on_tick(state)
    admission.trim(state)
    return [*segments.on_tick(state), *pump(state)]
