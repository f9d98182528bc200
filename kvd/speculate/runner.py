"""The three kinds of forwards of a generation, timed: prompt pieces, one-token steps, windows."""

from collections.abc import Sequence

from kvd.clock import Clock
from kvd.speculate.engine import Batch, Engine, View
from kvd.speculate.gate import Gate
from kvd.speculate.grid import pieces
from kvd.speculate.outcome import Choice
from kvd.speculate.pace import Pace
from kvd.speculate.verify import choose, run_prompt, run_window


class Runner:
    """Runs forwards on an engine and keeps its pace."""

    def __init__(self, engine: Engine, clock: Clock) -> None:
        self.pace = Pace()
        self.clock = clock
        self._engine = engine

    def prompt(self, view: View, prompt: Sequence[int], chunks: int, gate: Gate | None) -> Choice:
        """Run the prompt behind `chunks` chunks, each layer once its gate opens; raise Unready."""
        begin_ns, waited_ns = self.clock.now_ns(), gate.waited_ns if gate else 0
        ready = gate.waiter(chunks) if gate else None
        choice = run_prompt(self._engine, view, prompt, chunks, ready)
        waited_ns = (gate.waited_ns if gate else 0) - waited_ns
        forwards = len(pieces(len(prompt), chunks))
        self.pace.tail_ns = (self.clock.now_ns() - begin_ns - waited_ns) // forwards
        return choice

    def step(self, view: View, token: int) -> int:
        """Run one token behind the view's end; return the draft that follows it."""
        begin_ns = self.clock.now_ns()
        logits = self._engine.forward(view, Batch((token,), view.length, 1, (0,)))
        choice = choose(logits[0])
        self.pace.step_ns = self.clock.now_ns() - begin_ns
        return choice.token

    def steps(self, view: View, last: int, count: int) -> list[int]:
        """Draft `count` tokens behind the committed token `last`, on the exact view itself.

        Their rows lie behind the view's length, which stays: the verifying window starts before
        them and rewrites them (I13).
        """
        length, drafts = view.length, []
        for _ in range(count):
            drafts.append(self.step(view, drafts[-1] if drafts else last))
        view.truncate(length)
        return drafts

    def window(
        self, view: View, prompt_tokens: int, committed: Sequence[int], drafts: Sequence[int]
    ) -> list[Choice]:
        """Verify the window of the last committed token; return what it commits."""
        begin_ns = self.clock.now_ns()
        choices = run_window(self._engine, view, prompt_tokens, committed, drafts)
        self.pace.window_ns = self.clock.now_ns() - begin_ns
        return choices
