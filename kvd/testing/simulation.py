"""The door of the simulated world: one seed in, a judged life out."""

from kvd.testing.lives import live
from kvd.testing.settling import settle
from kvd.testing.situations import TENANTS
from kvd.testing.world import Result, World

EVENTS = 300  # That the core takes before everybody stops; settling adds some.
EVENTS_TIERED = 500


def run(seed: int, events: int = 0, tiered: bool | None = None) -> Result:
    """Live through `events` and settle; raise AssertionError that names invariant and seed.

    `tiered` None: the seed says whether there is an ssd tier.
    """
    world = World(seed, tiered)
    try:
        live(world, events or (EVENTS if world.tier is None else EVENTS_TIERED))
        settle(world, TENANTS)
    except AssertionError as error:
        when = f"seed {seed}, event {world.steps}, {world.now_ns / 1e9:.3f} s"
        error.add_note(f"{when}; replay: python -m tests sim --seed {seed}")
        raise
    return world.result()
