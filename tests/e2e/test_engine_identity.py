"""KV is found, and stored, under the model that computed it, with all that changes its KV."""

import copy
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from kvd.client import Client  # noqa: E402
from kvd.engines.hf import HfEngine, Link  # noqa: E402
from kvd.engines.hf_identity import Watch, settings_digest  # noqa: E402
from kvd.engines.hf_model import HfModel  # noqa: E402
from kvd.errors import ErrorKind, KvdError  # noqa: E402
from kvd.speculate.outcome import Options  # noqa: E402
from tests.e2e.process import DEADLINE_S, running  # noqa: E402
from tests.unit.speculate_model import random_llama, random_text  # noqa: E402

PROMPT, OTHER = random_text(200, seed=5), random_text(130, seed=6)
CHUNKS = 3
OPTIONS = Options(4)


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def client(short_directory: Path):
    with running(short_directory) as daemon, Client(daemon.tenant) as made:
        assert made.wait_connected(DEADLINE_S), made.status().reason
        yield made


def multiplied(model: Any, by: float) -> None:
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(by)


def same(one: Any, other: Any) -> bool:
    return all(
        torch.equal(a, b)
        for pair in zip(one, other, strict=True)
        for a, b in zip(*pair, strict=True)
    )


@pytest.mark.parametrize(
    "settings",
    (
        {"rms_norm_eps": 1e-2},
        {"hidden_act": "gelu"},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}},
        {"max_position_embeddings": 512},
        {"residual_multiplier": 0.5},  # Of Granite: to this model a field that nobody knows.
    ),
    ids=lambda settings: next(iter(settings)),
)
def test_settings_are_part_of_the_identity(settings: dict) -> None:
    plain, other = HfEngine(random_llama(), revision="1"), HfEngine(random_llama(**settings))
    assert plain.keyspace.layout != other.keyspace.layout
    assert HfEngine(random_llama(), revision="1").keyspace == plain.keyspace


def test_names_and_ids_are_not_part_of_it() -> None:
    model, named = (
        random_llama(),
        random_llama(eos_token_id=7, architectures=["X"], use_cache=False),
    )
    named.config._name_or_path = "/somewhere/else"
    assert settings_digest(named) == settings_digest(model)


def test_frequencies_that_were_rounded_are_others() -> None:
    """As a model that was BF16 in between has them: they are not saved with the weights."""
    rounded = random_llama()
    frequencies = rounded.model.rotary_emb.inv_freq
    frequencies.copy_(frequencies.bfloat16())
    assert settings_digest(rounded) != settings_digest(random_llama())


class Lora:
    """The settings of an adapter, as PEFT has them: a set among them has no order of its own."""

    def __init__(self, **settings: Any) -> None:
        self._settings = {"r": 4, "target_modules": {"q_proj", "k_proj", "v_proj"}, **settings}

    def to_dict(self) -> dict:
        return dict(self._settings)


def test_adapters_and_whether_they_are_on_are_part_of_it() -> None:
    model = random_llama()
    engine = HfEngine(model, revision="1")

    def layout() -> str:
        assert engine.prefill(PROMPT).keyspace == engine.keyspace
        return engine.keyspace.layout

    layouts = [layout()]
    for settings in (
        {"lora_alpha": 8},
        {"lora_alpha": 16},
        {"peft_version": "9", "lora_alpha": 16},
    ):
        model.peft_config = {"default": Lora(**settings)}
        layouts.append(HfEngine(model, revision="1").keyspace.layout)
    assert len(set(layouts)) == 3 and layouts[2] == layouts[3]
    layer = model.model.layers[0].self_attn.q_proj
    layer._active_adapter, layer._disable_adapters = ["default"], False
    layer.scaling = {"default": 2.0}
    on = layout()
    layer._disable_adapters = True
    off = layout()
    layer._disable_adapters, layer.scaling["default"] = False, 3.0
    assert len({on, off, layout()}) == 3
    layer.scaling["default"] = 2.0
    assert layout() == on and engine.keyspace.weight_revision == "1"
    model.peft_config["default"].is_prompt_learning = True
    with pytest.raises(KvdError, match="default adds tokens"):
        HfModel(model)


