"""Drafts made ahead: from anchors, then from 8 planes, while the exact cache is on its way.

All KV made here is tainted (I13) and stays in the draft view, of which nothing is ever stored.
"""

from collections.abc import Callable, Sequence

from kvd.clock import Clock
from kvd.speculate.engine import Engine, View
from kvd.speculate.gate import Unready
from kvd.speculate.grid import pieces
from kvd.speculate.pace import Pace
from kvd.speculate.prefix import Prefix
from kvd.speculate.verify import choose, run_prompt

DRAFTS_AHEAD_MAX = 64


class Drafter:
    """Drafts the tokens behind a prompt on one draft view, as long as time is left for it."""

    def __init__(
        self, engine: Engine, view: View, prefix: Prefix, pace: Pace, clock: Clock
    ) -> None:
        self._engine = engine
        self._view = view
        self._prefix = prefix
        self._pace = pace
        self._clock = clock
        self.upgraded = False

    def run(
        self, prompt: Sequence[int], tokens_max: int, drafted: Callable[[int], None]
    ) -> list[int]:
        """Draft up to tokens_max tokens, telling each; fewer when the time or the cache is up."""
        if not self._prefix.anchor_chunks:
            return []
        token = self._first(prompt)
        drafts: list[int] = []
        while token is not None:
            drafted(token)
            drafts.append(token)
            more = len(drafts) < min(tokens_max, DRAFTS_AHEAD_MAX) and self._fits(self._step_ns())
            token = self._step(token) if more and self._upgrade_when_due() else None
        return drafts

    def _first(self, prompt: Sequence[int]) -> int | None:
        """Draft the first token by the prompt's pieces that the anchors lack, the tail at least."""
        chunks, gate = self._prefix.anchor_chunks, self._prefix.anchors
        try:
            gate.wait(0, chunks)  # From here on there is a rate to judge by.
            missing = len(pieces(len(prompt), chunks))
            end_ns = self._clock.now_ns() + missing * self._pace.tail_ns
            if end_ns > self._prefix.last_byte_ns():
                return None
            ready = gate.waiter(chunks)
            return run_prompt(self._engine, self._view, prompt, chunks, ready).token
        except Unready:
            return None  # Damaged anchors: nothing worth drafting from.

    def _step(self, token: int) -> int:
        begin_ns = self._clock.now_ns()
        choice = choose(self._engine.forward(self._view, (token,), self._view.length, (0,))[0])
        self._pace.step_ns = self._clock.now_ns() - begin_ns
        return choice.token

    def _step_ns(self) -> int:
        """Return what the next step may take; before any was seen, a whole tail's time."""
        return self._pace.step_ns or self._pace.tail_ns

    def _fits(self, step_ns: int) -> bool:
        """Return whether a step can end before the exact tail has to start.

        The exact tail is run layer by layer behind the last class, so as to end with the last
        byte: a draft step that takes its time, or outlasts the last byte, delays what is committed.
        """
        start_ns = self._prefix.last_byte_ns() - self._pace.tail_ns
        return self._clock.now_ns() + step_ns <= start_ns

    def _upgrade_when_due(self) -> bool:
        """Go over to 8 planes when they are in and two steps would profit; False: view spoilt."""
        if self.upgraded or not self._prefix.residual_complete():
            return True
        if not self._fits(2 * self._prefix.decode_anchors_ns + 2 * self._step_ns()):
            return True
        self.upgraded = True
        return self._prefix.upgrade(self._view)


def draft_in_window(
    engine: Engine, view: View, last: int, count: int, pace: Pace, clock: Clock
) -> list[int]:
    """Draft `count` tokens behind the committed token `last` by one-token steps on the exact view.

    They are written behind the view's length, which stays: the verifying window starts before them
    and rewrites them (I13).
    """
    length, drafts = view.length, []
    for _ in range(count):
        begin_ns = clock.now_ns()
        logits = engine.forward(view, (drafts[-1] if drafts else last,), view.length, (0,))
        drafts.append(choose(logits[0]).token)
        pace.step_ns = clock.now_ns() - begin_ns
    view.truncate(length)
    return drafts
