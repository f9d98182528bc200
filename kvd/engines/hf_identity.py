"""What of a transformers model changes its KV, as a keyspace says it, and whether it changed since.

A keyspace names settings, adapters and weights. What cannot be named is found and refused.
"""

import hashlib
import json
import operator
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn.modules import module as torch_module

from kvd.engines.hf_parts import PLAIN, parts
from kvd.engines.hf_routine import routine, trial
from kvd.errors import ErrorKind, KvdError
from kvd.identity import Keyspace
from kvd.shape import BlockShape

SAMPLES = 16  # So many values of each tensor at least are looked at before each request.

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_ROPE_FIELDS = ("rope_parameters", "rope_theta", "rope_scaling", "partial_rotary_factor")
# What of a configuration cannot change KV: names, paths, versions, the form of answers, training
# and generation; and ids of tokens (`*_token_id`), for those in a prompt are in its chain. All
# else counts, what is not known yet too: a miss costs a prefill, a wrong hit costs the answer.
_LEFT_OUT = frozenset(
    {
        *("_name_or_path", "name_or_path", "architectures", "auto_map", "transformers_version"),
        *("tokenizer_class", "torch_dtype", "dtype", "id2label", "label2id", "num_labels"),
        *("problem_type", "finetuning_task", "return_dict", "output_hidden_states"),
        *("output_attentions", "use_cache", "initializer_range", "do_sample", "temperature"),
        *("top_k", "top_p", "num_beams", "max_length", "min_length", "repetition_penalty"),
    }
)
_LEFT_OUT_OF_ADAPTERS = frozenset(
    {
        *("base_model_name_or_path", "revision", "peft_version", "auto_mapping"),
        *("task_type", "inference_mode"),
    }
)
# What an adapter wraps: weights of the model, which a revision names.
_WRAPPED = ("base_layer.", "original_module.")
# Hooks that only look on: transformers leaves them where hidden states were once asked for.
_ONLOOKERS = "transformers.utils.output_capturing"


class Sight(NamedTuple):
    """What `Watch.look` saw: equal weights, settings and parts mean the same KV.

    `training` says that of the whole model; `strange` is a module whose forward somebody changed,
    or one that alone is in training mode.
    """

    weights: tuple[int | bytes, ...]
    settings: tuple[str, ...]
    parts: tuple[Any, ...]
    training: bool
    strange: torch.nn.Module | None


class Watch:
    """Looks at one model before each request, at less than a hundredth of the cost of its digest.

    Of each tensor where it lies, how often it was written to, and some values: writes through
    `.data` are not counted by torch, and one that misses all SAMPLES of a tensor is not seen.
    Of each module the plain entries and its class's forward; not what is inside of other entries.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        # By id, of which a tensor kept here has one: its address, and its samples in place.
        self._samples: dict[int, tuple[torch.Tensor, int, np.ndarray]] = {}
        # All entries of modules and configuration, held so that an address means the same object,
        # and the plain ones among them: to filter costs more than to see that none changed.
        self._entries: list[Any] = []
        self._plain: tuple[Any, ...] = ()

    def look(self) -> Sight:
        """Return what changes with the model's KV."""
        # Flat, for a list of small tuples has Python's garbage collector visit every module.
        weights: list[int | bytes] = []
        model, before, adapters = self._model, self._samples, []
        self._samples = {}
        entries, kinds = list(vars(model.config.get_text_config()).values()), {}
        strange = model if _hooked_everywhere() else None
        for module in _modules(model):
            entries += module.__dict__.values()
            kinds[type(module)] = None
            if (
                module.training != model.training
                or module._forward_hooks
                or module._forward_pre_hooks
                or "forward" in module.__dict__
            ) and strange is None:
                strange = module if module.training or _changes_forward(module) else None
            if _has_adapters(module):
                adapters.append(_adapter_state(module))
            for tensor in (*module._parameters.values(), *module._buffers.values()):
                if tensor is not None:
                    weights += self._stamp(tensor, before.get(id(tensor)))
        seen = (*self._plain_of(entries), *(kind.forward for kind in kinds))
        settings = (*routine(model), *adapters)
        return Sight(tuple(weights), settings, seen, model.training, strange)

    def _plain_of(self, entries: list[Any]) -> tuple[Any, ...]:
        same = len(entries) == len(self._entries)
        if not same or not all(map(operator.is_, entries, self._entries)):
            self._entries = entries
            self._plain = tuple(entry for entry in entries if type(entry) in PLAIN)
        return self._plain

    def _stamp(
        self, tensor: torch.Tensor, known: tuple[torch.Tensor, int, np.ndarray] | None
    ) -> tuple[int, int, bytes]:
        address = tensor.data_ptr()
        if known is None or known[1] != address:
            known = tensor, address, _sample(tensor)
        self._samples[id(tensor)] = known
        return address, 0 if tensor.is_inference() else tensor._version, known[2].tobytes()


