"""A small core for examples: told one event at a time, every invariant checked after each.

Slabs are touched at once. Answers are returned; all effects of the last step lie in `effects`.
"""

import numpy as np

from kvd.clock import NS_PER_S
from kvd.core.effects import (
    Answer,
    CreateSlab,
    Effect,
    Found,
    NotAdmitted,
    Outcome,
    Promise,
    Reserved,
    Sealed,
    Tell,
)
from kvd.core.events import (
    Delivery,
    Event,
    FetchWanted,
    KeyspaceWanted,
    LookupWanted,
    ReleaseWanted,
    ReserveWanted,
    SealWanted,
    SessionOpened,
    SlabTouched,
    Started,
    Ticked,
)
from kvd.core.invariants import check
from kvd.core.quotas import Quotas
from kvd.core.state import CoreConfig, new_state
from kvd.core.step import step
from kvd.errors import ErrorKind, KvdError
from kvd.identity import Keyspace, chain_digests
from kvd.limits import DIGEST_BYTES, PAGE_BYTES, Limits
from kvd.shape import BlockShape
from kvd.types import CLASS_COUNT, Dtype, Lane

CHUNK_TOKENS = 4
SHAPE = BlockShape.of_attention(layers=4, heads=4, width=8, dtype=Dtype.BF16)
KEYSPACE = Keyspace("model", "revision", SHAPE, chunk_tokens=CHUNK_TOKENS)
LANE = Lane()


def chain_of(count: int, text: int = 0) -> bytes:
    """Return the digests of `count` chunks of one of many texts."""
    return chain_digests([text] * (CHUNK_TOKENS * count), CHUNK_TOKENS)


def branch_of(stem: bytes, count: int, text: int) -> bytes:
    """Return a chain that goes on from `stem` with `count` other chunks."""
    tokens = [text] * (CHUNK_TOKENS * count)
    return stem + chain_digests(tokens, CHUNK_TOKENS, after=stem[-DIGEST_BYTES:])


class Scene:
    def __init__(
        self,
        slabs: int = 4,
        slab_pages: int = 16,
        limits: Limits | None = None,
        quotas: Quotas | None = None,
    ) -> None:
        limits = limits or Limits(slab_bytes=slab_pages * PAGE_BYTES)
        config = CoreConfig(slabs * limits.slab_bytes, limits, quotas=quotas or {})
        self.state = new_state(config, epoch=1)
        self.limits, self.now_ns, self._number = limits, 0, 0
        self.effects: list[Effect] = []
        self.seen: list[Effect] = []
        self.tell(Started())

    def tell(self, event: Event) -> list[Effect]:
        """Take in an event, and touch at once what slabs it asks for."""
        self.effects = step(self.state, event, self.now_ns)
        check(self.state)
        self.seen += self.effects
        told = self.effects
        for effect in [e for e in told if isinstance(e, CreateSlab)]:
            self.tell(SlabTouched(effect.slab))
        self.effects = told
        return told

    def wait(self, duration_ns: int = NS_PER_S) -> list[Effect]:
        self.now_ns += duration_ns
        return self.tell(Ticked())

    def number(self) -> int:
        """Return a number that no session or request had before."""
        self._number += 1
        return self._number

    def ask(self, event: Event) -> Outcome:
        """Tell a wish, and return its answer."""
        answers = [e for e in self.tell(event) if isinstance(e, Answer)]
        assert [answer.request for answer in answers] == [event.request]
        return answers[0].outcome

    def join(self, tenant: str = "red", keyspace: Keyspace = KEYSPACE) -> int:
        """Open a session that has the keyspace as handle 1."""
        session = self.number()
        self.tell(SessionOpened(session, tenant))
        self.ask(KeyspaceWanted(self.number(), session, keyspace))
        return session

    def reserve(
        self, session: int, chain: bytes, parent: bytes = b"", pages: int = 1, lane: Lane = LANE
    ) -> Reserved | KvdError:
        sizes = np.full((len(chain) // DIGEST_BYTES, CLASS_COUNT), pages * PAGE_BYTES, np.uint32)
        return self.ask(ReserveWanted(self.number(), session, 1, lane, parent, chain, sizes))

    def seal(
        self, session: int, reservation: int, first: int, count: int, *, last: bool
    ) -> list[int] | KvdError:
        """Seal one page for each strip, and return the states."""
        sizes = np.full((count, CLASS_COUNT), PAGE_BYTES, np.uint32)
        roots = np.arange(count * CLASS_COUNT, dtype=np.uint64).reshape(count, CLASS_COUNT)
        wish = SealWanted(self.number(), session, reservation, first, sizes, roots, 1, last)
        outcome = self.ask(wish)
        return outcome.states.tolist() if isinstance(outcome, Sealed) else outcome

    def put(self, session: int, chain: bytes, pages: int = 1, lane: Lane = LANE) -> NotAdmitted:
        """Reserve and seal all that is admitted; return why not more was."""
        reserved = self.reserve(session, chain, b"", pages, lane)
        assert isinstance(reserved, Reserved), reserved
        if reserved.reservation:
            count = len(chain) // DIGEST_BYTES
            self.seal(session, reserved.reservation, 0, count, last=True)
        return reserved.reason

    def look_up(
        self, session: int, chain: bytes, lanes: tuple[Lane, ...] = (LANE,), *, lease: bool = False
    ) -> Found | KvdError:
        return self.ask(LookupWanted(self.number(), session, 1, lanes, chain, lease))

    def counts(self, session: int, chain: bytes, *lanes: Lane) -> tuple[int, int, int]:
        found = self.look_up(session, chain, lanes or (LANE,))
        assert isinstance(found, Found), found
        return found.counts

    def fetch(
        self,
        session: int,
        chain: bytes,
        delivery: Delivery = Delivery.MAP,
        lease: int = 0,
        class_count: int = CLASS_COUNT,
    ) -> Promise | KvdError:
        """Fetch, and return the promise, or why there is none."""
        wish = FetchWanted(
            self.number(), session, 1, (LANE,), chain, class_count, 0, 0, delivery, 0, lease,
            self.now_ns + self.limits.deadline_ns,
        )  # fmt: skip
        for effect in self.tell(wish):
            match effect:
                case Tell(promise=promise):
                    return promise
                case Answer(outcome=KvdError() as refusal):
                    return refusal
        raise AssertionError("a fetch without promise or refusal")

    def release(self, session: int, lease: int, *corrupt: int) -> Outcome:
        words = np.array(corrupt, np.uint32)
        return self.ask(ReleaseWanted(self.number(), session, lease, words))


def kind_of(outcome: object) -> ErrorKind | None:
    """Return the kind of a refusal, or None of anything else."""
    return outcome.kind if isinstance(outcome, KvdError) else None