class Wrapped(torch.nn.Module):
    """A layer as PEFT wraps it, with an adapter of random weights."""

    def __init__(self, layer: Any, seed: int) -> None:
        super().__init__()
        self.base_layer = layer
        self.lora_A = torch.nn.ModuleDict({"default": torch.nn.Linear(64, 4, bias=False)})
        self.lora_B = torch.nn.ModuleDict({"default": torch.nn.Linear(4, 64, bias=False)})
        self._active_adapter, self._disable_adapters = ["default"], False
        self.scaling = {"default": 2.0}
        generator = torch.Generator().manual_seed(seed)
        for part in (self.lora_A, self.lora_B):
            torch.nn.init.normal_(part["default"].weight, generator=generator)

    def forward(self, x: Any) -> Any:
        added = self.lora_B["default"](self.lora_A["default"](x))
        return self.base_layer(x) + self.scaling["default"] * added


def adapted(seed: int, base: Any = None) -> Any:
    model = base or random_llama()
    model.peft_config = {"default": Lora(lora_alpha=8)}
    attention = model.model.layers[0].self_attn
    attention.q_proj = Wrapped(attention.q_proj, seed)
    return model.eval()


def test_adapters_of_other_weights_are_others_whatever_the_revision(client) -> None:
    first = HfEngine(adapted(1), client, revision="1")
    assert first.store(PROMPT).stored == CHUNKS
    other = HfEngine(adapted(2), client, revision="1")
    assert not same(other.prefill(PROMPT), first.prefill(PROMPT))
    assert other.generate(PROMPT, OPTIONS).found == (0, 0, 0)
    assert HfEngine(adapted(1), client, revision="1").generate(PROMPT, OPTIONS).found[0] == CHUNKS


def test_a_revision_still_speaks_for_what_an_adapter_wraps() -> None:
    base = random_llama()
    multiplied(base, 2.0)
    plain, other = HfEngine(adapted(1), revision="1"), HfEngine(adapted(1, base), revision="1")
    assert plain.keyspace == other.keyspace


