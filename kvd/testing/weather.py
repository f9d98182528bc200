"""What goes wrong with the simulated disks, and when: chance decides, from the world's seed.

A directory goes bad for a while and comes back; so does the catalog. Other programs take space of
the devices, and return it.
"""

from dataclasses import dataclass
from random import Random

from kvd.clock import NS_PER_MS
from kvd.errors import Fault, FaultKind

SPELLS_MS = (150, 700, 4000)
STALLS_MS = (400, 2500)
CATALOG = -1  # In place of a directory's number.


@dataclass(frozen=True, slots=True)
class Chances:
    """Of what is asked of a disk: that it begins a bad spell, fails alone, or hangs."""

    spell: float = 0.01
    write: float = 0.01
    read: float = 0.03
    flip: float = 0.05
    rot: float = 0.03
    slow: float = 0.1
    hang: float = 0.08
    commit: float = 0.06
    stall: float = 0.01
    # Said to be well done: half a read, a read of another place, a write to another place.
    short: float = 0.01
    misread: float = 0.01
    miswrite: float = 0.01


CALM = Chances(*12 * (0,))
ROUGH = Chances(0.03, 0.03, 0.1, 0.15, 0.08, 0.3, 0.2, 0.15, 0.02, 0.04, 0.04, 0.04)
CHANCES = (CALM, Chances(), Chances(), ROUGH)


class Weather:
    def __init__(self, rng: Random, devices: tuple[int, ...], device_bytes: int) -> None:
        self._rng, self.devices, self._device_bytes = rng, devices, device_bytes
        self.chances = rng.choice(CHANCES)
        self.eaten = {device: 0 for device in devices}
        self._spells: dict[int, tuple[int, Fault]] = {}

    def calm_down(self) -> None:
        """Have nothing go wrong any more, and other programs give back what they took."""
        self.chances = CALM
        self._spells.clear()
        self.eaten = dict.fromkeys(self.eaten, 0)

    def dice(self, chance: float) -> bool:
        return self._rng.random() < chance

    def health(self, directory: int, now_ns: int) -> Fault | None:
        """Return why everything fails in a directory now, or None."""
        until_ns, fault = self._spells.get(directory, (0, None))
        return fault if now_ns < until_ns else None

    def trouble(self, directory: int, now_ns: int, chance: float) -> Fault | None:
        """Return why a change fails now, if it does; a bad spell may begin with it."""
        fault = self.health(directory, now_ns)
        if fault is not None:
            return fault
        if self.dice(self.chances.spell):
            kind = self._rng.choice((FaultKind.IO, FaultKind.NO_SPACE))
            until_ns = now_ns + self._rng.choice(SPELLS_MS) * NS_PER_MS
            self._spells[directory] = until_ns, Fault(kind, f"directory {directory} is bad")
            return self._spells[directory][1]
        if self.dice(chance):
            return Fault(self._rng.choice((FaultKind.IO, FaultKind.NO_SPACE)), "once")
        return None

    def stall_ns(self) -> int:
        """Return how long a change hangs, if it does."""
        hangs = self.dice(self.chances.stall)
        return self._rng.choice(STALLS_MS) * NS_PER_MS if hangs else 0

    def eat(self) -> None:
        """Have other programs use more or less of one device."""
        device = self._rng.choice(self.devices)
        self.eaten[device] = int(self._rng.choice((0, 0.4, 0.8, 1)) * self._device_bytes)

    def free_bytes(self, device: int, used_bytes: int) -> int:
        return max(0, self._device_bytes - self.eaten[device] - used_bytes)
