"""One session that says anything, on a core of its own, and what a decent client would say.

Fields are drawn from values that sit at some edge, over a session that really stored something.
"""

import random
from collections import Counter

import numpy as np
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from kvd.clock import NS_PER_MS
from kvd.core.effects import Answer, CreateSlab, Deliver, Found, Reserved, Tell, TellReady
from kvd.core.events import (
    DeliveryEnded,
    Event,
    ProcessGone,
    SessionEnded,
    SessionOpened,
    SlabDetached,
    SlabTouched,
    Started,
    Ticked,
)
from kvd.core.state import CoreConfig, new_state
from kvd.core.step import step
from kvd.errors import ErrorKind, KvdError
from kvd.limits import MIB, Limits, squeeze
from kvd.rpc.replies import promise_of, ready_of, reply_of
from kvd.rpc.wishes import WISHES, Asker, parse_message, wish_of
from kvd.v1 import kvd_pb2 as pb
from kvd.wire import FrameKind
from tests.e2e.rawclient import chain_of, keyspace_message, small_keyspace

NUMBERS = [0, 1, 2, 3, 4, 5, 7, 255, 256, 65_535, 65_536, 1 << 24, (1 << 31) - 1, 1 << 31]
WIDE = [*NUMBERS, (1 << 32) - 1, 1 << 32, (1 << 63) - 1, 1 << 63, (1 << 64) - 1]