@pytest.mark.parametrize("kind", ("dynamic", "longrope"))
def test_rope_that_follows_the_length_is_refused(kind: str) -> None:
    rope = {"rope_type": kind, "rope_theta": 10000.0, "factor": 2.0}
    if kind == "longrope":
        rope |= {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
        rope["original_max_position_embeddings"] = 512
    with pytest.raises(KvdError, match=f"rope of type {kind}") as caught:
        HfModel(random_llama(rope_parameters=rope))
    assert caught.value.kind == ErrorKind.INVALID


def test_the_callers_autocast_and_types_change_nothing() -> None:
    model = random_llama()
    expected = HfEngine(model, revision="1").prefill(PROMPT)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = HfEngine(model, revision="1").prefill(PROMPT)
    assert same(found, expected) and found.keyspace == expected.keyspace
    torch.set_default_dtype(torch.bfloat16)
    try:
        assert same(HfEngine(model, revision="1").prefill(PROMPT), expected)
    finally:
        torch.set_default_dtype(torch.float32)


HOOKS = {
    "hook": lambda module: module.register_forward_hook(lambda m, i, out: out * 2),
    "pre-hook": lambda module: module.register_forward_pre_hook(lambda m, args: args),
    "hook of all": lambda _: torch.nn.modules.module.register_module_forward_hook(
        lambda m, i, out: out
    ),
}


@pytest.mark.parametrize("kind", HOOKS)
def test_with_a_hook_nothing_is_stored_or_found(client, kind: str) -> None:
    model = random_llama()
    engine = HfEngine(model, client, revision="1")
    engine.store(PROMPT)
    handle = HOOKS[kind](model.model.layers[0].mlp)
    try:
        with pytest.raises(KvdError, match="hook") as caught:
            HfModel(model)
        assert caught.value.kind == ErrorKind.INVALID
        assert engine.store(PROMPT) is None and engine.compare(PROMPT) is None
        assert engine.generate(PROMPT, OPTIONS).found == (0, 0, 0)
        assert engine.border.faults.keys() == {"KvdError"}
    finally:
        handle.remove()
    assert engine.generate(PROMPT, OPTIONS).found == (CHUNKS,) * 3


def test_a_part_with_a_forward_of_its_own_or_in_training_is_named() -> None:
    model = random_llama()
    layer = model.model.layers[1].mlp
    layer.forward = layer.forward
    with pytest.raises(KvdError, match=r"model\.layers\.1\.mlp has a forward"):
        HfModel(model)
    del layer.forward
    layer.train()
    with pytest.raises(KvdError, match=r"model\.layers\.1\.mlp.* is in training mode"):
        HfModel(model)


def test_hooks_that_only_look_on_do_not_count() -> None:
    """transformers leaves them behind where hidden states were once asked for."""
    model = random_llama()
    with torch.inference_mode():
        model(input_ids=torch.tensor([PROMPT[:4]]), output_hidden_states=True)
    assert HfEngine(model, revision="1").prefill(PROMPT).keyspace is not None


def test_writes_that_torch_does_not_count_are_seen_where_they_are_sampled() -> None:
    model = random_llama()
    watch = Watch(model)
    embedding = model.model.embed_tokens.weight
    seen = watch.look()
    assert watch.look() == seen
    for place in (slice(0, 10), slice(-10, None), slice(60, 90)):
        before = watch.look()
        embedding.data[place].mul_(3)
        assert watch.look() != before, place
    with torch.no_grad():
        embedding[:, 0] = float("nan")
    assert watch.look() == watch.look() != seen  # Though it is not equal to itself.
    model.model.norm.weight.data = torch.ones(64)
    before = watch.look()
    model.model.layers[0].mlp = copy.deepcopy(model.model.layers[0].mlp)
    assert watch.look() != before


def test_tensors_go_under_the_weights_that_computed_them(client) -> None:
    model = random_llama()
    engine = HfEngine(model, client)
    tensors = engine.prefill(PROMPT)
    multiplied(model, 2.0)
    engine.prefill(OTHER)
    engine.compare(OTHER)
    assert engine.put(PROMPT, tensors).stored == CHUNKS
    assert engine.generate(PROMPT, OPTIONS, Link()).found == (0, 0, 0)
    multiplied(model, 0.5)  # Exact in floating point: they are what they were.
    comparison = engine.compare(PROMPT)
    assert comparison.counts == (CHUNKS,) * 3 and comparison.differences == ()


def test_weights_that_change_during_a_prefill_are_those_of_no_model(client) -> None:
    model = random_llama()
    engine = HfEngine(model, client)

    def trains(done: int, _: int) -> None:
        if done == 128:
            multiplied(model, 2.0)
            multiplied(model, 0.5)

    assert engine.store(PROMPT, trains) is None
    assert engine.store(PROMPT).stored == CHUNKS


def test_other_tensors_than_those_of_the_prompt_are_refused(client) -> None:
    engine = HfEngine(random_llama(), client, revision="1")
    tensors = engine.prefill(PROMPT)
    for prompt, given in ((OTHER, tensors), (PROMPT[:128], tensors), (PROMPT, list(tensors))):
        with pytest.raises(KvdError, match="put") as caught:
            engine.put(prompt, given)
        assert caught.value.kind == ErrorKind.INVALID
    assert engine.put(PROMPT, HfEngine(random_llama(), revision="1").prefill(PROMPT)).stored


def test_a_keyspace_that_could_not_be_made_once_is_made_later(client, monkeypatch) -> None:
    def fails(_: object) -> None:
        raise MemoryError

    engine = HfEngine(random_llama(), client, revision="1")
    with monkeypatch.context() as patch:
        patch.setattr(client, "keyspace", fails)
        assert engine.store(PROMPT) is None
    assert engine.border.faults == {"MemoryError": 1}
    assert engine.store(PROMPT).stored == CHUNKS
