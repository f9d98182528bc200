"""The transformers adapter against a real daemon: prefixes stored and found, faults survived."""

import inspect
import signal
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from kvd.client import Client, Delivery  # noqa: E402
from kvd.engines.hf import HfEngine, Link  # noqa: E402
from kvd.engines.hf_attention import attend  # noqa: E402
from kvd.engines.hf_identity import weight_revision  # noqa: E402
from kvd.engines.hf_model import HfModel, cache_argument  # noqa: E402
from kvd.errors import ErrorKind, KvdError  # noqa: E402
from kvd.speculate.engine import Batch  # noqa: E402
from kvd.speculate.grid import pieces  # noqa: E402
from kvd.speculate.outcome import Listener, Options  # noqa: E402
from tests.e2e.process import DEADLINE_S, Daemon, running  # noqa: E402
from tests.unit.speculate_model import random_llama, random_text  # noqa: E402

PROMPT = random_text(400, seed=5)
CHUNKS = 6
OPTIONS = Options(24)
SLOW = Link(Delivery.BYTES, rate_bits=400_000, deadline_s=60)  # Some 80 kB: between 1 and 2 s.


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def model():
    return random_llama()


@pytest.fixture(scope="module")
def cold(model) -> tuple[int, ...]:
    """Return the tokens of an engine without a client: everything computed."""
    return HfEngine(model, revision="1").generate(PROMPT, OPTIONS).tokens


@pytest.fixture
def daemon(short_directory: Path):
    with running(short_directory) as started:
        yield started


def connected(daemon: Daemon) -> Client:
    client = Client(daemon.tenant, name="test")
    assert client.wait_connected(DEADLINE_S), client.status().reason
    return client


def test_another_engine_finds_the_prefix(model, cold, daemon: Daemon) -> None:
    with connected(daemon) as client:
        stored = HfEngine(model, client, revision="1").store(PROMPT)
    assert (stored.stored, stored.refused) == (CHUNKS, 0)
    with connected(daemon) as client:
        engine = HfEngine(model, client, revision="1")
        mapped = engine.generate(PROMPT, OPTIONS)
        plain = engine.generate(PROMPT, Options(24, draft=False))
        pieces = engine.generate(PROMPT, OPTIONS, Link(Delivery.BYTES))
        longer = engine.generate(PROMPT + PROMPT[:100], OPTIONS)
        assert not engine.border.faults
    assert mapped.found == pieces.found == longer.found == (CHUNKS,) * 3
    assert mapped.exact_chunks == CHUNKS and mapped.missing_chunks == 0
    assert longer.missing_chunks == 1
    assert mapped.tokens == pieces.tokens == plain.tokens == cold


def test_what_is_durable_is_found_after_a_kill(model, cold, short_directory: Path) -> None:
    flags = ("--data", str(short_directory / "data"), "--ssd", "192MiB")
    with running(short_directory / "run", *flags) as first, connected(first) as client:
        assert HfEngine(model, client, revision="1").store(PROMPT, durability="disk").durable
        first.send(signal.SIGKILL)
        assert first.wait() == -signal.SIGKILL
    with running(short_directory / "run", *flags) as second, connected(second) as client:
        engine = HfEngine(model, client, revision="1")
        for _ in range(1000):  # Memory to read into grows in the background.
            engine.prefetch(PROMPT)
            found = engine.generate(PROMPT, OPTIONS)
            assert found.tokens == cold and not engine.border.faults
            if found.exact_chunks == CHUNKS:
                break
        assert found.found == (CHUNKS,) * 3 and found.missing_chunks == 0


def test_drafts_over_a_slow_link_come_first_and_change_nothing(model, cold, daemon) -> None:
    with connected(daemon) as client:
        engine = HfEngine(model, client, revision="1")
        engine.store(PROMPT)
        said: list[tuple[str, int]] = []
        listener = Listener(
            committed=lambda index, _: said.append(("committed", index)),
            drafted=lambda index, _: said.append(("drafted", index)),
        )
        found = engine.generate(PROMPT, OPTIONS, SLOW, listener)
    assert found.tokens == cold
    assert said[0] == ("drafted", 0) and found.counts.drafted_ahead >= 1
    assert found.first_draft_ns < found.first_commit_ns
    assert [index for kind, index in said if kind == "committed"] == list(range(24))


