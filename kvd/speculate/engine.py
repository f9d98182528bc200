"""What speculation asks of an engine: views (KV caches) and forwards. No engine is named."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

Ready = Callable[[int], None]
"""Called by a forward with a layer's index before it reads that layer's prefix; may block; raises
`gate.Unready` when the layer will not come, which the forward lets pass."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Tokens at positions from `begin` on, run as `length` of them: the engine pads the rest.

    `rows` are the tokens whose logits are wanted.
    """

    tokens: Sequence[int]
    begin: int
    length: int
    rows: Sequence[int]

    def __post_init__(self) -> None:
        assert 1 <= len(self.tokens) <= self.length and self.begin >= 0
        assert all(0 <= row < len(self.tokens) for row in self.rows)


class View(Protocol):
    """A KV cache of one sequence: preallocated, touched, and BF16 in value.

    Rows at and behind `length` are scratch. What a draft writes is tainted (I13): it stays in rows
    that a verifying forward rewrites before any committed token attends to them.
    """

    @property
    def length(self) -> int:
        """Return how many leading tokens are valid."""
        ...

    def truncate(self, length: int) -> None:
        """Forget the tokens from `length` on."""
        ...

    def extend_prefix(self, length: int) -> None:
        """Declare the first `length` tokens valid: every layer of them was loaded, or will be by
        the time that a forward's `Ready` returns for it.
        """
        ...

    def targets(self, layer: int) -> Sequence[torch.Tensor]:
        """Return where to decode a layer: per tensor [heads, tokens, width] of the keyspace's
        dtype, token 0 first. One layer at a time, by one thread.
        """
        ...

    def loaded(self, layer: int, tokens: int) -> None:
        """Take over the first `tokens` tokens of the layer's targets."""
        ...


class Engine(Protocol):
    @property
    def layers(self) -> int: ...

    def forward(self, view: View, batch: Batch, ready: Ready | None = None) -> torch.Tensor:
        """Run a batch that begins within the view or at its end; the view's length becomes the
        end of its tokens. Return fp32 logits [len(rows), vocabulary].

        Bits depend on the tokens up to the row, on what the view holds before the batch, and on
        the numbers in the batch: begin, length, how many tokens and rows. Nothing else counts.
        """
        ...
