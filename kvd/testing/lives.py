"""The lives of one simulated daemon on the same media: how each begins, and how it ends.

It crashes and leaves what a power cut leaves; or it drains, and ends in good order, which may
leave dram for the next one.
"""

from typing import TYPE_CHECKING

from kvd.clock import NS_PER_MS
from kvd.core.disk_events import DayBegan
from kvd.core.dram import LeftDram
from kvd.core.events import DrainStarted, Started
from kvd.core.save import is_saved
from kvd.testing.conditions import draw_smaller
from kvd.testing.life import populate, tick
from kvd.testing.succession import leave, take_over

if TYPE_CHECKING:
    from kvd.testing.world import World

RESTARTS = (0, 1, 2, 3, 4)
RESTARTS_UNTIERED = (0, 0, 0, 1)  # Without dram nothing would be left to look at.
UNLINKED_CRASHES = 0.1  # At each step while a file is gone that a crash may bring back: seldom so.
WAIT_STEPS = 40  # For something to be under way that a crash interrupts.
DRAIN_LOOKS = 8  # While it drains; then it ends, whatever waits.


def live(world: "World", events: int) -> None:
    """Let everybody act until the core has taken so many events, restarts included."""
    restarts = world.rng.choice(RESTARTS) if world.tier else 0
    due = sorted(world.rng.sample(range(30, events), restarts))
    if not world.tier:
        due = sorted(world.fate.sample(range(60, events), world.fate.choice(RESTARTS_UNTIERED)))
    start(world)
    while world.steps < events:
        if due and _is_time(world, due[0]):
            due.pop(0)
            restart(world)
        elif world.media.unlinked and world.fate.random() < UNLINKED_CRASHES:
            restart(world)
        world.advance()
    world.stopped = True


def _is_time(world: "World", due: int) -> bool:
    """Return whether to restart; mostly something rare is waited for that it interrupts."""
    if world.steps < due or world.steps > due + WAIT_STEPS or world.tier is None:
        return world.steps >= due
    match due % 3:
        case 1:
            return bool(world.tier.making)
        case 2:
            return bool(world.tier.reading)
    return True


def start(world: "World", left: LeftDram | None = None) -> None:
    """Begin, as the daemon does: what the catalog holds, what dram holds, then everything else."""
    if world.tier is not None:
        world.ledger.written.clear()
        world.demands.restart(world.day)
        world.tell(world.media.recover(world.rng))
        world.ledger.check_recovered(world.state, world.demands.commit)
        world.tell(DayBegan(world.day))
    if left is not None:
        take_over(world, left)
    world.tell(Started())
    tick(world)
    populate(world)
    world.operator.start()
    if world.rng.random() < (0.15 if world.tier is None else 0.04):
        world.after(world.rng.randint(2000, 6000) * NS_PER_MS, lambda: drain(world))
    if world.tier is not None:
        _change_day(world)
        _change_space(world)


def restart(world: "World") -> None:
    left = None
    if world.tier is None or world.rng.random() < 0.3:
        _end_well(world)
        left = leave(world)
    else:
        _crash(world)
    for client in world.clients.values():
        client.vanish()
    given = max(world.media.catalog.generation, left.generation + 1 if left else 0)
    world.memory.restart(given, [slab.slab for slab in left.slabs] if left else ())
    if world.tier is not None:
        _lose_segment(world)
        _shrink(world)
        for fill in world.memory.fills:
            fill.reported = False  # Its drop may not have become durable.
    world.starts += 1
    world.begin(left)
    start(world, left)


def _shrink(world: "World") -> None:
    """Have fewer segments configured, now and then."""
    smaller = draw_smaller(world.rng, world.ssd)
    if smaller != world.ssd:
        world.saw("a restart with fewer segments")
    world.ssd = smaller


def drain(world: "World") -> None:
    if not world.state.draining and not world.stopped:
        world.saw("draining")
        world.tell(DrainStarted())


def _crash(world: "World") -> None:
    tier, ledger = world.tier, world.ledger
    world.saw("a crash")
    if ledger.written:
        world.saw("a crash between write and commit")
    if world.demands.commit is not None:
        world.saw("a crash during a commit")
    if tier.writing:
        world.saw("a crash during a write")
    if tier.reading:
        world.saw("a crash during a read")
    if tier.making:
        world.saw("a crash while a segment is made")
    tier.crash()


def _end_well(world: "World") -> None:
    """Drain; the daemon gives what is under way a bounded time."""
    drain(world)
    for _ in range(DRAIN_LOOKS):
        if is_saved(world.state) and not world.deliveries:
            world.saw("an end in good order")
            return
        world.advance_until(world.now_ns + world.limits.tick_ns)
    if world.tier is not None:
        world.tier.crash()


def begin_day(world: "World", later: int = 1) -> None:
    """Have the date be so many days later, or earlier, as a clock that is set says."""
    world.day = max(1, world.day + later)  # No clock is set before 1970.
    world.demands.begin_day(world.day)
    world.tell(DayBegan(world.day))


def _change_day(world: "World") -> None:
    def begin() -> None:
        if world.stopped:
            return
        # Where a day has a bound, somebody may want to pass it.
        bounded = bool(world.ssd.daily_write_bytes)
        odds = (30, 40, 25, 5) if bounded else (70, 15, 10, 5)
        later = world.rng.choices((1, -1, -300, 300), odds)[0]
        if later < 0:
            world.saw("the date set back")
        if later > 1:
            world.saw("the date far off")
        begin_day(world, later)
        _change_day(world)

    world.after(world.rng.choice((500, 2000, 9000)) * NS_PER_MS, begin)


def _lose_segment(world: "World") -> None:
    """Have a file be gone that the catalog knows, and with it what lies in it."""
    media = world.media
    if not media.segments or world.rng.random() > 0.1:
        return
    world.saw("a segment lost")
    key = world.rng.choice(sorted(media.segments))
    for row_key, _, _ in list(media.catalog.places_in(key)):
        world.ledger.excuse(row_key)
    del media.segments[key]


def _change_space(world: "World") -> None:
    def eat() -> None:
        if not world.stopped:
            world.conditions.weather.eat()
            _change_space(world)

    world.after(world.rng.choice((1000, 6000)) * NS_PER_MS, eat)
