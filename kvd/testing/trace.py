"""What a core was told, and when: enough to live its life again elsewhere (I12)."""

import hashlib
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache

import numpy as np

from kvd.core.effects import Effect
from kvd.core.events import Event
from kvd.core.index import Index
from kvd.core.state import CoreConfig, State, new_state
from kvd.core.step import step


@dataclass(slots=True)
class Trace:
    """Events of one life with their times in ns, and what came of each, as a digest."""

    config: CoreConfig
    epoch: int
    events: list[tuple[Event, int]] = field(default_factory=list)
    effects: list[str] = field(default_factory=list)

    def step(self, state: State, event: Event, now_ns: int) -> list[Effect]:
        """Take a step, and note it; in the place of the core's own."""
        made = step(state, event, now_ns)
        self.events.append((event, now_ns))
        self.effects.append(digest_of(made))
        return made

    def replay(self) -> State:
        """Return the state after the same events, told to a core that has just begun.

        Raise AssertionError, with the number of the event, where anything else comes of one.
        """
        state = new_state(self.config, self.epoch)
        for number, (event, now_ns) in enumerate(self.events):
            made = digest_of(step(state, event, now_ns))
            assert made == self.effects[number], f"event {number}, {type(event).__name__}"
        return state


def digest_of(value: object) -> str:
    """Return a digest of plain data, whatever process made it."""
    log = hashlib.blake2b(digest_size=16)
    feed(log, value)
    return log.hexdigest()


def index_digest(index: Index) -> str:
    """Return a digest of what is present where: every column, every tree, in their order."""
    trees = [(t.digest, t.tenant, t.lane, sorted(t.rows.items())) for t in index.trees]
    columns = [getattr(index, name) for name in index.__slots__ if name not in _NOT_PLAIN]
    return digest_of([trees, columns, index.frontier.members, index.copies.members])


_NOT_PLAIN = ("trees", "trees_by_key", "frontier", "copies")


def feed(log: "hashlib._Hash", value: object) -> None:
    """Add a value to the log, in a form that is the same in every process."""
    kind = type(value)
    if kind is np.ndarray:
        log.update(value.tobytes())
    elif kind is tuple or kind is list:
        for item in value:
            feed(log, item)
    elif names := _names_of(kind):
        log.update(kind.__name__.encode())
        for name in names:
            feed(log, getattr(value, name))
    else:
        log.update(repr(value).encode())


@cache
def _names_of(kind: type) -> tuple[str, ...]:
    """Return the fields of a dataclass, and nothing of another type."""
    return tuple(each.name for each in fields(kind)) if is_dataclass(kind) else ()
