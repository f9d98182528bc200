"""Plain caches to compare with: BF16 as it is, asymmetric 8 and 4 bit with 2 x BF16 per 64 values.

Each is a raw INT8 tensor in a keyspace of its own, so that it travels by the same byte delivery.
K is grouped per channel over 64 tokens, V per token over its 64 channels.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

# Before torch loads OpenMP: waiting threads that spin take the cores from codec and daemon.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch  # noqa: E402

from kvd.identity import Keyspace  # noqa: E402
from kvd.shape import BlockShape  # noqa: E402
from kvd.types import Dtype  # noqa: E402

GROUP = 64
_META_BYTES = 4  # Lowest and highest value of a group, BF16 each.


@dataclass(frozen=True, slots=True)
class Plain:
    """One width of values: 16 (BF16), 8 or 4 bits."""

    name: str
    bits: int

    @property
    def width_bytes(self) -> int:
        """Return the bytes of 64 values."""
        return GROUP * self.bits // 8 + (_META_BYTES if self.bits < 16 else 0)

    def keyspace(self, layers: int, heads: int) -> Keyspace:
        """Return where such caches are stored."""
        shape = BlockShape.of_attention(layers, heads, self.width_bytes, Dtype.INT8)
        return Keyspace(model=f"plain {self.name}", weight_revision="bench", shape=shape)


PLAIN = (Plain("BF16", 16), Plain("8.5 bit", 8), Plain("4.5 bit", 4))


def encode(plain: Plain, tensors: Sequence[Sequence[torch.Tensor]]) -> list[list[np.ndarray]]:
    """Return per layer K and V, BF16 [heads, tokens, 64], as int8 [heads, tokens, width]."""
    return [
        [_encode(plain, tensor, per_channel=index == 0) for index, tensor in enumerate(layer)]
        for layer in tensors
    ]


def _encode(plain: Plain, tensor: torch.Tensor, per_channel: bool) -> np.ndarray:
    heads, tokens, width = tensor.shape
    assert width == GROUP and tokens % GROUP == 0
    if plain.bits == 16:
        return tensor.contiguous().view(torch.int8).reshape(heads, tokens, -1).numpy()
    values = tensor.float().reshape(heads, tokens // GROUP, GROUP, GROUP)  # Chunk, token, channel.
    axis = 2 if per_channel else 3
    low, high = values.amin(axis), values.amax(axis)
    step = ((high - low) / (2**plain.bits - 1)).clamp_min(1e-20).unsqueeze(axis)
    codes = ((values - low.unsqueeze(axis)) / step).round().to(torch.uint8).numpy()
    if plain.bits == 4:
        codes = codes[..., :32] | codes[..., 32:] << 4
    # Groups of a chunk are as many as its tokens: group i's limits stand behind token i's codes.
    limits = torch.stack([low, high], dim=-1).to(torch.bfloat16).view(torch.uint8).numpy()
    whole = np.concatenate([codes, limits], axis=-1)
    return whole.reshape(heads, tokens, plain.width_bytes).view(np.int8)


class PlainTargets:
    """Where a plain cache is decoded to: the first tokens of a view's fp32 buffers, by layer."""

    def __init__(self, plain: Plain, buffers: Sequence[Sequence[np.ndarray]]) -> None:
        """`buffers[layer]` are K and V, fp32 [heads, capacity, 64]."""
        heads, capacity, _ = buffers[0][0].shape
        self._plain = plain
        self._buffers = buffers
        self._staging = [np.zeros((heads, capacity, plain.width_bytes), np.int8) for _ in range(2)]
        self._codes = np.zeros((heads, capacity, GROUP), np.uint8)

    def targets(self, layer: int) -> list[np.ndarray]:
        """Return the staging tensors, K then V."""
        return self._staging

    def loaded(self, layer: int, tokens: int) -> None:
        """Decode the first `tokens` tokens of the staging tensors into the layer's buffers."""
        for index, (buffer, staged) in enumerate(
            zip(self._buffers[layer], self._staging, strict=True)
        ):
            target, raw = buffer[:, :tokens], staged[:, :tokens].view(np.uint8)
            if self._plain.bits == 16:
                widen(raw.view(np.uint16), target)
            else:
                self._dequantise(raw, target, per_channel=index == 0)

    def _dequantise(self, raw: np.ndarray, target: np.ndarray, per_channel: bool) -> None:
        heads, tokens, _ = raw.shape
        packed = raw[..., :-_META_BYTES]
        codes = packed
        if self._plain.bits == 4:
            codes = self._codes[:, :tokens]
            np.bitwise_and(packed, 15, out=codes[..., :32])
            np.right_shift(packed, 4, out=codes[..., 32:])
        limits = np.ascontiguousarray(raw[..., -_META_BYTES:]).view(np.uint16)
        wide = np.empty(limits.shape, np.float32)
        widen(limits, wide)
        low, step = wide[..., 0], (wide[..., 1] - wide[..., 0]) / (2**self._plain.bits - 1)
        grouped = (heads, tokens // GROUP, GROUP, GROUP)
        shape = (heads, tokens // GROUP, 1, GROUP) if per_channel else (*grouped[:3], 1)
        out = target.reshape(grouped)
        np.multiply(codes.reshape(grouped), step.reshape(shape), out=out, dtype=np.float32)
        out += low.reshape(shape)


def widen(bits: np.ndarray, target: np.ndarray) -> None:
    """Write BF16 bits u16 as fp32 values."""
    words = target.view(np.uint32)
    np.left_shift(bits, 16, out=words, dtype=np.uint32, casting="unsafe")
