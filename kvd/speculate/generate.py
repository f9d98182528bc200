"""Greedy generation over a prefix that may still be on its way: drafts ahead, commits exactly.

The tokens are those of the verifying routine without drafts, whatever was found, lost or drafted.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from kvd.clock import Clock, MonotonicClock
from kvd.speculate.draft import Drafter
from kvd.speculate.engine import Engine, View
from kvd.speculate.gate import Unready
from kvd.speculate.grid import WINDOW_TOKENS, usable_chunks, window_begin
from kvd.speculate.outcome import Choice, Listener, Options, Outcome
from kvd.speculate.prefix import Prefix
from kvd.speculate.runner import Runner
from kvd.speculate.text import Text

# Runs an action; returns its answer, or the other one with what it raised. An engine's border.
Attempt = Callable[[Callable[[], Any], Any], tuple[Any, Exception | None]]


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt and what is wanted behind it; `begin_ns` is when the caller's clock started."""

    prompt: Sequence[int]
    options: Options
    begin_ns: int
    listener: Listener = Listener()


class Generator:
    """Generates on two views of an engine, one request at a time."""

    def __init__(
        self,
        engine: Engine,
        exact: View,
        draft: View,
        attempt: Attempt,
        clock: Clock | None = None,
    ) -> None:
        self._exact = exact
        self._draft = draft
        self._attempt = attempt
        self._clock = clock or MonotonicClock()
        self._runner = Runner(engine, self._clock)

    def run(self, request: Request, prefix: Prefix | None = None) -> Outcome:
        """Return the committed tokens; a fault of the prefix costs time only and is named."""
        text = Text(request.options, request.listener, self._clock, request.begin_ns)
        drafting = request.options.draft and prefix is not None and prefix.gradual
        upgraded = False
        with self._filling(prefix, self._draft if drafting else None) as filled:
            if drafting:
                drafter = Drafter(self._runner, self._draft, prefix)
                drafter.run(request.prompt, request.options.new_tokens, text.draft_ahead)
                upgraded = drafter.upgraded
            choice, chunks = self._first(request.prompt, prefix)
            text.commit([choice])
        while text.finish is None:
            self._window(request, text)
        return Outcome(
            tokens=tuple(text.tokens),
            finish=text.finish,
            commit_times_ns=tuple(text.commit_times_ns),
            draft_times_ns=tuple(text.draft_times_ns),
            drafts_ahead=tuple(text.ahead),
            found=prefix.found if prefix else (0, 0, 0),
            exact_chunks=chunks,
            missing_chunks=usable_chunks(len(request.prompt)) - chunks,
            delivered_bytes=prefix.delivered_bytes if prefix else 0,
            class_bytes=prefix.class_bytes if prefix else (0, 0, 0),
            upgraded=upgraded,
            counts=text.counts,
            fault=filled.exception() if filled else None,
        )

    @contextlib.contextmanager
    def _filling(self, prefix: Prefix | None, draft: View | None) -> Iterator[Future | None]:
        """Decode the prefix on a thread beside the block; it has ended when the block has.

        Before the block where no thread is to be had: an engine at its limit is not to fail by it.
        """
        if prefix is None:
            yield None
            return
        with ThreadPoolExecutor(1, "kvd-fill") as pool:
            try:
                yield self._begun(pool, prefix, draft)
            finally:
                prefix.release()

    def _begun(self, pool: ThreadPoolExecutor, prefix: Prefix, draft: View | None) -> Future:
        try:
            return pool.submit(prefix.fill, self._exact, draft)
        except RuntimeError:  # What a thread that cannot be started raises.
            done: Future = Future()
        _, fault = self._attempt(lambda: prefix.fill(self._exact, draft), None)
        if fault is None:
            done.set_result(None)
        else:
            done.set_exception(fault)
        return done

    def _first(self, prompt: Sequence[int], prefix: Prefix | None) -> tuple[Choice, int]:
        """Run what the exact prefix lacks, again with less when it proves shorter.

        Return the first token's choice and the number of stored chunks it stands on.
        """
        chunks = prefix.exact_chunks if prefix else 0
        while prefix and chunks:
            try:
                return self._runner.prompt(self._exact, prompt, chunks, prefix.exact), chunks
            except Unready as fault:
                assert fault.chunks < chunks
                chunks = fault.chunks
        if prefix:
            prefix.stop()  # Without a gate to pass, nothing else may write to the view.
        return self._runner.prompt(self._exact, prompt, 0, None), 0

    def _window(self, request: Request, text: Text) -> None:
        """Commit the choices of one window run, behind drafts when there are or when they pay."""
        if not text.drafts and request.options.draft and self._runner.pace.stepping_pays():
            known = len(text.tokens) - window_begin(len(text.tokens) - 1)
            count = min(WINDOW_TOKENS - known, text.left - 1)
            text.draft(self._runner.steps(self._exact, text.tokens[-1], count))
        prompt_tokens = len(request.prompt)
        text.commit(self._runner.window(self._exact, prompt_tokens, text.tokens, text.drafts))
