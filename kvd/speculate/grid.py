"""The fixed grid of verification: which tokens run together, padded to which length.

Numerics depend on the shape of a batch, so every committed token comes from a forward whose place
and shape follow from the prompt's length alone, never from what was found, drafted or accepted.
"""

from collections.abc import Sequence

CHUNK_TOKENS = 64  # Prompt tokens run in pieces of this many, as chunks are stored.
WINDOW_TOKENS = 16  # Generated tokens run in windows of this many, from the prompt's end.
PAD_TOKEN = 0  # Any token: causal attention hides what stands behind.


def usable_chunks(prompt_tokens: int) -> int:
    """Return how many stored chunks a prompt can use: its last token is always run."""
    assert prompt_tokens >= 1
    return (prompt_tokens - 1) // CHUNK_TOKENS


def pieces(prompt_tokens: int, chunks: int) -> list[tuple[int, int]]:
    """Return the half-open token ranges to run behind the first `chunks` chunks; the last is the
    tail, 1 to 64 tokens, whose last logits commit the first token.
    """
    assert 0 <= chunks <= usable_chunks(prompt_tokens)
    begins = range(chunks * CHUNK_TOKENS, prompt_tokens, CHUNK_TOKENS)
    return [(begin, min(begin + CHUNK_TOKENS, prompt_tokens)) for begin in begins]


def window_begin(generated: int) -> int:
    """Return where the window of a generated token begins, counted from the prompt's end."""
    assert generated >= 0
    return generated // WINDOW_TOKENS * WINDOW_TOKENS


def padded(tokens: Sequence[int], length: int) -> list[int]:
    """Return tokens followed by padding up to length."""
    assert 1 <= len(tokens) <= length
    return [*tokens, *[PAD_TOKEN] * (length - len(tokens))]


def capacity_tokens(prompt_tokens: int, new_tokens: int) -> int:
    """Return the positions that a view needs: padded tail and padded last window included."""
    assert prompt_tokens >= 1 and new_tokens >= 1
    tail_end = usable_chunks(prompt_tokens) * CHUNK_TOKENS + CHUNK_TOKENS
    return max(tail_end, prompt_tokens + window_begin(new_tokens - 1) + WINDOW_TOKENS)