class Hostile:
    """One session that says anything, on a core of its own."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.limits = squeeze(Limits(slab_bytes=MIB), seed)
        self.state = new_state(CoreConfig(3 * MIB, self.limits), seed + 1)
        self.now_ns = 0
        self.request = 0
        self.kinds: dict[int, FrameKind] = {}
        self.take_later: SlabTouched | None = None
        self.delivering: list[int] = []
        self.granted: Counter[str] = Counter()
        self.numbers = {Reserved: 1, Found: 1}  # Of what was granted last.
        self.answers: list[ErrorKind | None] = []
        self.take(Started())
        self.open = 1
        self.take(SessionOpened(1, "t"))

    def take(self, event) -> None:
        self.now_ns += self.rng.choice([0, 1000, NS_PER_MS, 100 * NS_PER_MS])
        for effect in step(self.state, event, self.now_ns):
            match effect:
                case CreateSlab(slab):
                    self.take_later = SlabTouched(slab)
                case Deliver(request):
                    self.delivering.append(request)
                case Answer(request, _, outcome):
                    reply_of(self.kinds[request], outcome).SerializeToString()
                    kind = outcome.kind if isinstance(outcome, KvdError) else None
                    self.answers.append(kind)
                    self.granted[type(outcome).__name__] += 1
                    if isinstance(outcome, Reserved) and outcome.reservation:
                        self.numbers[Reserved] = outcome.reservation
                    if isinstance(outcome, Found) and outcome.lease:
                        self.numbers[Found] = outcome.lease
                case Tell(_, _, promise):
                    promise_of(promise).SerializeToString()
                case TellReady(_, _, ready):
                    ready_of(ready).SerializeToString()
        later, self.take_later = self.take_later, None
        if later is not None:
            self.take(later)

    def say(self, kind: FrameKind, message: Message) -> None:
        """Send a message as rpc would: over its bytes, refused or posted."""
        self.say_bytes(kind, message.SerializeToString())

    def say_bytes(self, kind: FrameKind, body: bytes) -> Event | None:
        """Send the body of a frame; return the wish that it is, None for one that is refused."""
        self.request += 1
        self.kinds[self.request] = kind
        asker = Asker(self.request, self.open, self.now_ns, self.limits)
        try:
            wish = wish_of(kind, parse_message(kind, body), asker)
        except KvdError as refused:
            self.answers.append(refused.kind)
            return None
        before = len(self.answers)
        self.take(wish)
        assert len(self.answers) - before <= 1 or self.delivering
        return wish

    def message(self, kind: FrameKind) -> Message:
        """Return what a decent client might send, with an edge here and there."""
        message = self.decent(kind)
        if self.rng.random() < 0.5:
            self.spoil(message, self.rng.choice([0.05, 0.2, 0.9]))
        return message

    def decent(self, kind: FrameKind) -> Message:
        rng, lane = self.rng, pb.Lane()
        count = rng.choice([1, 2, 3, 6])
        chain = chain_of(count, rng.choice([0, 0, 400, 800]))
        match kind:
            case FrameKind.REGISTER_KEYSPACE:
                return keyspace_message(small_keyspace(rng.choice("mno")))
            case FrameKind.RESERVE:
                sizes = np.full(3 * count, rng.choice([4096, 8192, 65536]), "<u4").tobytes()
                return pb.ReserveRequest(keyspace=1, lane=lane, chain=chain, sizes=sizes)
            case FrameKind.SEAL:
                sizes = np.full(3 * count, 4096, "<u4").tobytes()
                return pb.SealRequest(
                    reservation=self.numbers[Reserved], sizes=sizes, roots=bytes(24 * count),
                    profile=1, last=rng.random() < 0.5,
                )  # fmt: skip
            case FrameKind.LOOKUP:
                return pb.LookupRequest(
                    keyspace=1, lanes=[lane], chain=chain, lease=rng.random() < 0.5
                )
            case FrameKind.PREFETCH:
                return pb.PrefetchRequest(
                    keyspace=1, lanes=[lane], chain=chain, class_count=rng.choice([1, 2, 3])
                )
            case FrameKind.CLEAR:
                return pb.ClearRequest(keyspace=rng.choice([1, 2, 2, 2, 2]))
            case FrameKind.FETCH:
                return pb.FetchRequest(
                    keyspace=1, lanes=[lane], chain=chain, class_count=rng.choice([1, 2, 3]),
                    delivery=rng.choice([0, 1]), lease=rng.choice([0, self.numbers[Found]]),
                )  # fmt: skip
            case FrameKind.ABORT:
                return pb.AbortRequest(reservation=self.numbers[Reserved])
        return WISHES[kind][0](lease=self.numbers[Found])

    def spoil(self, message: Message, share: float) -> None:
        """Put edges in place of a share of the fields."""
        for field in message.DESCRIPTOR.fields:
            if self.rng.random() > share:
                continue
            if field.is_repeated:
                for _ in range(self.rng.choice([0, 1, 2])):
                    self.spoil(getattr(message, field.name).add(), share)
            elif field.type == FieldDescriptor.TYPE_MESSAGE:
                self.spoil(getattr(message, field.name), share)
            else:
                setattr(message, field.name, self.value(field))

    def value(self, field: FieldDescriptor):
        rng = self.rng
        match field.type:
            case FieldDescriptor.TYPE_BOOL:
                return rng.random() < 0.5
            case FieldDescriptor.TYPE_STRING:
                return rng.choice(["", "m", "kvd.chain.v0", "x" * 1025, "\0"])
            case FieldDescriptor.TYPE_BYTES:
                return self.bytes_of(field.name)
            case FieldDescriptor.TYPE_ENUM:
                return rng.choice([0, 0, 1, 1, 2, 3, 77])
            case FieldDescriptor.TYPE_UINT64:
                return rng.choice([1, 1, 2, 3, *WIDE])
        return rng.choice([0, 1, 1, 2, *(n for n in WIDE if n < 1 << 32)])

    def bytes_of(self, name: str) -> bytes:
        rng = self.rng
        count = rng.choice([0, 1, 2, 3, 5])
        match name:
            case "chain":
                start = rng.choice([0, 0, 0, 4, 1000])
                return chain_of(count, start) + b"x" * rng.choice([0, 0, 0, 0, 1])
            case "parent":
                return rng.choice([b"", b"", chain_of(1), chain_of(2)[32:], bytes(32), b"short"])
            case "sizes":
                sizes = [
                    rng.choice([4096, 4096, 8192, 0, 1, MIB, 1 << 31]) for _ in range(3 * count)
                ]
                return np.array(sizes, "<u4").tobytes()
            case "roots":
                return rng.randbytes(24 * count)
        return rng.choice([b"", bytes(8), rng.randbytes(4), rng.randbytes(12), b"odd"])

    def disturb(self) -> None:
        """Let something else happen than a message."""
        match self.rng.randrange(5):
            case 0:
                self.take(Ticked())
            case 1:
                self.take(SlabDetached(self.open, self.rng.choice([0, 1, 2, 99])))
            case 2 if self.delivering:
                self.take(DeliveryEnded(self.delivering.pop(), 0, None))
            case 3 if self.rng.random() < 0.02:
                self.take(SessionEnded(self.open))
                self.take(ProcessGone(self.open))  # Else what it could write is lost for good.
                self.open += 1
                self.take(SessionOpened(self.open, "t"))
