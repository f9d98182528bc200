"""The text being generated: committed tokens, open drafts behind them, what a listener hears.

A token is a draft until the verifying routine has chosen it; only then it is committed.
"""

from collections.abc import Sequence

from kvd.clock import Clock
from kvd.speculate.outcome import (
    NEAR_TIE_LOGITS,
    Choice,
    Counts,
    Finish,
    Listener,
    Options,
)


class Text:
    """Takes drafts and choices in order; tells the listener; knows when the text is finished."""

    def __init__(self, options: Options, listener: Listener, clock: Clock, begin_ns: int) -> None:
        self.tokens: list[int] = []
        self.drafts: list[int] = []  # Open ones: of the indices behind `tokens`.
        self.ahead: list[int] = []
        self.commit_times_ns: list[int] = []
        self.draft_times_ns: list[int] = []
        self.finish: Finish | None = None
        self.counts = Counts()
        self._options = options
        self._listener = listener
        self._clock = clock
        self._begin_ns = begin_ns
        self._ahead_end = 0  # Drafts before this index were made ahead and still stand.

    @property
    def left(self) -> int:
        """Return how many tokens may still be committed."""
        return self._options.new_tokens - len(self.tokens)

    def draft_ahead(self, token: int) -> None:
        """Add a draft made before anything was committed."""
        assert not self.tokens
        self.ahead.append(token)
        self.draft_times_ns.append(self._elapsed_ns())
        self._ahead_end += 1
        self.counts.drafted_ahead += 1
        self._open(token)

    def draft(self, tokens: Sequence[int]) -> None:
        """Add drafts made behind the committed tokens."""
        assert self.tokens and not self.drafts
        self.counts.drafted += len(tokens)
        for token in tokens:
            self._open(token)

    def commit(self, choices: Sequence[Choice]) -> None:
        """Commit choices up to the end of the text; void the drafts that they contradict."""
        assert choices and self.finish is None
        for choice in choices:
            self._settle_draft(choice.token)
            index = len(self.tokens)
            self.tokens.append(choice.token)
            self.commit_times_ns.append(self._elapsed_ns())
            self.counts.near_ties += choice.margin < NEAR_TIE_LOGITS
            if self._listener.committed:
                self._listener.committed(index, choice.token)
            if choice.token in self._options.stop_tokens:
                self.finish = Finish.STOP
            elif not self.left:
                self.finish = Finish.LENGTH
            if self.finish:
                self._void()
                return

    def _open(self, token: int) -> None:
        index = len(self.tokens) + len(self.drafts)
        self.drafts.append(token)
        if self._listener.drafted:
            self._listener.drafted(index, token)

    def _settle_draft(self, token: int) -> None:
        if not self.drafts:
            return
        if self.drafts[0] != token:
            self._void()
        elif len(self.tokens) < self._ahead_end:
            self.counts.accepted_ahead += 1
            del self.drafts[0]
        else:
            self.counts.accepted += 1
            del self.drafts[0]

    def _void(self) -> None:
        if self.drafts and self._listener.retracted:
            self._listener.retracted(len(self.tokens))
        self.drafts.clear()
        self._ahead_end = 0

    def _elapsed_ns(self) -> int:
        return self._clock.now_ns() - self._begin_ns
