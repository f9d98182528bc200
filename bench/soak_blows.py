"""What befalls clients and daemon in a soak, and when: drawn from a seed before it begins."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

LONG_LIVED = 2  # Clients that are stopped at most, never replaced: they see every daemon.
# Mean seconds between two of a kind, over all clients.
KILL_S, LEAVE_S, STOP_S = 8.0, 40.0, 15.0
STOPPED_S = (0.2, 12.0)  # Beyond the time of leases and reservations, and of a recall.
# Daemons end in this part of the run; the last one lives through the rest.
ENDS_FROM, ENDS_TO = 0.06, 0.5
MINUTES_BETWEEN_ENDS, ENDS_LEAST = 1.5, 2


class Kind(StrEnum):
    KILL = "client killed"
    LEAVE = "client left"
    STOP = "client stopped"
    RESUME = "client resumed"
    DAEMON_KILL = "daemon killed"
    DAEMON_RESTART = "daemon restarted in order"


@dataclass(frozen=True, slots=True, order=True)
class Blow:
    """`client`: which one, of blows to clients."""

    at_s: float
    kind: Kind
    client: int = 0


def schedule(seed: int, seconds: float, clients: int) -> tuple[Blow, ...]:
    """Return all blows of a run in order."""
    chance = random.Random(seed)
    mortal = range(min(LONG_LIVED, clients - 1), clients)
    blows = [Blow(at, Kind.KILL, chance.choice(mortal)) for at in _times(chance, KILL_S, seconds)]
    blows += [
        Blow(at, Kind.LEAVE, chance.choice(mortal)) for at in _times(chance, LEAVE_S, seconds)
    ]
    for at in _times(chance, STOP_S, seconds):
        client = chance.randrange(clients)
        blows.append(Blow(at, Kind.STOP, client))
        blows.append(Blow(min(at + chance.uniform(*STOPPED_S), seconds), Kind.RESUME, client))
    ends = max(ENDS_LEAST, round(seconds / 60 * (ENDS_TO - ENDS_FROM) / MINUTES_BETWEEN_ENDS))
    step = (ENDS_TO - ENDS_FROM) / ends
    for number in range(ends):
        part = ENDS_FROM + (number + chance.uniform(0.0, 0.8)) * step
        kind = (Kind.DAEMON_KILL, Kind.DAEMON_RESTART)[number % 2]
        blows.append(Blow(part * seconds, kind))
    return tuple(sorted(blows))


def _times(chance: random.Random, mean_s: float, seconds: float) -> Iterator[float]:
    at = chance.expovariate(1 / mean_s)
    while at < seconds:
        yield at
        at += chance.expovariate(1 / mean_s)
