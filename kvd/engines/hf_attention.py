"""sdpa over grouped KV heads, registered with transformers as `kvd`.

The stock path repeats each KV head for its queries whenever there is a mask: for a few new tokens
behind a long cache that copies the whole cache several times a layer.
"""

from typing import Any

import torch
import torch.nn.functional as F
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from kvd.errors import ErrorKind, KvdError

NAME = "kvd"
TOKENS = "kvd_tokens"  # The model's keyword for how many rows of a batch are not padding.
# What models say beside scores and masks that changes nothing here; of anything else, sinks or a
# cap of scores, this attention would make other KV than the model's own.
_HARMLESS = frozenset(
    {
        *(TOKENS, "dropout", "position_ids", "cache_position", "use_cache", "output_attentions"),
        *("output_hidden_states", "output_router_logits", "num_items_in_batch", "deterministic"),
        *("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k"),
    }
)


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **more: Any,
) -> tuple[torch.Tensor, None]:
    """Return [1, tokens, heads, width] of causal attention, as transformers wants it.

    Rows of padding are left zero: nobody looks at what becomes of them. Raise INVALID for a model
    that wants more of its attention.
    """
    for name, said in more.items():
        plain = said is None or name in _HARMLESS or (name == "is_causal" and said is True)
        if not plain:
            raise KvdError(ErrorKind.INVALID, f"attention with {name}: only plain attention fits")
    rows = query.shape[2]
    tokens = more.get(TOKENS, rows)
    if attention_mask is not None:
        query, attention_mask = query[:, :, :tokens], attention_mask[:, :, :tokens]
    result = F.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=attention_mask,
        # Without a mask queries and keys are the same tokens, but for a single query.
        is_causal=attention_mask is None and query.shape[2] > 1,
        scale=scaling,
        enable_gqa=query.shape[1] != key.shape[1],
    )
    result = result.transpose(1, 2)
    if result.shape[1] < rows:
        return F.pad(result, (0, 0, 0, 0, 0, rows - result.shape[1])), None
    return result.contiguous(), None


def additive_mask(*args: Any, **kwargs: Any) -> torch.Tensor | None:
    """Return sdpa's mask as fp32 summands, converted here once and not in each layer."""
    mask = sdpa_mask(*args, **kwargs)
    if mask is None or mask.dtype != torch.bool:
        return mask
    return torch.zeros(mask.shape, dtype=torch.float32).masked_fill_(~mask, float("-inf"))


def install(model: Any) -> None:
    """Make the model use this attention; raise INVALID for one that keeps its own."""
    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, additive_mask)
    model.set_attn_implementation(NAME)
    if model.config.get_text_config()._attn_implementation != NAME:
        raise KvdError(ErrorKind.INVALID, "the model keeps an attention of its own, or has none")
