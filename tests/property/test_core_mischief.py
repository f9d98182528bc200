"""No wish of any client ends the daemon: chains that never were, numbers of others, odd sizes."""

import random
from collections.abc import Iterable

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kvd.clock import NS_PER_S
from kvd.core.effects import Answer, Deliver
from kvd.core.events import (
    AbortWanted,
    CancelWanted,
    ClearWanted,
    Delivery,
    DeliveryEnded,
    FetchWanted,
    LookupWanted,
    PrefetchWanted,
    ProcessGone,
    ReleaseWanted,
    RenewWanted,
    ReserveWanted,
    SealWanted,
    SessionEnded,
    SlabDetached,
)
from kvd.core.state import Lease, Reservation
from kvd.limits import PAGE_BYTES, Limits
from kvd.testing.scene import Scene
from kvd.types import Lane, Shard, ShardScheme

DIGESTS = [bytes([number]) * 32 for number in range(6)]
LANES = [
    Lane(),
    Lane(shard=Shard(ShardScheme.HEADS, 1, 2)),
    Lane(shard=Shard(ShardScheme.LAYERS, 1, 3)),
    Lane(kv_group=3),
]
LIMITS = Limits(
    slab_bytes=12 * PAGE_BYTES,
    leases_per_session_max=4,
    reservations_per_session_max=3,
    requests_per_session_max=2,
)

DEEDS = ("reserve",) * 3 + ("seal",) * 4 + ("abort", "lookup", "fetch", "fetch", "release") + (
    "renew", "cancel", "detach", "delivered", "join", "end", "gone", "wait", "jump", "prefetch",
    "clear",
)  # fmt: skip
SIZES = (0, 1, 100, 4096, 4096, 4096, 8192, 1 << 17)
STEPS = 60


def draw(rng: random.Random) -> tuple:
    """Return a deed with three small numbers, a chain, a parent and some sizes."""
    count = rng.randint(0, 6)
    stored_order = rng.random() < 0.7
    chain = DIGESTS[:count] if stored_order else rng.choices(DIGESTS, k=count)
    parent = rng.choice((b"", *DIGESTS[:3]))
    sizes = rng.choices(SIZES, k=rng.randint(0, 18))
    numbers = (rng.randrange(8) for _ in range(3))
    return (rng.choice(DEEDS), *numbers, b"".join(chain), parent, sizes)


def rows_of_three(values: list[int]) -> np.ndarray:
    return np.array(values[: len(values) // 3 * 3], np.uint32).reshape(-1, 3)


def one_of(held: Iterable[Reservation | Lease], session: int, choice: int) -> tuple[int, int]:
    """Return who holds one of these, and its number; or a number that is perhaps not held."""
    known = list(held)
    if choice < 6 and known:
        chosen = known[choice % len(known)]
        return chosen.session, chosen.id
    return session, choice


def session_of(scene: Scene, choice: int) -> int:
    """Return a session, or one that never was."""
    known = sorted(session for session in scene.state.sessions if session > 0)
    return known[choice % len(known)] if choice < 7 and known else 99


def wish(scene: Scene, step: tuple) -> object:
    """Return one wish, more or less meant."""
    deed, a, b, c, chain, parent, words = step
    request, session = scene.number() + 1000, session_of(scene, a)
    leases, reservations = scene.state.leases.values(), scene.state.reservations.values()
    lane, columns = LANES[max(0, b - 4)], rows_of_three(words)
    good = np.full((len(chain) // 32, 3), PAGE_BYTES, np.uint32)
    now_ns = scene.now_ns
    match deed:
        case "reserve":
            asked = columns if c == 7 else good
            handle = 1 if b != 4 else 2
            behind, durable = parent if c > 4 else b"", a > 5
            return ReserveWanted(request, session, handle, lane, behind, chain, asked, durable)
        case "seal":
            session, number = one_of(reservations, session, b)
            asked = columns if c == 7 else good[: 1 + a]
            roots = np.zeros((len(asked), 3), np.uint64)
            first, last, deadline_ns = max(0, c - 4), c % 2 == 0, now_ns + a * NS_PER_S // 4
            return SealWanted(request, session, number, first, asked, roots, 1, last, deadline_ns)
        case "abort":
            return AbortWanted(request, *one_of(reservations, session, b))
        case "lookup":
            return LookupWanted(request, session, 1, (lane, LANES[c % 4]), chain, c > 2)
        case "fetch":
            held = one_of(leases, session, b) if c > 3 else (session, 0)
            return FetchWanted(
                request, held[0], 1, (LANES[a // 4],), chain, 1 + c % 4, 0, b % 4,
                Delivery(b % 2), 0, held[1], now_ns,
            )  # fmt: skip
        case "release":
            corrupt = [c % 2 << 24 | a, *words][: c % 3]
            holder, lease = one_of(leases, session, b)
            return ReleaseWanted(request, holder, lease, np.array(corrupt, np.uint32))
        case "prefetch":
            return PrefetchWanted(request, session, 1, (lane, LANES[c % 4]), chain, 1 + b % 4)
        case "clear" if c > 5:
            return ClearWanted(request, session, 1 if b != 4 else 2, now_ns + a * NS_PER_S // 4)
        case "renew":
            return RenewWanted(request, *one_of(leases, session, b))
    return None


def other(scene: Scene, step: tuple) -> None:
    """Let something else happen."""
    deed, a, b, _, *_ = step
    session, delivering = session_of(scene, a), sorted(scene.state.delivering)
    match deed:
        case "cancel":
            scene.tell(CancelWanted(delivering[b] if b < len(delivering) else b, session))
        case "detach":
            scene.tell(SlabDetached(session, b))
        case "delivered" if delivering:
            scene.tell(DeliveryEnded(delivering[b % len(delivering)], 0, None))
        case "join" if a == 0:
            scene.join(("red", "blue")[b % 2])
        case "end" if b == 0:
            scene.tell(SessionEnded(session))
        case "gone" if b == 1:
            scene.tell(ProcessGone(session))
        case "wait" if b < 4:
            scene.wait(10**8)
        case "jump" if b == 0:
            scene.wait(LIMITS.lease_ttl_ns)


@settings(max_examples=100)
@given(st.integers(0, 1 << 32))
def test_any_wishes_are_answered_once_and_break_nothing(seed: int) -> None:
    rng = random.Random(seed)
    scene = Scene(slabs=5, limits=LIMITS)
    for tenant in ("red", "red", "blue"):
        scene.put(scene.join(tenant), b"".join(DIGESTS[:3]))
    for _ in range(STEPS):
        step = draw(rng)
        asked = wish(scene, step)
        if asked is None:
            other(scene, step)
            continue
        effects = scene.tell(asked)
        answers = [e.request for e in effects if isinstance(e, Answer)]
        begun = any(isinstance(e, Deliver) for e in effects)
        assert answers == [asked.request] * (not begun)
