"""Drafts made ahead: from anchors, then from 8 planes, while the exact cache is on its way.

All KV made here is tainted (I13) and stays in the draft view, of which nothing is ever stored.
"""

from collections.abc import Callable, Sequence

from kvd.speculate.engine import View
from kvd.speculate.gate import Unready
from kvd.speculate.grid import pieces
from kvd.speculate.prefix import Prefix
from kvd.speculate.runner import Runner

DRAFTS_AHEAD_MAX = 64


class Drafter:
    """Drafts the tokens behind a prompt on one draft view, as long as time is left for it."""

    def __init__(self, runner: Runner, view: View, prefix: Prefix) -> None:
        self._runner = runner
        self._view = view
        self._prefix = prefix
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
            going = more and self._upgrade_when_due()
            token = self._runner.step(self._view, token) if going else None
        return drafts

    def _first(self, prompt: Sequence[int]) -> int | None:
        """Draft the first token by the prompt's pieces that the anchors lack, the tail at least."""
        chunks, gate = self._prefix.anchor_chunks, self._prefix.anchors
        try:
            gate.wait(0, chunks)  # From here on there is a rate to judge by.
            needed_ns = len(pieces(len(prompt), chunks)) * self._runner.pace.tail_ns
            if self._runner.clock.now_ns() + needed_ns > self._prefix.last_byte_ns():
                return None
            return self._runner.prompt(self._view, prompt, chunks, gate).token
        except Unready:
            return None  # Damaged anchors: nothing worth drafting from.

    def _step_ns(self) -> int:
        """Return what the next step may take; before any was seen, a whole tail's time."""
        return self._runner.pace.step_ns or self._runner.pace.tail_ns

    def _fits(self, needed_ns: int) -> bool:
        """Return whether so much can end before the exact tail should start, hence before the last
        byte: early enough to end with it, but not before its first layer is there.
        """
        tail_begin_ns = self._prefix.last_byte_ns() - self._runner.pace.tail_ns
        start_ns = max(tail_begin_ns, self._prefix.exact_begin_ns())
        return self._runner.clock.now_ns() + needed_ns <= start_ns

    def _upgrade_when_due(self) -> bool:
        """Go over to 8 planes when they are in and two steps would profit; False: view spoilt."""
        if self.upgraded or not self._prefix.residual_complete():
            return True
        if not self._fits(2 * self._prefix.decode_anchors_ns + 2 * self._step_ns()):
            return True
        self.upgraded = True
        return self._prefix.upgrade(self._view)
