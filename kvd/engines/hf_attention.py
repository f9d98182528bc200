"""sdpa over grouped KV heads, registered with transformers as `kvd`.

The stock path repeats each KV head for its queries whenever there is a mask: for a few new tokens
behind a long cache that copies the whole cache several times a layer.
"""

from typing import Any

import torch
import torch.nn.functional as F
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

NAME = "kvd"
TOKENS = "kvd_tokens"  # The model's keyword for how many rows of a batch are not padding.


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

    Rows of padding are left zero: nobody looks at what becomes of them.
    """
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
    return torch.zeros(mask.shape).masked_fill_(~mask, float("-inf"))


def install(model: Any) -> None:
    """Make the model use this attention."""
    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, additive_mask)
    model.set_attn_implementation(NAME)
