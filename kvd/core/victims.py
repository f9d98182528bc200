"""Which segment is to be cleared: the one of least value, if clearing it wins enough room.

What is held in it, or of a tenant within its quota, would only be written again somewhere else.
"""

import numpy as np

from kvd.core.admission import sheltered
from kvd.core.drops import held_rows
from kvd.core.segments import find_ssd, in_use, usable
from kvd.core.ssd import Segment
from kvd.core.state import State
from kvd.core.transitions import SegmentLife
from kvd.limits import PAGE_BYTES
from kvd.policy.value import CLASS_GAIN, heat_at

VICTIMS_SAMPLED = 8
WON_SHARE = 0.25  # Of a segment, at least: so three times what is won is written again at most.


def choose_victim(state: State) -> Segment | None:
    """Return the segment to clear, or None: nothing is worth it now, or can be cleared at all.

    `ssd.stuck` says whether waiting for readers cannot help.
    """
    ssd = find_ssd(state)
    ssd.stuck = False
    idle = [
        s for s in ssd.segments.values()
        if s.life == SegmentLife.FULL and not (s.writing or s.held)
        and usable(ssd, ssd.directories[s.directory]) and not ssd.is_read(s.id)
    ]  # fmt: skip
    choice = _Choice(state)
    sampled = idle
    if len(idle) > VICTIMS_SAMPLED:
        chosen = state.rng.choice(len(idle), VICTIMS_SAMPLED, replace=False)
        sampled = [idle[at] for at in sorted(chosen.tolist())]
    for segment in sorted(sampled, key=lambda s: (choice.value(s), s.id)):
        if choice.won_bytes(segment) >= choice.least_bytes:
            return segment
    if len(sampled) < len(idle):
        best = max(idle, key=lambda s: (choice.won_bytes(s), -s.id))
        if choice.won_bytes(best) >= choice.least_bytes:
            return best
    # What is held by replaced rows ends when they are written, with the last segment if need be.
    ssd.stuck = not idle or any(s.held for s in ssd.segments.values())
    if idle:
        ssd.choose_at_ns = state.now_ns + state.config.limits.tick_ns
    return None


class _Choice:
    """What each segment is worth, and what clearing it would win, as things are in this step."""

    def __init__(self, state: State) -> None:
        self._state, ssd = state, find_ssd(state)
        self._shelter = sheltered(state)
        self._held: dict[int, np.ndarray] = {}  # By class.
        self._room_bytes = ssd.config.segment_bytes - PAGE_BYTES
        # Less than that would be moved from one segment to the next, for as long as it is held.
        # A segment that is too much goes whatever it costs: that ends when there is none left.
        bounded = in_use(ssd) <= ssd.segments_max and ssd.map_full is None
        self.least_bytes = int(WON_SHARE * self._room_bytes) if bounded else 0

    def value(self, segment: Segment) -> float:
        """Return what would be lost with what may be dropped, for each byte of room won."""
        rows = live_rows(self._state, segment)
        if self._shelter is None:
            return _heat_value(self._state, segment, rows)
        lost = rows[~self._sheltered(rows)]
        kept_bytes = bytes_of(self._state, rows, segment) - bytes_of(self._state, lost, segment)
        return _heat_value(self._state, segment, lost) / max(1, self._room_bytes - kept_bytes)

    def won_bytes(self, segment: Segment) -> int:
        rows, plane_class = live_rows(self._state, segment), segment.plane_class
        if plane_class not in self._held:
            self._held[plane_class] = held_rows(self._state, plane_class)
        stays = self._held[plane_class][rows]
        if self._shelter is not None:
            stays |= self._sheltered(rows)
        return self._room_bytes - bytes_of(self._state, rows[stays], segment)

    def _sheltered(self, rows: np.ndarray) -> np.ndarray:
        return self._shelter[self._state.index.tree_id[rows]]


def _heat_value(state: State, segment: Segment, rows: np.ndarray) -> float:
    heats = state.index.heat[rows] - heat_at(state.now_ns)
    return float(np.exp2(np.clip(heats, -60, 60)).sum() * CLASS_GAIN[segment.plane_class])


def live_rows(state: State, segment: Segment) -> np.ndarray:
    """Return i64: the rows whose strip lies in the segment, in the order written."""
    rows = segment.all_rows()
    rows = rows[state.index.segment[rows, segment.plane_class] == segment.id]
    # A row's number may have been used again: each only once.
    _, first = np.unique(rows, return_index=True)
    return rows[np.sort(first)]


def bytes_of(state: State, rows: np.ndarray, segment: Segment) -> int:
    return int(state.index.size[rows, segment.plane_class].sum(dtype=np.int64))
