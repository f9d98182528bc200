"""What generation is asked and what it answers: options, callbacks, counts and times."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

NEAR_TIE_LOGITS = 0.1  # Two best logits closer than this: another kernel may choose otherwise.


class Finish(StrEnum):
    LENGTH = "length"
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class Options:
    """`stop_tokens` end the text and are part of it."""

    new_tokens: int = 64
    stop_tokens: frozenset[int] = frozenset()
    draft: bool = True


@dataclass(frozen=True, slots=True)
class Listener:
    """Callbacks with (index of the generated token, token), from the generating thread.

    Who takes drafts opts in to retraction: `retracted(index)` voids the drafts from index on.
    """

    committed: Callable[[int, int], None] | None = None
    drafted: Callable[[int, int], None] | None = None
    retracted: Callable[[int], None] | None = None


@dataclass(frozen=True, slots=True)
class Choice:
    """A greedy choice and how far the second best logit was behind it."""

    token: int
    margin: float


@dataclass(slots=True)
class Counts:
    """`ahead` drafts were made from lossy planes before the exact cache, the others on it."""

    drafted_ahead: int = 0
    accepted_ahead: int = 0
    drafted: int = 0
    accepted: int = 0
    near_ties: int = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """Committed tokens; times in nanoseconds from the start of the clock, one for each token.

    `found` chunks and `class_bytes` were promised per class, the tokens stand on `exact_chunks` of
    them, and `missing_chunks` were recomputed; `upgraded`: drafting went over to 8 planes; `fault`
    is what went wrong in kvd, which cost time only.
    """

    tokens: tuple[int, ...]
    finish: Finish
    commit_times_ns: tuple[int, ...]
    draft_times_ns: tuple[int, ...] = ()
    drafts_ahead: tuple[int, ...] = ()
    found: tuple[int, int, int] = (0, 0, 0)
    exact_chunks: int = 0
    missing_chunks: int = 0
    delivered_bytes: int = 0
    class_bytes: tuple[int, int, int] = (0, 0, 0)
    upgraded: bool = False
    counts: Counts = field(default_factory=Counts)
    fault: BaseException | None = None

    @property
    def near_tie_share(self) -> float:
        return self.counts.near_ties / len(self.tokens)

    @property
    def first_commit_ns(self) -> int:
        return self.commit_times_ns[0]

    @property
    def first_draft_ns(self) -> int | None:
        """Return when the first draft was there; None when nothing was drafted ahead."""
        return self.draft_times_ns[0] if self.draft_times_ns else None
