"""What speculation asks of an engine: views (KV caches) and forwards. No engine is named."""

from collections.abc import Callable, Sequence
from typing import Protocol

import torch

Ready = Callable[[int], None]
"""Called by a forward with a layer's index before it reads that layer's prefix; may block; raises
`gate.Unready` when the layer will not come, which the forward lets pass."""


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

    def forward(
        self,
        view: View,
        tokens: Sequence[int],
        begin: int,
        rows: Sequence[int],
        ready: Ready | None = None,
    ) -> torch.Tensor:
        """Run tokens at positions from `begin` on, `begin <= view.length`, which becomes
        `begin + len(tokens)`; return fp32 logits [len(rows), vocabulary] of those tokens.

        The same tokens, begin and number of rows give the same bits, and a row's bits do not depend
        on the tokens behind it.
        """
        ...
