"""The one door of the core: `step(state, event, now_ns) -> effects`. No I/O, no clock, no chance.

Start reading here: every event has one function, named after it.
"""

from typing import get_args

from kvd.core import (
    adopt,
    clear,
    deliver,
    find,
    keyspaces,
    leases,
    operate,
    postpone,
    reservations,
    reserve,
    seal,
    sessions,
    slabs,
    tier,
)
from kvd.core.disk_events import DiskEvent
from kvd.core.effects import Answer, Effect
from kvd.core.events import (
    AbortWanted,
    Adopted,
    CancelWanted,
    ClearWanted,
    DeliveryEnded,
    DeliveryMoved,
    DrainEnded,
    DrainStarted,
    Event,
    FetchWanted,
    KeyspaceWanted,
    LookupWanted,
    PrefetchWanted,
    ProcessGone,
    ReleaseWanted,
    RenewWanted,
    ReserveWanted,
    SealWanted,
    SessionEnded,
    SessionOpened,
    SlabDetached,
    SlabFailed,
    SlabTouched,
    Started,
    Ticked,
)
from kvd.core.operator_events import OperatorWish
from kvd.core.state import State
from kvd.errors import ErrorKind, KvdError

_NOT_WHILE_DRAINING = (
    KeyspaceWanted, ReserveWanted, LookupWanted, FetchWanted, PrefetchWanted, ClearWanted,
    *get_args(OperatorWish),
)  # fmt: skip
_DISK_EVENTS = get_args(DiskEvent)
_OPERATOR_WISHES = get_args(OperatorWish)


def step(state: State, event: Event, now_ns: int) -> list[Effect]:
    """Take one event in, and return what is to be done about it, in order.

    A wish that cannot be granted is answered with a KvdError; handlers refuse before they change
    anything, so a refusal leaves no trace.
    """
    assert now_ns >= state.now_ns, "time does not run backwards"
    state.now_ns = now_ns
    request = getattr(event, "request", None)
    if state.draining and isinstance(event, _NOT_WHILE_DRAINING):
        refusal = KvdError(ErrorKind.UNAVAILABLE, "the daemon is draining; go without")
        return [Answer(event.request, event.session, refusal)]
    try:
        return _dispatch(state, event)
    except KvdError as refusal:
        assert request is not None, f"{event} cannot be refused"
        return [Answer(request, event.session, refusal)]


def _dispatch(state: State, event: Event) -> list[Effect]:
    match event:
        case LookupWanted():
            return find.on_lookup(state, event)
        case FetchWanted():
            return find.on_fetch(state, event)
        case ReleaseWanted():
            return leases.on_release(state, event)
        case RenewWanted():
            return leases.on_renew(state, event)
        case ReserveWanted():
            return reserve.on_reserve(state, event)
        case SealWanted():
            return [*seal.on_seal(state, event), *tier.pump(state)]
        case AbortWanted():
            return reservations.on_abort(state, event)
        case DeliveryMoved():
            return deliver.on_delivery_moved(state, event)
        case DeliveryEnded():
            return deliver.on_delivery_ended(state, event)
        case CancelWanted():
            return deliver.on_cancel(state, event)
        case Ticked():
            return _on_tick(state)
        case _:
            return _dispatch_rare(state, event)


def _dispatch_rare(state: State, event: Event) -> list[Effect]:
    if isinstance(event, _DISK_EVENTS):
        return tier.on_disk_event(state, event)
    if isinstance(event, _OPERATOR_WISHES):
        return [*operate.on_wish(state, event), *tier.pump(state)]
    match event:
        case PrefetchWanted():
            return find.on_prefetch(state, event)
        case ClearWanted():
            clear.on_clear(state, event)
            return tier.pump(state)
        case KeyspaceWanted():
            return keyspaces.on_keyspace(state, event)
        case SessionOpened():
            return sessions.on_opened(state, event)
        case SessionEnded():
            return sessions.on_ended(state, event)
        case ProcessGone():
            return sessions.on_process_gone(state, event)
        case DrainStarted():
            return sessions.on_drain(state, event)
        case DrainEnded():
            return sessions.on_drain_ended(state, event)
        case Adopted():
            return [*adopt.on_adopted(state, event), *tier.pump(state)]
        case Started():
            return slabs.grow(state)
        case SlabTouched():
            return [*slabs.on_slab_touched(state, event), *postpone.retry(state, find.on_fetch)]
        case SlabFailed():
            return slabs.on_slab_failed(state, event)
        case SlabDetached():
            return slabs.on_slab_detached(state, event)
    raise AssertionError(f"no such event: {event}")


def _on_tick(state: State) -> list[Effect]:
    return [
        *deliver.on_tick(state),
        *leases.on_tick(state),
        *reservations.on_tick(state),
        *sessions.on_tick(state),
        *slabs.on_tick(state),
        *postpone.retry(state, find.on_fetch),
        *tier.on_tick(state),
    ]
