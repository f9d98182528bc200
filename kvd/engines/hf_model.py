"""A transformers causal language model as a `kvd.speculate` Engine, and its keyspace."""

import hashlib
import inspect
import json
from typing import Any

import torch

from kvd.engines import hf_attention
from kvd.engines.hf_view import HfView
from kvd.errors import ErrorKind, KvdError
from kvd.identity import Keyspace
from kvd.shape import BlockShape
from kvd.speculate.engine import Batch, Ready
from kvd.speculate.grid import padded
from kvd.types import Dtype

_ROPE_FIELDS = ("rope_parameters", "rope_theta", "rope_scaling", "partial_rotary_factor")


class HfModel:
    """Runs forwards of one model on views."""

    def __init__(self, model: Any) -> None:
        """Take a model of full attention in fp32 on the CPU; raise INVALID for others."""
        config = model.config.get_text_config()
        _check(model, config)
        self.shape = BlockShape.of_attention(
            config.num_hidden_layers, config.num_key_value_heads, _width(config), Dtype.BF16
        )
        self.tokens_max = int(config.max_position_embeddings)
        self._model = model
        self._cache_argument = cache_argument(model)
        hf_attention.install(model)

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
        with torch.inference_mode():
            output = self._model(
                input_ids=torch.tensor([padded(batch.tokens, batch.length)]),
                position_ids=positions[None],
                use_cache=True,
                logits_to_keep=torch.tensor(batch.rows),
                **{self._cache_argument: view.cache, hf_attention.TOKENS: len(batch.tokens)},
            )
        view.leave(len(batch.tokens))
        return output.logits[0].float()


def weight_stamp(model: Any) -> tuple[tuple[int, int, float], ...]:
    """Return what changes with the weights, at a hundredth of the cost of their digest.

    Of each tensor where it lies, how often it was written to, and its middle value: writes through
    `.data` are not counted by torch.
    """
    stamps = []
    for tensor in model.state_dict().values():
        writes = 0 if tensor.is_inference() else tensor._version
        middle = tensor.reshape(-1)[tensor.numel() // 2].item() if tensor.numel() else 0.0
        stamps.append((tensor.data_ptr(), writes, middle))
    return tuple(stamps)


def cache_argument(model: Any) -> str:
    """Return what the model's forward calls its cache: 5.24 renamed it."""
    names = inspect.signature(model.forward).parameters
    return "cache" if "cache" in names else "past_key_values"


def weight_revision(model: Any) -> str:
    """Return a digest of the weights as they are loaded: names, types, shapes and bytes."""
    state = hashlib.blake2b(digest_size=32)
    for name, tensor in sorted(model.state_dict().items()):
        state.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        state.update(tensor.detach().contiguous().view(torch.uint8).numpy())
    return state.hexdigest()


def keyspace(
    model: Any, shape: BlockShape, name: str = "", revision: str = "", adapter: str = ""
) -> Keyspace:
    """Return the keyspace of the model's KV; `revision` spares the digest of the weights."""
    config = model.config.get_text_config()
    rope = {field: getattr(config, field, None) for field in _ROPE_FIELDS}
    return Keyspace(
        model=name or config.model_type,
        weight_revision=revision or weight_revision(model),
        shape=shape,
        # Which numerics made the KV: fp32, 64 tokens a forward. Other routines differ in bits.
        layout="kvd.hf.fp32.64",
        rope=json.dumps(rope, sort_keys=True, default=str),
        adapter=adapter,
    )


def _width(config: Any) -> int:
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def _check(model: Any, config: Any) -> None:
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    if kinds != {"full_attention"}:
        raise KvdError(ErrorKind.INVALID, f"layers of {sorted(kinds)}: only full attention fits")
    if model.dtype != torch.float32 or model.device.type != "cpu":
        found = f"{model.dtype} on {model.device}"
        raise KvdError(
            ErrorKind.INVALID, f"the model is {found}; this adapter runs fp32 on the CPU"
        )
    if model.training:
        raise KvdError(ErrorKind.INVALID, "the model is in training mode; call model.eval() first")
