"""The promise on a real model, a real daemon and a slow link: the same tokens, drafts or none."""

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from kvd.client import Client, Delivery  # noqa: E402
from kvd.engines.hf import HfEngine, Link  # noqa: E402
from kvd.speculate.outcome import Options, Outcome  # noqa: E402
from tests.e2e.process import DEADLINE_S, running  # noqa: E402
from tests.unit.speculate_double import FakeClient, Script  # noqa: E402

TEXT = Path(__file__).resolve().parents[2] / "bench" / "texts" / "narrative.txt"
CHUNKS = 8
OPTIONS = Options(24)
SLOW = Link(Delivery.BYTES, rate_bits=10_000_000, deadline_s=60)  # 8.5 MB: some 7 s.


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    """Leave a core to daemon and decoding: on a busy machine two threads wait for a third."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def real():
    """Return (model, prompt), or skip when the model cannot be fetched here."""
    from bench.model import load_model

    try:
        model, tokenizer = load_model()
    except (OSError, RuntimeError) as error:
        pytest.skip(f"the small real model cannot be fetched: {error}")
    return model, tokenizer(TEXT.read_text()).input_ids[: CHUNKS * 64 + 30]


@pytest.fixture(scope="module")
def prefill(real):
    """Return the KV of the prompt's whole chunks, computed once."""
    model, prompt = real
    return HfEngine(model, revision="1").prefill(prompt)


def test_same_tokens_over_a_slow_link(real, prefill, short_directory: Path) -> None:
    model, prompt = real
    with running(short_directory) as daemon:
        with Client(daemon.tenant) as client:
            assert client.wait_connected(DEADLINE_S), client.status().reason
            assert HfEngine(model, client, revision="1").put(prompt, prefill).stored == CHUNKS
        with Client(daemon.tenant) as client:
            assert client.wait_connected(DEADLINE_S), client.status().reason
            engine = HfEngine(model, client, revision="1")
            reference = engine.generate(prompt, Options(24, draft=False))
            drafted = engine.generate(prompt, OPTIONS, SLOW)
            assert not engine.border.faults
    assert reference.exact_chunks == drafted.exact_chunks == CHUNKS
    assert reference.counts.drafted == 0 and drafted.counts.drafted_ahead >= 1
    assert drafted.tokens == reference.tokens
    cold = HfEngine(model, revision="1").generate(prompt, OPTIONS)
    assert cold.missing_chunks == CHUNKS
    assert cold.tokens == reference.tokens


def test_control_zeroed_planes_without_verification_change_the_tokens(real, prefill) -> None:
    model, prompt = real
    client = FakeClient()
    engine = HfEngine(model, client, revision="1")
    engine.put(prompt, prefill)

    def generated(script: Script) -> Outcome:
        client.script = script
        return engine.generate(prompt, Options(8))

    right, wrong = generated(Script()), generated(Script(zeroed=True))
    assert right.exact_chunks == wrong.exact_chunks == CHUNKS
    assert wrong.tokens != right.tokens