def test_other_weights_find_nothing(model, daemon) -> None:
    with connected(daemon) as client:
        HfEngine(model, client, revision="1").store(PROMPT)
        assert HfEngine(model, client, revision="2").generate(PROMPT, OPTIONS).found == (0, 0, 0)
        other = HfEngine(model, client, revision="1", adapter="lora")
        assert other.generate(PROMPT, OPTIONS).found == (0, 0, 0)


def test_what_is_stored_is_compared_with_what_is_computed_again(model, daemon) -> None:
    with connected(daemon) as client:
        engine = HfEngine(model, client, revision="1")
        assert engine.compare(PROMPT) is None
        engine.store(PROMPT)
        comparison = engine.compare(PROMPT)
        assert comparison.counts == (CHUNKS,) * 3 and comparison.differences == ()
        with torch.no_grad():  # The weights change, and nobody says so.
            other = random_llama()
            next(other.parameters()).view(-1)[:] += 1
        comparison = HfEngine(other, client, revision="1").compare(PROMPT)
        assert comparison.counts == (CHUNKS,) * 3 and comparison.differences
        daemon.process.kill()
        daemon.wait()
        assert engine.compare(PROMPT) is None


def test_the_daemon_killed_in_the_middle(model, cold, daemon) -> None:
    with connected(daemon) as client:
        engine = HfEngine(model, client, revision="1")
        engine.store(PROMPT)
        listener = Listener(drafted=lambda *_: daemon.send(signal.SIGKILL))
        found = engine.generate(PROMPT, OPTIONS, SLOW, listener)
        assert daemon.wait() == -signal.SIGKILL
        assert found.tokens == cold
        assert found.counts.drafted_ahead >= 1 and found.missing_chunks == CHUNKS
        again = engine.generate(PROMPT, OPTIONS, SLOW)
        assert again.tokens == cold and again.found == (0, 0, 0)
        assert engine.store(PROMPT).stored == 0


def test_no_daemon_at_all(model, cold, tmp_path: Path) -> None:
    with Client(tmp_path / "nobody", deadline_s=1.0) as client:
        engine = HfEngine(model, client, revision="1")
        assert engine.store(PROMPT).stored == 0
        assert engine.generate(PROMPT, OPTIONS).tokens == cold


def test_forwards_compute_what_the_model_itself_computes(model) -> None:
    stock = random_llama()
    with torch.inference_mode():
        expected = stock(input_ids=torch.tensor([PROMPT])).logits[0]
    engine = HfModel(model)
    view = engine.view(512)
    for begin, end in pieces(len(PROMPT), 0):
        rows = (0, end - begin - 1)
        logits = engine.forward(view, Batch(PROMPT[begin:end], begin, 64, rows))
        # The cache is BF16 here and fp32 there: alike to a few parts in a hundred.
        for got, row in zip(logits, rows, strict=True):
            error = (got - expected[begin + row]).abs().max() / expected[begin + row].std()
            assert error < 0.1, (begin, row)


def renamed(model: Any, name: str) -> Any:
    """Return the model behind a forward that calls its cache as a signature of choice says."""
    theirs = cache_argument(model)

    def forward(self: Any, **arguments: Any) -> Any:
        arguments[theirs] = arguments.pop(name)
        return self.inner(**arguments)

    kinds = inspect.Parameter
    parameters = kinds("self", kinds.POSITIONAL_ONLY), kinds(name, kinds.KEYWORD_ONLY)
    forward.__signature__ = inspect.Signature(parameters)
    made = type("Renamed", (torch.nn.Module,), {"forward": forward})()
    made.inner = model
    made.config, made.dtype, made.device = model.config, model.dtype, model.device
    made.set_attn_implementation = model.set_attn_implementation
    return made.eval()


@pytest.mark.parametrize("name", ("cache", "past_key_values"))
def test_either_name_of_the_cache_argument(model, cold, name: str) -> None:
    other = renamed(model, name)
    assert cache_argument(other) == name
    engine = HfEngine(other, revision="1")
    assert engine.generate(PROMPT, OPTIONS).tokens == cold


