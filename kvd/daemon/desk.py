"""What an operator reads of the daemon, and how he has it end. Everything on the loop's thread.

Reads the core's state and changes nothing: what changes it is a wish like any other.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from kvd.clock import Clock
from kvd.core import census
from kvd.core.explain import LaneReport, explain_chain
from kvd.core.index import NO_ROW, Tree
from kvd.core.operator_events import OPERATOR
from kvd.core.save import is_saved
from kvd.core.state import State
from kvd.errors import ErrorKind, KvdError
from kvd.types import Lane

if TYPE_CHECKING:
    from kvd.daemon.inbox import Link

Answered = TypeVar("Answered")

_SLAB_FAILED = "slabs could not be made: lower dram (KVD_DRAM), or free memory; the log says why"
_TIER_FAULT = "it is tried again by itself; see the drive, and `kvd doctor`"
_SHRUNK = "other programs fill the file system: free space on it, or lower --ssd (KVD_SSD)"


@dataclass(frozen=True, slots=True)
class Progress:
    """How far draining is."""

    sessions: int
    requests: int
    saved: bool
    left_ns: int


class Desk:
    def __init__(
        self, state: State, clock: Clock, links: dict[int, "Link"], paths: tuple[str, ...]
    ) -> None:
        """`paths` are of data directories, in the core's order."""
        self._state, self._clock, self._links, self.paths = state, clock, links, paths
        self._started_ns = clock.now_ns()
        self._stopping = False
        self.drain_end_ns: int | None = None  # Set when draining begins, whoever asked for it.
        self.on_stop: Callable[[], None] = _nothing  # Set by who can end the process.

    def admit(self, link: "Link") -> None:
        """Have answers to an operator's wishes go to a link."""
        self._links[OPERATOR] = link

    def age_ns(self) -> int:
        return self._clock.now_ns() - self._started_ns

    def ago_ns(self, at_ns: int) -> int:
        return max(0, self._clock.now_ns() - at_ns)

    def read(self, question: Callable[[State], Answered]) -> Answered:
        """Return what a question of `kvd.core.census` finds."""
        return question(self._state)

    def heard_ns(self) -> int:
        """Return how long the story of chunks goes back."""
        forgotten_ns = self._state.story.forgotten_ns
        return self.age_ns() if forgotten_ns < 0 else self.ago_ns(forgotten_ns)

    def is_forgetful(self) -> bool:
        return self._state.story.forgotten_ns >= 0

    def explain(
        self, keyspace: bytes, chain: bytes, lanes: tuple[Lane, ...]
    ) -> tuple[str, list[LaneReport]]:
        """Return the tenant, and a report for each lane; raise INVALID for an unknown keyspace."""
        trees = self._trees(keyspace)
        if lanes:
            trees = [self._tree_of(trees[0], lane) for lane in lanes]
        return trees[0].tenant, [explain_chain(self._state, tree, chain) for tree in trees]

    def _trees(self, keyspace: bytes) -> list[Tree]:
        state = self._state
        known = [tree for tree in state.index.trees if tree.digest == keyspace]
        if known:
            return known
        # Nothing was ever put in it, but somebody may have asked.
        if keyspace in (found := census.registered(state)):
            tenant, fields = found[keyspace]
            return [Tree(NO_ROW, keyspace, tenant, Lane(), None, keyspace=fields)]  # type: ignore[arg-type]
        what = f"keyspace {keyspace.hex()[:16] or '(none)'} is not known; see `kvd-admin keyspaces`"
        raise KvdError(ErrorKind.INVALID, what)

    def _tree_of(self, like: Tree, lane: Lane) -> Tree:
        known = self._state.index.trees_by_key.get((like.digest, lane))
        return known or Tree(
            NO_ROW, like.digest, like.tenant, lane, like.grid, keyspace=like.keyspace
        )

    def problems(self) -> Iterator[str]:
        """Yield what an operator should look at, each with a remedy."""
        state = self._state
        if state.retry_touch_ns > state.now_ns:
            there = f"{state.capacity_bytes} of {state.config.dram_bytes} bytes"
            yield f"dram has {there}: {_SLAB_FAILED}"
        ssd = state.ssd
        if ssd is None:
            return
        if ssd.fault is not None:
            yield f"nothing is written to ssd: {ssd.fault.message}; {_TIER_FAULT}"
        for directory in ssd.directories:
            if directory.fault is not None:
                fault = directory.fault.message
                yield f"{self.paths[directory.number]} is degraded: {fault}; {_TIER_FAULT}"
        if ssd.segments_max < ssd.config.segments_max:
            most = ssd.config.segments_max
            yield f"ssd uses {ssd.segments_max} of {most} segments: {_SHRUNK}"

    # ---- the end ----

    def stop(self) -> None:
        """Have the daemon drain and end, as by SIGTERM; more than once is once."""
        if not self._stopping:
            self._stopping = True
            self.on_stop()

    def progress(self) -> Progress:
        state = self._state
        requests = sum(len(session.requests) for session in state.sessions.values())
        left_ns = state.config.limits.drain_ns
        if self.drain_end_ns is not None:
            left_ns = max(0, self.drain_end_ns - self._clock.now_ns())
        return Progress(census.summarize(state).sessions, requests, is_saved(state), left_ns)


def _nothing() -> None:
    pass
