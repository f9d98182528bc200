"""The door of the simulated world: one seed in, a judged life out."""

from kvd.core.invariants import check
from kvd.testing.lives import live
from kvd.testing.settling import settle
from kvd.testing.situations import TENANTS
from kvd.testing.world import Result, World

# What a core that is wrong may raise: its daemon would end by any of these.
FAILURES = (
    AssertionError, ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError,
    ValueError,
)  # fmt: skip
EVENTS = 500  # That the core takes before everybody stops; settling adds some.


def run(seed: int, events: int = EVENTS, tiered: bool | None = None) -> Result:
    """Live through `events` and settle; raise one of FAILURES, noted with the seed.

    `tiered` None: the seed says whether there is an ssd tier.
    """
    world = World(seed, tiered)
    try:
        live(world, events)
        settle(world, TENANTS)
        check(world.state)  # By one who has seen nothing before.
    except FAILURES as error:
        when = f"seed {seed}, event {world.steps}, {world.now_ns / 1e9:.3f} s"
        error.add_note(f"{when}; replay: python -m tests sim --seed {seed}")
        raise
    return world.result()