@pytest.mark.parametrize("by", ["parameter", "data"])
@pytest.mark.parametrize("revision", ["", "1"])
def test_weights_that_change_in_place_are_other_weights(daemon, revision, by) -> None:
    """As training does it, behind the engine: nothing of the old ones is found, or stored."""
    model = random_llama()

    def change(by_what: float) -> None:
        weights = [w for w in model.parameters() if w.dim() > 1]
        with torch.no_grad():
            for weight in weights:
                (weight if by == "parameter" else weight.data).mul_(by_what)

    with connected(daemon) as client:
        engine = HfEngine(model, client, revision=revision)
        engine.store(PROMPT)
        before = engine.generate(PROMPT, OPTIONS)
        assert before.found == (CHUNKS,) * 3
        change(2.0)
        after = engine.generate(PROMPT, OPTIONS)
        assert after.found == (0, 0, 0)
        assert after.tokens == HfEngine(model, revision="2").generate(PROMPT, OPTIONS).tokens
        assert engine.store(PROMPT).stored == CHUNKS
        change(0.5)  # Exact in floating point: they are what they were.
        again = engine.generate(PROMPT, OPTIONS)
        assert again.tokens == before.tokens
        # Of weights that have a name nobody took the digest before: that they are back is not seen.
        assert again.found == ((0, 0, 0) if revision else (CHUNKS,) * 3)


def test_in_training_mode_nothing_is_stored_or_found(daemon) -> None:
    model = random_llama()
    with connected(daemon) as client:
        engine = HfEngine(model, client, revision="1")
        engine.store(PROMPT)
        model.train()
        assert engine.store(PROMPT[:300]) is None and engine.compare(PROMPT) is None
        assert engine.generate(PROMPT, OPTIONS).found == (0, 0, 0)
        engine.prefetch(PROMPT)
        model.eval()
        assert engine.generate(PROMPT, OPTIONS).found == (CHUNKS,) * 3
        assert not engine.border.faults


def test_the_revision_is_of_the_weights_themselves(model) -> None:
    first, other = weight_revision(model), random_llama()
    assert weight_revision(other) == first
    with torch.no_grad():
        next(other.parameters()).view(-1)[0] += 1
    assert weight_revision(other) != first


def test_models_that_do_not_fit_are_refused_by_name(model) -> None:
    half = random_llama().to(torch.bfloat16)
    for misfit, words in ((half, "fp32"), (random_llama().train(), "eval")):
        with pytest.raises(KvdError, match=words) as caught:
            HfModel(misfit)
        assert caught.value.kind == ErrorKind.INVALID
    for length, words in ((1010, "1024 positions"), (0, "at least one")):
        with pytest.raises(KvdError, match=words):
            HfEngine(model, revision="1").generate(random_text(length), OPTIONS)


TINY = {
    "vocab_size": 64, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128,
}  # fmt: skip
MOE = {"num_experts": 2, "num_experts_per_tok": 1}
LINEAR = {
    "linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 16,
    "linear_value_head_dim": 16, "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
}  # fmt: skip
LATENT = {
    "num_key_value_heads": 4, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8, "v_head_dim": 16, "first_k_dense_replace": 4,
}  # fmt: skip
MISFITS = {
    "Jamba": (MOE | {"attn_layer_period": 2, "attn_layer_offset": 1}, "linear_attention"),
    "Mamba": ({"state_size": 8}, "linear_attention"),
    "Qwen3Next": (MOE | LINEAR | {"head_dim": 16}, "linear_attention"),
    "Gemma2": ({"head_dim": 16}, "sliding_attention"),
    "Mistral": ({"sliding_window": 16}, "sliding window of 16"),
    "Rwkv": ({}, "an attention of its own"),
    "DeepseekV3": (LATENT, "layer 0 has KV of"),
    "GPTNeoX": ({"num_key_value_heads": None}, "no num_key_value_heads"),
}


@pytest.mark.parametrize("family", MISFITS)
def test_layers_that_are_not_full_attention_are_refused(family: str) -> None:
    import transformers

    settings, words = MISFITS[family]
    config = getattr(transformers, f"{family}Config")(**{**TINY, **settings})
    misfit = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    with pytest.raises(KvdError, match=words) as caught:
        HfEngine(misfit)
    assert caught.value.kind == ErrorKind.INVALID


def test_a_layer_that_writes_no_kv_is_not_taken_for_one_that_does(model) -> None:
    """As of a recurrent layer: its rows of the view are another forward's, or nobody's."""
    engine = HfModel(model)
    view = engine.view(64)
    write = view.write
    view.write = lambda layer, *kv: write(layer, *kv) if layer else kv
    with pytest.raises(KvdError, match=r"layers \[0\] have no KV"):
        engine.forward(view, Batch(PROMPT[:64], 0, 64, (0,)))


def test_attention_of_another_kind_is_refused() -> None:
    query = torch.zeros(1, 2, 4, 8)
    for more in ({"softcap": 30.0}, {"s_aux": torch.zeros(2)}, {"is_causal": False}):
        with pytest.raises(KvdError, match=next(iter(more))):
            attend(torch.nn.Identity(), query, query, query, None, **more)
