"""A process of the simulated world that is stopped for a while, and goes on unawares."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from kvd.clock import NS_PER_MS

if TYPE_CHECKING:
    from kvd.testing.world import World

PAUSES_MS = (800, 4000, 20_000, 180_000)


class Pacer:
    """When one process acts: not while it is stopped, and then in the order in which it would."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._stopped_until_ns = 0

    def stop(self) -> None:
        """Have it do nothing and hear nothing for a while, as after SIGSTOP."""
        duration_ms = self._world.rng.choice(PAUSES_MS)
        self._stopped_until_ns = self._world.now_ns + duration_ms * NS_PER_MS

    def after(self, delay_ns: int, action: Callable[[], object]) -> None:
        world = self._world

        def fire() -> None:
            left_ns = self._stopped_until_ns - world.now_ns
            if left_ns <= 0:
                action()
                return
            if not world.stopped:
                world.saw("a client stopped and resumed")
            world.after(left_ns, fire)

        world.after(delay_ns, fire)
