"""KV caches of a transformers model on preallocated buffers: fp32 in form, BF16 in value.

Owns rows of keys and values; knows nothing of kvd's bytes.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from transformers.cache_utils import Cache, CacheLayerMixin

from kvd.errors import ErrorKind, KvdError
from kvd.shape import BlockShape
from kvd.speculate.engine import Ready


class HfView:
    """One sequence's cache of up to `capacity` tokens; a `kvd.speculate` View."""

    def __init__(self, shape: BlockShape, capacity: int) -> None:
        [group] = shape.groups
        k, v = group.tensors
        self.capacity = capacity
        self._length = 0
        self.keys = [_touched(k.heads, capacity, k.width) for _ in range(group.layers)]
        self.values = [_touched(v.heads, capacity, v.width) for _ in range(group.layers)]
        # Decoded layers pass through one staging pair each: small enough to stay in the caches.
        self._staging = [
            torch.zeros(t.heads, capacity, t.width, dtype=torch.bfloat16) for t in group.tensors
        ]
        self._ready: Ready | None = None
        self._written: set[int] = set()  # Layers of the forward that runs, or ran last.
        self.cache = Cache(layers=[_Layer(self, layer) for layer in range(group.layers)])

    @property
    def length(self) -> int:
        return self._length

    def truncate(self, length: int) -> None:
        """Forget the tokens from `length` on."""
        assert 0 <= length <= self._length, (length, self._length)
        self._length = length

    def extend_prefix(self, length: int) -> None:
        """Declare the first `length` tokens valid."""
        assert self._length <= length <= self.capacity, (length, self._length, self.capacity)
        self._length = length

    def targets(self, layer: int) -> Sequence[torch.Tensor]:
        """Return the staging tensors, BF16 [heads, capacity, width], K then V."""
        return self._staging

    def loaded(self, layer: int, tokens: int) -> None:
        """Widen the first `tokens` tokens of the staging tensors into the layer's buffers."""
        for buffer, staged in zip(self._pair(layer), self._staging, strict=True):
            words = staged[:, :tokens].view(torch.int16).numpy().view(np.uint16)
            target = buffer[0, :, :tokens].numpy().view(np.uint32)
            # On one core: a torch copy would bring threads of its own beside those of the forward.
            np.left_shift(words, 16, out=target, dtype=np.uint32, casting="unsafe")

    def tensors(self, tokens: int) -> list[list[torch.Tensor]]:
        """Return per layer K and V of the first `tokens` tokens as BF16 [heads, tokens, width]."""
        assert tokens <= self._length
        return [
            [buffer[0, :, :tokens].to(torch.bfloat16) for buffer in self._pair(layer)]
            for layer in range(len(self.keys))
        ]

    def enter(self, begin: int, tokens: int, ready: Ready | None) -> None:
        """Place the next forward, `tokens` tokens from `begin` on; `ready` waits for layers."""
        assert begin <= self._length and begin + tokens <= self.capacity, (begin, tokens)
        self._length = begin
        self._ready = ready
        self._written.clear()

    def leave(self, tokens: int) -> None:
        """Make the first `tokens` tokens of the forward that has ended valid.

        Raise INVALID when it left out a layer: its rows are another forward's (I13).
        """
        if len(self._written) < len(self.keys):
            missing = sorted(set(range(len(self.keys))) - self._written)
            raise KvdError(ErrorKind.INVALID, f"layers {missing} have no KV of their own")
        self._length += tokens
        self._ready = None

    def write(
        self, layer: int, keys: torch.Tensor, values: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Round K and V [1, heads, tokens, width] to BF16 behind the length; return the layer
        with them. Raise INVALID for others than the shape's.
        """
        for buffer, new in zip(self._pair(layer), (keys, values), strict=True):
            heads, width = buffer.shape[1], buffer.shape[3]
            if new.shape != (1, heads, keys.shape[2], width):
                raise KvdError(
                    ErrorKind.INVALID,
                    f"layer {layer} has KV of {list(new.shape)}, not of {heads} heads of {width}",
                )
        self._written.add(layer)
        if self._ready is not None:
            self._ready(layer)
        end = self._length + keys.shape[-2]
        for buffer, new in zip(self._pair(layer), (keys, values), strict=True):
            buffer[:, :, self._length : end] = new.to(torch.bfloat16)
        return self.keys[layer][:, :, :end], self.values[layer][:, :, :end]

    def _pair(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.keys[layer], self.values[layer]


def _touched(heads: int, capacity: int, width: int) -> torch.Tensor:
    """Return a zeroed buffer whose pages are resident: fresh memory is slow when first touched."""
    return torch.empty(1, heads, capacity, width, dtype=torch.float32).fill_(0)


class _Layer(CacheLayerMixin):
    """What transformers asks of one layer of a cache, answered from the view's buffers."""

    is_sliding = False

    def __init__(self, view: HfView, layer: int) -> None:
        super().__init__()
        self._view = view
        self._layer = layer
        self.is_initialized = True

    def lazy_initialization(self, *_: Any) -> None:
        pass

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return self._view.write(self._layer, key_states, value_states)

    def get_mask_sizes(self, query_length: Any) -> tuple[int, int]:
        # Before 5.3 the argument is the positions of the queries, not their number.
        count = query_length if isinstance(query_length, int) else len(query_length)
        return self._view.length + count, 0

    def get_seq_length(self, *_: Any) -> int:
        return self._view.length

    def get_max_length(self) -> int:
        return self._view.capacity

    get_max_cache_shape = get_max_length  # Its name before 5.20 or so.
