"""What modules keep and run besides their tensors is part of the identity of their KV."""

import functools
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from transformers.models.llama import modeling_llama  # noqa: E402

from kvd.engines.hf import HfEngine  # noqa: E402
from kvd.engines.hf_identity import Watch, settings_digest  # noqa: E402
from tests.unit.speculate_model import random_llama, random_text  # noqa: E402

PROMPT = random_text(130)


def scaled(model: Any) -> None:
    model.model.layers[0].self_attn.scaling *= 1.5


def rougher(model: Any) -> None:
    model.model.layers[1].input_layernorm.variance_epsilon = 1e-2


def padded(model: Any) -> None:
    model.model.padding_idx = 3  # None before.


def acausal(model: Any) -> None:
    model.model.layers[0].self_attn.is_causal = False


def configured(model: Any) -> None:
    model.config.rms_norm_eps = 1e-2


class Louder(torch.nn.Module):
    def forward(self, weight: Any) -> Any:
        return weight * 2


def parametrized(model: Any) -> None:
    projection = model.model.layers[0].self_attn.k_proj
    torch.nn.utils.parametrize.register_parametrization(projection, "weight", Louder())
    projection.eval()


class OtherNorm(modeling_llama.LlamaRMSNorm):
    def forward(self, hidden_states: Any) -> Any:
        return super().forward(hidden_states) * 2


def reclassed(model: Any) -> None:
    model.model.layers[0].input_layernorm.__class__ = OtherNorm


CHANGES = (scaled, rougher, padded, acausal, configured, parametrized, reclassed)


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_change_in_place_is_another_keyspace(change: Any) -> None:
    model = random_llama()
    engine = HfEngine(model, revision="1")
    before = engine.prefill(PROMPT).keyspace
    assert engine.prefill(PROMPT).keyspace == before
    change(model)
    after = engine.prefill(PROMPT).keyspace
    assert after.layout != before.layout
    assert HfEngine(model, revision="1").keyspace.layout == after.layout


def doubled(function: Any) -> Any:
    @functools.wraps(function)
    def twice(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs) * 2

    return twice


def test_a_class_changed_for_all_is_seen(monkeypatch) -> None:
    """As libraries of faster kernels do it, before a model is loaded or after."""
    engine = HfEngine(random_llama(), revision="1")
    before = engine.prefill(PROMPT).keyspace
    norm = modeling_llama.LlamaRMSNorm
    monkeypatch.setattr(norm, "forward", doubled(norm.forward))
    after = engine.prefill(PROMPT).keyspace
    assert after != before and HfEngine(random_llama(), revision="1").keyspace == after


def test_a_function_that_a_forward_calls_is_seen_when_the_engine_is_made(monkeypatch) -> None:
    before = HfEngine(random_llama(), revision="1").keyspace
    rotate = modeling_llama.apply_rotary_pos_emb
    monkeypatch.setattr(modeling_llama, "apply_rotary_pos_emb", doubled(rotate))
    assert settings_digest(random_llama()) != before.layout.rpartition(".")[2]
    # The same code under the same name is the same.
    monkeypatch.setattr(modeling_llama, "apply_rotary_pos_emb", rotate)
    assert HfEngine(random_llama(), revision="1").keyspace == before


def test_a_subclass_of_the_same_model_is_another() -> None:
    class Mine(transformers.LlamaForCausalLM):
        pass

    plain, model = random_llama(), random_llama()
    model.__class__ = Mine
    assert settings_digest(model) != settings_digest(plain)


def test_what_is_loaded_is_what_was_saved(tmp_path: Path) -> None:
    made = random_llama()
    made.save_pretrained(tmp_path)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    one, other = HfEngine(made, revision="1"), HfEngine(loaded.eval(), revision="1")
    assert one.keyspace == other.keyspace


def test_marks_that_are_left_on_the_way_change_nothing() -> None:
    model = random_llama()
    engine = HfEngine(model, revision="1")
    before = engine.prefill(PROMPT).keyspace
    watch = Watch(model)
    seen = watch.look()
    engine.prefill(PROMPT)
    assert watch.look() == seen
    tokens = torch.tensor([PROMPT[:4]])
    with torch.inference_mode():
        model(input_ids=tokens, output_hidden_states=True)
        model.generate(tokens, max_new_tokens=2)
    model(input_ids=tokens, labels=tokens).loss.backward()
    model.train()
    model.model.register_full_backward_hook(lambda *_: None).remove()
    model.eval()
    assert engine.prefill(PROMPT).keyspace == before


def test_entries_that_are_no_plain_values_are_no_fault() -> None:
    """Tensors cannot be compared for truth; some code keeps one that it makes anew each time."""
    model = random_llama()
    watch = Watch(model)
    for _ in range(2):
        object.__setattr__(model.model, "kept", [torch.ones(3)])
        model.model.__dict__["other"] = torch.ones(3)
        seen = watch.look()
    assert watch.look() == seen
