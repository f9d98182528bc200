"""The promise: the tokens are those of the routine without drafts, whatever is drafted or lost."""

import random
import threading
from collections.abc import Callable, Iterator, Sequence

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from kvd.client import Delivery  # noqa: E402
from kvd.engines.hf import HfEngine, Link  # noqa: E402
from kvd.engines.hf_model import HfModel  # noqa: E402
from kvd.engines.hf_view import HfView  # noqa: E402
from kvd.errors import ErrorKind, KvdError  # noqa: E402
from kvd.speculate.engine import Engine  # noqa: E402
from kvd.speculate.grid import WINDOW_TOKENS, capacity_tokens  # noqa: E402
from kvd.speculate.outcome import Finish, Listener, Options, Outcome  # noqa: E402
from kvd.speculate.verify import run_prompt, run_window  # noqa: E402
from kvd.types import PlaneClass  # noqa: E402
from tests.unit.speculate_double import FakeClient, Script  # noqa: E402
from tests.unit.speculate_model import VOCABULARY, random_llama  # noqa: E402
from tests.unit.speculate_model import random_text as text  # noqa: E402

NEW_TOKENS = 40
GRADUAL = Link(Delivery.BYTES, deadline_s=60)
Source = Callable[[Sequence[int]], list[int]]


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """Keep a model too small for two threads from waiting for the second on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def model():
    return random_llama()


def routine(engine: Engine, prompt: list[int], count: int, source: Source) -> list[int]:
    """Decode `count` tokens by the routine with drafts from `source(committed)`."""
    view = engine.view(capacity_tokens(len(prompt), count + WINDOW_TOKENS))
    committed = [run_prompt(engine, view, prompt, 0, None).token]
    while len(committed) < count:
        choices = run_window(engine, view, len(prompt), committed, source(committed))
        committed += [choice.token for choice in choices]
        assert view.length == len(prompt) + len(committed) - 1
    return committed[:count]


def sources(expected: list[int]) -> Iterator[tuple[str, Source]]:
    rng = random.Random(3)

    def ahead(committed: Sequence[int]) -> list[int]:
        return list(expected[len(committed) : len(committed) + WINDOW_TOKENS])

    def wrong_at(places: Callable[[int], bool]) -> Source:
        def draft(committed: Sequence[int]) -> list[int]:
            drafts = ahead(committed)
            for offset, token in enumerate(drafts):
                if places(len(committed) + offset):
                    drafts[offset] = (token + 1) % VOCABULARY
            return drafts

        return draft

    yield "perfect", ahead
    yield "random", lambda _: rng.choices(range(VOCABULARY), k=WINDOW_TOKENS)
    yield "a fifth wrong", wrong_at(lambda _: rng.random() < 0.2)
    for place in (0, WINDOW_TOKENS // 2, WINDOW_TOKENS - 1):
        yield f"wrong at {place}", wrong_at(lambda index, place=place: index % 16 == place)
    yield "few", lambda committed: ahead(committed)[:3]


@pytest.mark.parametrize("length", (1, 63, 64, 65, 128, 129))
def test_drafts_never_change_the_tokens(model, length: int) -> None:
    engine, prompt = HfModel(model), text(length)
    expected = routine(engine, prompt, NEW_TOKENS, lambda _: [])
    assert len(set(expected)) > 5
    for name, source in sources(routine(engine, prompt, 64, lambda _: [])):
        assert routine(engine, prompt, NEW_TOKENS, source) == expected, name


def test_drafts_on_the_exact_view_leave_no_trace(model) -> None:
    engine, prompt = HfModel(model), text(100)
    expected = routine(engine, prompt, NEW_TOKENS, lambda _: [])
    found = HfEngine(model, revision="1").generate(prompt, Options(NEW_TOKENS))
    assert list(found.tokens) == expected
    assert found.counts.drafted > 0 and found.counts.accepted > 0


class Stored:
    """A prompt whose KV is in a scripted client, the engine, and its reference tokens."""

    def __init__(self, model, length: int = 300) -> None:
        self.client = FakeClient()
        self.engine = HfEngine(model, self.client, revision="1")
        self.prompt = text(length)
        self.chunks = length // 64
        assert self.engine.store(self.prompt).stored == self.chunks
        self.reference = self.generate(draft=False)
        assert self.reference.exact_chunks == self.chunks

    def generate(self, draft: bool = True, **options) -> Outcome:
        listener = options.pop("listener", Listener())
        wanted = Options(options.pop("new_tokens", NEW_TOKENS), draft=draft, **options)
        outcome = self.engine.generate(self.prompt, wanted, GRADUAL, listener)
        assert all(fetch.released.is_set() for fetch in self.client.fetches)
        return outcome

    def drafting(self, count: int, **script) -> Listener:
        """Hold back the residuals until `count` tokens are drafted from anchors."""
        enough = threading.Event()

        def before(plane_class: PlaneClass, layer: int) -> None:
            if plane_class == script.get("hold", PlaneClass.RESIDUAL) and layer == 0:
                assert enough.wait(60)

        def drafted(index: int, _: int) -> None:
            if index + 1 >= count:
                enough.set()

        self.client.script = Script(
            before=before, **{name: value for name, value in script.items() if name != "hold"}
        )
        return Listener(drafted=drafted)


@pytest.fixture
def stored(model) -> Stored:
    return Stored(model)


@pytest.mark.parametrize("count", (1, 5, 16, 17))
def test_drafts_from_anchors_are_verified(stored: Stored, count: int) -> None:
    found = stored.generate(listener=stored.drafting(count))
    assert found.tokens == stored.reference.tokens
    assert found.counts.drafted_ahead >= count
    assert found.counts.accepted_ahead <= found.counts.drafted_ahead
    assert len(found.draft_times_ns) == found.counts.drafted_ahead
    assert found.first_draft_ns < found.first_commit_ns


def test_lossless_anchors_are_accepted_and_wrong_ones_are_not(stored: Stored) -> None:
    found = stored.generate(listener=stored.drafting(8, noise=lambda values, _: values))
    assert found.tokens == stored.reference.tokens
    assert found.counts.accepted_ahead >= 8
    found = stored.generate(
        listener=stored.drafting(8, noise=lambda values, _: torch.randn_like(values))
    )
    assert found.tokens == stored.reference.tokens
    assert found.counts.accepted_ahead < 8


def test_drafting_goes_over_to_eight_planes(stored: Stored) -> None:
    seen = set()

    def noise(values, planes):
        seen.add(planes)
        return values

    listener = stored.drafting(12, hold=PlaneClass.EXACT, noise=noise)
    found = stored.generate(listener=listener)
    assert found.tokens == stored.reference.tokens
    assert found.upgraded and seen == {4, 8}


def test_a_stop_token_inside_drafts_ends_the_text(stored: Stored) -> None:
    tokens = stored.reference.tokens
    stop = next(token for index, token in enumerate(tokens) if index >= 6)
    listener = stored.drafting(4, noise=lambda values, _: values)
    found = stored.generate(listener=listener, stop_tokens=frozenset({stop}))
    assert found.tokens == tokens[: tokens.index(stop) + 1]
    assert found.finish == Finish.STOP


@pytest.mark.parametrize("length", (1, 63, 64, 65, 128, 129))
def test_found_or_not_the_tokens_are_the_same(model, length: int) -> None:
    prompt = text(length, seed=length)
    stored = HfEngine(model, FakeClient(), revision="1")
    stored.store(prompt)
    options = Options(20)
    warm = stored.generate(prompt, options, GRADUAL)
    mapped = stored.generate(prompt, options)
    cold = HfEngine(model, revision="1").generate(prompt, options)
    assert warm.exact_chunks == mapped.exact_chunks == (length - 1) // 64
    assert cold.missing_chunks == (length - 1) // 64
    assert warm.tokens == mapped.tokens == cold.tokens


FAULTS = {
    "residual lost": Script(counts_max=(9, 0, 0)),
    "exact lost": Script(counts_max=(9, 9, 0)),
    "exact partial": Script(counts_max=(9, 4, 2)),
    "prefix partial": Script(counts_max=(3, 3, 3)),
    "miss": Script(counts_max=(0, 0, 0)),
    "dies in the anchors": Script(ends_before=(PlaneClass.ANCHOR, 1)),
    "dies before the residuals": Script(ends_before=(PlaneClass.RESIDUAL, 0)),
    "dies in the exact class": Script(ends_before=(PlaneClass.EXACT, 1)),
    "anchors corrupt": Script(corrupt={PlaneClass.ANCHOR: 2}),
    "residual corrupt": Script(corrupt={PlaneClass.RESIDUAL: 2}),
    "exact corrupt in the middle": Script(corrupt={PlaneClass.EXACT: 2}, corrupt_layer=1),
    "exact corrupt at first": Script(corrupt={PlaneClass.EXACT: 0}),
    "fetch raises": Script(fails=frozenset({"fetch"})),
    "arrivals raise": Script(fails=frozenset({"arrivals"})),
    "decode raises": Script(fails=frozenset({"decode"})),
}


@pytest.mark.parametrize("name", FAULTS)
def test_faults_cost_time_and_nothing_else(stored: Stored, name: str) -> None:
    stored.client.script = FAULTS[name]
    found = stored.generate()
    assert found.tokens == stored.reference.tokens
    assert found.exact_chunks + found.missing_chunks == 4
    raised = bool(FAULTS[name].fails)
    assert raised == bool(stored.engine.border.faults)


def test_each_kind_of_fault_is_logged_once_and_counted(stored: Stored, caplog) -> None:
    stored.client.script = Script(fails=frozenset({"fetch", "put"}))
    for _ in range(3):
        assert stored.generate().tokens == stored.reference.tokens
    assert stored.engine.store(stored.prompt) is None
    assert stored.engine.border.faults == {"RuntimeError": 4}
    assert [record.name for record in caplog.records] == ["kvd.engines"]


def test_a_late_residual_is_waited_for_while_drafting(stored: Stored) -> None:
    found = stored.generate(listener=stored.drafting(20, hold=PlaneClass.RESIDUAL))
    assert found.tokens == stored.reference.tokens
    assert found.counts.drafted_ahead >= 20


def test_the_deadline_ends_the_waiting_for_a_daemon_that_hangs(stored: Stored) -> None:
    stored.client.script = Script(hangs_before=(PlaneClass.EXACT, 1))
    link = Link(Delivery.BYTES, deadline_s=0.2)
    found = stored.engine.generate(stored.prompt, Options(NEW_TOKENS), link)
    assert found.tokens == stored.reference.tokens
    assert found.missing_chunks == 4


@pytest.mark.parametrize("counts", ((1, 2, 2), (2, 1, 3)))
def test_a_fetch_that_makes_no_prefix_is_released(stored: Stored, counts) -> None:
    stored.client.script = Script(counts_max=counts)
    found = stored.generate()  # Which looks whether all are released.
    assert found.tokens == stored.reference.tokens and found.missing_chunks == stored.chunks
    assert stored.engine.border.faults == {"AssertionError": 1}


@pytest.mark.parametrize("seconds", (0.0, -1.0, float("nan"), float("inf"), 1e300))
def test_a_deadline_that_nobody_can_wait_for_is_refused(seconds: float) -> None:
    with pytest.raises(KvdError, match="deadline_s is .* must be above 0") as caught:
        Link(deadline_s=seconds)
    assert caught.value.kind == ErrorKind.INVALID


def without_threads(monkeypatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)


def test_without_a_thread_to_be_had_the_tokens_are_the_same(stored: Stored, monkeypatch) -> None:
    without_threads(monkeypatch)
    found = stored.generate()
    assert found.tokens == stored.reference.tokens and found.exact_chunks == stored.chunks


@pytest.mark.parametrize("threads", (True, False))
def test_a_fault_of_what_fills_the_views_is_named(stored: Stored, monkeypatch, threads) -> None:
    def fails(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(HfView, "loaded", fails)
    if not threads:
        without_threads(monkeypatch)
    found = stored.generate()
    assert isinstance(found.fault, MemoryError) and found.missing_chunks == stored.chunks
    assert found.tokens == stored.reference.tokens
    assert stored.engine.border.faults == {"MemoryError": 1}


def test_control_zeroed_planes_without_verification_change_the_tokens(stored: Stored) -> None:
    stored.client.script = Script(zeroed=True)
    found = stored.generate()
    assert found.exact_chunks == 4
    assert found.tokens != stored.reference.tokens
