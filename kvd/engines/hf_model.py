"""A transformers causal language model as a `kvd.speculate` Engine."""

import inspect
from typing import Any

import torch

from kvd.engines import hf_attention
from kvd.engines.hf_identity import Watch, refuse_strange
from kvd.engines.hf_view import HfView
from kvd.errors import ErrorKind, KvdError
from kvd.shape import BlockShape
from kvd.speculate.engine import Batch, Ready
from kvd.speculate.grid import PAD_TOKEN, padded
from kvd.types import Dtype


class HfModel:
    """Runs forwards of one model on views."""

    def __init__(self, model: Any) -> None:
        """Take a model of full attention in fp32 on the CPU; raise INVALID for others.

        What its configuration does not tell, one token does that is run here.
        """
        config = model.config.get_text_config()
        _check(model, config)
        self.shape = BlockShape.of_attention(
            config.num_hidden_layers, config.num_key_value_heads, _width(config), Dtype.BF16
        )
        self.tokens_max = int(config.max_position_embeddings)
        self._model = model
        self._cache_argument = cache_argument(model)
        hf_attention.install(model)
        self.forward(self.view(1), Batch((PAD_TOKEN,), 0, 1, (0,)))

    @property
    def layers(self) -> int:
        return self.shape.groups[0].layers

    def view(self, capacity: int) -> HfView:
        """Return a new cache for up to `capacity` tokens, its memory touched."""
        return HfView(self.shape, capacity)

    def forward(self, view: HfView, batch: Batch, ready: Ready | None = None) -> torch.Tensor:
        """Run a batch on the view; return fp32 logits [len(rows), vocabulary]."""
        view.enter(batch.begin, batch.length, ready)
        positions = torch.arange(batch.begin, batch.begin + batch.length)
        # The layout says fp32, also to a caller who computes in less.
        with torch.inference_mode(), torch.autocast("cpu", enabled=False):
            output = self._model(
                input_ids=torch.tensor([padded(batch.tokens, batch.length)]),
                position_ids=positions[None],
                use_cache=True,
                logits_to_keep=torch.tensor(batch.rows),
                **{self._cache_argument: view.cache, hf_attention.TOKENS: len(batch.tokens)},
            )
        view.leave(len(batch.tokens))
        return output.logits[0].float()


def cache_argument(model: Any) -> str:
    """Return what the model's forward calls its cache: 5.24 renamed it."""
    names = inspect.signature(model.forward).parameters
    return "cache" if "cache" in names else "past_key_values"


def _width(config: Any) -> int:
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def _check(model: Any, config: Any) -> None:
    if model.dtype != torch.float32 or model.device.type != "cpu":
        found = f"{model.dtype} on {model.device}"
        raise _refuse(f"the model is {found}; this adapter runs fp32 on the CPU")
    sight = Watch(model).look()
    if sight.training:
        raise _refuse("the model is in training mode; call model.eval() first")
    refuse_strange(model, sight)
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    if kinds != {"full_attention"}:
        raise _refuse(f"layers of {sorted(kinds)}: only full attention fits")
    window = getattr(config, "sliding_window", None)
    if window is not None and getattr(config, "use_sliding_window", True):
        raise _refuse(f"a sliding window of {window} tokens: only full attention fits")
    for kind in _rope_types(config):
        # Their frequencies follow from the longest position so far: KV of other prompts than this.
        if "dynamic" in kind or kind in ("longrope", "su"):
            raise _refuse(f"rope of type {kind}: KV must not depend on the length of a prompt")
    for name, peft in (getattr(model, "peft_config", None) or {}).items():
        if getattr(peft, "is_prompt_learning", False):
            raise _refuse(f"adapter {name} adds tokens of its own, which no chain would name")
    for field in ("num_key_value_heads", "max_position_embeddings"):
        if getattr(config, field, None) is None:
            raise _refuse(f"the configuration has no {field}: the shape of its KV is not known")


def _rope_types(config: Any) -> list[str]:
    """Return the types of rope in force: one for all layers, or one for each type of layer."""
    rope = [getattr(config, name, None) or {} for name in ("rope_parameters", "rope_scaling")]
    rope += [part for whole in rope for part in whole.values() if isinstance(part, dict)]
    return [str(part.get("rope_type") or part.get("type") or "") for part in rope]


def _refuse(message: str) -> KvdError:
    return KvdError(ErrorKind.INVALID, message)
