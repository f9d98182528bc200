"""States of tokens: drafts may be taken back, committed ones never."""

from kvd.speculate.outcome import Choice, Finish, Listener, Options
from kvd.speculate.text import Text


class Ticks:
    def __init__(self) -> None:
        self.now = 0

    def now_ns(self) -> int:
        self.now += 1
        return self.now


def made(new_tokens: int = 8, stop: frozenset[int] = frozenset()) -> tuple[Text, list[tuple]]:
    said: list[tuple] = []
    listener = Listener(
        committed=lambda index, token: said.append(("commit", index, token)),
        drafted=lambda index, token: said.append(("draft", index, token)),
        retracted=lambda index: said.append(("retract", index)),
    )
    return Text(Options(new_tokens, stop), listener, Ticks(), begin_ns=0), said


def choices(*tokens: int, margin: float = 1.0) -> list[Choice]:
    return [Choice(token, margin) for token in tokens]


def test_a_contradicted_draft_voids_those_behind_it_and_says_so() -> None:
    text, said = made()
    for token in (5, 6, 7):
        text.draft_ahead(token)
    text.commit(choices(5))
    assert text.drafts == [6, 7]
    text.commit(choices(9))
    assert text.drafts == []
    assert said[3:] == [("commit", 0, 5), ("retract", 1), ("commit", 1, 9)]
    assert (text.counts.drafted_ahead, text.counts.accepted_ahead) == (3, 1)


def test_drafts_made_here_are_counted_apart() -> None:
    text, _ = made()
    text.draft_ahead(5)
    text.commit(choices(5))
    text.draft([6, 7])
    text.commit(choices(6, 7, 8))
    counts = text.counts
    assert (counts.accepted_ahead, counts.drafted, counts.accepted) == (1, 2, 2)
    assert text.tokens == [5, 6, 7, 8]


def test_a_stop_token_inside_an_accepted_run_ends_the_text_there() -> None:
    text, said = made(stop=frozenset({7}))
    for token in (5, 7, 8):
        text.draft_ahead(token)
    text.commit(choices(5, 7, 8))
    assert (text.tokens, text.finish) == ([5, 7], Finish.STOP)
    assert said[-1] == ("retract", 2)


def test_the_limit_inside_an_accepted_run_ends_the_text_there() -> None:
    text, _ = made(new_tokens=2)
    text.commit(choices(5, 6, 7))
    assert (text.tokens, text.finish, text.left) == ([5, 6], Finish.LENGTH, 0)


def test_near_ties_are_counted_over_committed_tokens_only() -> None:
    text, _ = made(new_tokens=2)
    text.commit(choices(5, margin=0.09) + choices(6, 7, margin=0.0))
    assert text.counts.near_ties == 2
    assert text.commit_times_ns == sorted(text.commit_times_ns)
