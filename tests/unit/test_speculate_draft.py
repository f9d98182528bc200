"""When drafts are made: only as long as they end before the exact cache asks for the engine."""

from collections.abc import Iterator

import pytest

torch = pytest.importorskip("torch")

from kvd.client import Arrival  # noqa: E402
from kvd.clock import NS_PER_MS, NS_PER_S  # noqa: E402
from kvd.speculate.draft import Drafter  # noqa: E402
from kvd.speculate.engine import Batch  # noqa: E402
from kvd.speculate.prefix import Prefix  # noqa: E402
from kvd.speculate.runner import Runner  # noqa: E402
from kvd.types import PlaneClass  # noqa: E402

LAYERS = 2
PROMPT = list(range(100))
FAR_NS = 1 << 62


class HandClock:
    """A clock that moves when something takes time."""

    def __init__(self) -> None:
        self.now = NS_PER_S

    def now_ns(self) -> int:
        return self.now


class CountingView:
    def __init__(self) -> None:
        self.length = 0

    def truncate(self, length: int) -> None:
        self.length = length

    extend_prefix = truncate

    def targets(self, layer: int) -> list:
        return []

    def loaded(self, layer: int, tokens: int) -> None:
        pass


class CountingEngine:
    """Says the next number; a token takes `step_ns`, a piece of the prompt `tail_ns`."""

    def __init__(self, clock: HandClock, step_ns: int, tail_ns: int) -> None:
        self.layers = LAYERS
        self.batches: list[Batch] = []
        self._clock = clock
        self._costs = {1: step_ns, 64: tail_ns}

    def forward(self, view: CountingView, batch: Batch, ready=None) -> torch.Tensor:
        for layer in range(LAYERS):
            if ready is not None:
                ready(layer)
        self._clock.now += self._costs[batch.length]
        self.batches.append(batch)
        view.length = batch.begin + len(batch.tokens)
        logits = torch.zeros(len(batch.rows), 300)
        logits[:, batch.tokens[-1] + 1] = 1.0
        return logits


class SteadyFetch:
    """One chunk a class; 900 bytes in 9 seconds, decoding by planes counted."""

    counts = (1, 1, 1)
    class_bytes = (300, 300, 300)
    resident_bytes = 0  # Here at once.

    def __init__(self, clock: HandClock, arrived: tuple[PlaneClass, ...]) -> None:
        self._clock = clock
        self._begin = clock.now
        self._arrived = arrived
        self.planes: list[int] = []
        self.good = 1

    @property
    def delivered_bytes(self) -> int:
        came = (self._clock.now - self._begin) * 100 // NS_PER_S
        return min(900, self.resident_bytes + came)

    def arrivals(self) -> Iterator[Arrival]:
        for plane_class in self._arrived:
            yield Arrival(plane_class, 0, LAYERS)

    def decode(self, *, planes: int, **_) -> int:
        self.planes.append(planes)
        return self.good if planes == 8 else 1

    def release(self) -> None:
        pass


class Drafting:
    """A drafter at the moment when `arrived` has arrived, `elapsed_s` after the fetch."""

    def __init__(self, elapsed_s: float, arrived: tuple[PlaneClass, ...], step_ms: int = 100):
        self.clock = HandClock()
        self.engine = CountingEngine(self.clock, step_ms * NS_PER_MS, 500 * NS_PER_MS)
        self.fetch = SteadyFetch(self.clock, arrived)
        self.prefix = Prefix(self.fetch, LAYERS, self.clock, FAR_NS)
        self.prefix.fill(CountingView(), CountingView())
        self.clock.now += int(elapsed_s * NS_PER_S)
        self.runner = Runner(self.engine, self.clock)
        self.drafter = Drafter(self.runner, CountingView(), self.prefix)

    def run(self, tokens_max: int = 1000) -> list[int]:
        told: list[int] = []
        drafts = self.drafter.run(PROMPT, tokens_max, told.append)
        assert drafts == told
        return drafts


ANCHORS = (PlaneClass.ANCHOR,)
RESIDUALS = (PlaneClass.ANCHOR, PlaneClass.RESIDUAL)


def test_drafting_ends_where_the_exact_tail_begins() -> None:
    drafting = Drafting(3.0, ANCHORS)
    drafts = drafting.run()
    assert drafts == list(range(100, 100 + len(drafts)))
    # The last byte comes at 9 s, the tail takes half a second; steps of 0.1 s fill the time to it.
    assert drafting.clock.now <= int(9.5 * NS_PER_S)
    assert drafting.clock.now > int(9.3 * NS_PER_S)
    assert drafting.engine.batches[0] == Batch(PROMPT[64:], 64, 64, (35,))


def test_no_step_starts_that_would_end_behind_the_last_byte() -> None:
    drafting = Drafting(3.0, ANCHORS, step_ms=20_000)
    drafting.runner.pace.step_ns = 20 * NS_PER_S
    assert drafting.run() == [100]


def test_the_first_draft_is_not_started_when_it_would_come_too_late() -> None:
    drafting = Drafting(8.8, ANCHORS)
    drafting.runner.pace.tail_ns = 500 * NS_PER_MS
    assert drafting.run() == [] and not drafting.engine.batches


def test_what_was_here_at_once_says_nothing_of_the_rate() -> None:
    clock = HandClock()
    fetch = SteadyFetch(clock, ANCHORS)
    fetch.resident_bytes = 300
    prefix = Prefix(fetch, LAYERS, clock, FAR_NS)
    # Nothing has come since, and it is a disk, not a link: better to wait than to begin a draft.
    assert prefix.last_byte_ns() == clock.now
    clock.now += 2 * NS_PER_S
    assert prefix.last_byte_ns() == NS_PER_S + 6 * NS_PER_S


@pytest.mark.parametrize("tokens_max", (1, 7, 1000))
def test_no_more_is_drafted_than_asked_nor_than_the_bound(tokens_max: int) -> None:
    assert len(Drafting(3.0, ANCHORS, step_ms=1).run(tokens_max)) == min(tokens_max, 64)


def test_eight_planes_are_used_as_soon_as_they_are_in() -> None:
    drafting = Drafting(6.0, RESIDUALS)
    assert len(drafting.run()) > 5
    assert drafting.drafter.upgraded
    assert drafting.fetch.planes == [4] * LAYERS + [8] * LAYERS


def test_eight_planes_are_not_worth_it_for_a_last_step() -> None:
    drafting = Drafting(7.85, RESIDUALS)
    drafting.runner.pace.step_ns = 100 * NS_PER_MS
    assert len(drafting.run()) == 2
    assert not drafting.drafter.upgraded and drafting.fetch.planes == [4] * LAYERS


def test_a_view_spoilt_by_a_bad_residual_is_not_drafted_from() -> None:
    drafting = Drafting(6.0, RESIDUALS)
    drafting.fetch.good = 0
    assert drafting.run() == [100]