def refuse_strange(model: Any, sight: Sight) -> None:
    """Raise INVALID for a model with a part whose effect nobody can name."""
    if sight.strange is None:
        return
    names = (name for name, module in model.named_modules() if module is sight.strange)
    name = next(names, "") or "the model"
    if sight.strange.training and not _changes_forward(sight.strange):
        why = "is in training mode, which the rest of the model is not; call model.eval()"
    else:
        why = "has a forward hook, or a forward of its own: what it does to KV cannot be told"
    raise KvdError(ErrorKind.INVALID, f"{name} {why}")


def weight_revision(model: Any) -> str:
    """Return a digest of the weights as they are loaded: names, types, shapes and bytes."""
    return _digest_of(model.state_dict())


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
        # Which numerics made the KV: fp32, 64 tokens a forward, under these settings. Other
        # routines differ in bits.
        layout=f"kvd.hf.fp32.64.{settings_digest(model)}",
        rope=_json(rope),
        adapter=adapter,
    )


def settings_digest(model: Any) -> str:
    """Return a digest of what else than weights changes the KV: the whole configuration but what
    is listed above, adapters with their settings, states and weights, which no revision names,
    buffers that are not saved with the weights (rotary frequencies), numbers and code of modules,
    and how this process computes.
    """
    config = model.config.get_text_config().to_dict()
    counted = {
        name: value
        for name, value in config.items()
        if name not in _LEFT_OUT and not name.endswith("_token_id")
    }
    adapters = {
        name: {k: v for k, v in peft.to_dict().items() if k not in _LEFT_OUT_OF_ADAPTERS}
        for name, peft in (getattr(model, "peft_config", None) or {}).items()
    }
    saved = model.state_dict()
    buffers = {name: buffer for name, buffer in model.named_buffers() if name not in saved}
    buffers |= _adapter_tensors(model)
    text = _json([counted, adapters, _settings(model), _digest_of(buffers), parts(model)])
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _digest_of(tensors: dict[str, torch.Tensor]) -> str:
    state = hashlib.blake2b(digest_size=32)
    for name, tensor in sorted(tensors.items()):
        state.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        state.update(tensor.detach().reshape(-1).view(torch.uint8).numpy())
    return state.hexdigest()


def _json(value: Any) -> str:
    """Return the same text for the same value in every process: sets have no order of their own."""
    return json.dumps(
        value, sort_keys=True, default=lambda v: sorted(v) if isinstance(v, set) else str(v)
    )


def _modules(model: Any) -> Iterator[Any]:
    """Yield every module once; `modules()` takes three times as long, for names."""
    waiting, seen = [model], set()
    while waiting:
        module = waiting.pop()
        if module is not None and module not in seen:
            seen.add(module)
            yield module
            waiting.extend(module._modules.values())


def _sample(tensor: torch.Tensor) -> np.ndarray:
    """Return values spread over the memory of a tensor, as integers: NaN is not equal to itself."""
    span = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)) + 1
    if not tensor.numel():
        return np.empty(0)
    step = max(1, (span - 1) // (SAMPLES - 1))
    spread = tensor.detach().as_strided(((span - 1) // step + 1,), (step,))
    return spread.view(_INTEGERS[tensor.element_size()]).numpy()


def _settings(model: Any) -> tuple[str, ...]:
    adapters = (_adapter_state(module) for module in _modules(model) if _has_adapters(module))
    return (*routine(model), trial(), *adapters)


def _has_adapters(module: Any) -> bool:
    return hasattr(type(module), "_active_adapter") or "_active_adapter" in module.__dict__


def _adapter_tensors(model: Any) -> dict[str, torch.Tensor]:
    """Return by name what adapters add to the layers that they wrap: small, beside these."""
    return {
        f"{holder}.{name}": tensor
        for holder, module in model.named_modules()
        if _has_adapters(module)
        for name, tensor in (*module.named_parameters(), *module.named_buffers())
        if not name.startswith(_WRAPPED)
    }


def _adapter_state(module: Any) -> str:
    """Return which of a PEFT layer's adapters are on, and how much of each."""
    names = ("_active_adapter", "_disable_adapters", "merged_adapters", "scaling")
    return str([getattr(module, name, None) for name in names])


def _hooked_everywhere() -> bool:
    return bool(torch_module._global_forward_hooks or torch_module._global_forward_pre_hooks)


def _changes_forward(module: Any) -> bool:
    hooks = [*module._forward_hooks.values(), *module._forward_pre_hooks.values()]
    return "forward" in module.__dict__ or any(
        getattr(hook, "__module__", "") != _ONLOOKERS for hook in hooks
    )
