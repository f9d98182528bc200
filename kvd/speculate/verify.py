"""The verifying routine: the only source of committed tokens, always from the exact view.

Reference decoding is this routine with nothing drafted.
"""

from collections.abc import Sequence

import torch

from kvd.speculate.engine import Batch, Engine, Ready, View
from kvd.speculate.grid import CHUNK_TOKENS, WINDOW_TOKENS, padded, pieces, window_begin
from kvd.speculate.outcome import Choice

_ALL_ROWS = tuple(range(WINDOW_TOKENS))


def choose(logits: torch.Tensor) -> Choice:
    """Return the greedy choice of logits [vocabulary]; the lowest id wins ties."""
    assert logits.dtype == torch.float32 and logits.ndim == 1
    best, second = torch.topk(logits, 2).values.tolist()
    return Choice(int(torch.argmax(logits)), best - second)  # argmax names the first maximum.


def run_prompt(
    engine: Engine, view: View, prompt: Sequence[int], chunks: int, ready: Ready | None
) -> Choice:
    """Run the prompt behind its first `chunks` chunks, 64 tokens at a time; return what follows it.

    Raise Unready from `ready`; then the view holds nothing but what was loaded into it.
    """
    view.truncate(0)
    view.extend_prefix(chunks * CHUNK_TOKENS)
    for begin, end in pieces(len(prompt), chunks):
        batch = Batch(prompt[begin:end], begin, CHUNK_TOKENS, (end - begin - 1,))
        logits = engine.forward(view, batch, ready)
        ready = None  # A forward has passed all layers.
    return choose(logits[0])


def run_window(
    engine: Engine, view: View, prompt_tokens: int, committed: Sequence[int], drafts: Sequence[int]
) -> list[Choice]:
    """Run the window of the last committed token from its start, padded to full length.

    `drafts` follow the committed tokens. Return the tokens this commits, one at least: the choice
    after each token up to the first draft that differs from the choice before it.
    """
    begin = window_begin(len(committed) - 1)
    known = list(committed[begin:])
    proposed = list(drafts[: WINDOW_TOKENS - len(known)])
    # How many tokens are known must not show in the batch's numbers: padding counts as tokens.
    tokens = padded(known + proposed, WINDOW_TOKENS)
    batch = Batch(tokens, prompt_tokens + begin, WINDOW_TOKENS, _ALL_ROWS)
    logits = engine.forward(view, batch)
    choices = []
    for row in range(len(known) - 1, len(known) + len(proposed)):
        choices.append(choose(logits[row]))
        following = row + 1 - len(known)
        if following == len(proposed) or proposed[following] != choices[-1].token:
            break
    # Rows behind the last confirmed token were run with rejected drafts or padding.
    view.truncate(prompt_tokens + begin + len(known) + len(choices) - 1)
    return choices
