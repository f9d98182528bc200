"""The grid: which tokens run together follows from the prompt's length alone."""

import pytest

from kvd.speculate.grid import (
    CHUNK_TOKENS,
    WINDOW_TOKENS,
    capacity_tokens,
    padded,
    pieces,
    usable_chunks,
    window_begin,
)

CHUNKS = {1: 0, 63: 0, 64: 0, 65: 1, 128: 1, 129: 2, 4001: 62}
LENGTHS = tuple(CHUNKS)


@pytest.mark.parametrize(("tokens", "chunks"), list(CHUNKS.items()))
def test_the_last_prompt_token_is_always_run(tokens: int, chunks: int) -> None:
    assert usable_chunks(tokens) == chunks


@pytest.mark.parametrize("tokens", LENGTHS)
def test_pieces_of_a_shorter_prefix_end_with_those_of_a_longer_one(tokens: int) -> None:
    everything = pieces(tokens, 0)
    assert [begin for begin, _ in everything] == list(range(0, tokens, CHUNK_TOKENS))
    assert everything[-1][1] == tokens
    for chunks in range(usable_chunks(tokens) + 1):
        assert pieces(tokens, chunks) == everything[chunks:]


@pytest.mark.parametrize("tokens", LENGTHS)
@pytest.mark.parametrize("new", (1, 2, 16, 17, 64))
def test_capacity_holds_the_padded_tail_and_every_padded_window(tokens: int, new: int) -> None:
    capacity = capacity_tokens(tokens, new)
    assert capacity >= pieces(tokens, 0)[-1][0] + CHUNK_TOKENS
    assert capacity >= tokens + window_begin(new - 1) + WINDOW_TOKENS


def test_windows_are_counted_from_the_end_of_the_prompt() -> None:
    assert [window_begin(index) for index in (0, 15, 16, 31, 32)] == [0, 0, 16, 16, 32]


def test_padding_stands_behind_the_tokens() -> None:
    assert padded([7, 8], 4) == [7, 8, 0, 0]
    assert padded([7], 1) == [7]
