"""What the verbs of one space share: which keyspace and lane, over which link; their arguments."""

from dataclasses import dataclass

from kvd.client.held import HeldLeases
from kvd.client.link import Link
from kvd.client.mapping import Pool
from kvd.client.outcomes import Delivery, Reason, reason_of
from kvd.codec import CodecProfile
from kvd.errors import ErrorKind, KvdError
from kvd.identity import Keyspace, chunk_key
from kvd.limits import DIGEST_BYTES, Limits
from kvd.shape import CellGrid
from kvd.types import CLASS_COUNT, Lane

_WAY_SECONDS = 0.05  # Of an answer, from the daemon to the caller, when both are busy.


@dataclass(frozen=True, slots=True)
class Scope:
    link: Link
    pool: Pool
    held: HeldLeases
    keyspace: Keyspace
    number: int  # The client's own of the keyspace.
    lane: Lane
    grid: CellGrid
    profile: CodecProfile
    deadline_s: float

    def missed(self, error: KvdError) -> Reason:
        """Count a miss and return its reason; raise the caller's own mistakes."""
        reason = reason_of(error)
        if error.kind == ErrorKind.UNAVAILABLE and not self.link.connected:
            reason = Reason.DISCONNECTED
        self.link.counters.miss(reason)
        return reason

    def deadline(self, deadline_s: float | None) -> float:
        """Return the seconds that a verb has."""
        chosen = self.deadline_s if deadline_s is None else deadline_s
        if not chosen > 0:  # So that NaN, which no timer ends by, is refused too.
            raise invalid(f"deadline_s is {chosen}, it must be above 0")
        return min(chosen, Limits().deadline_ns_max / 1e9)


@dataclass(frozen=True, slots=True)
class Wish:
    """What a fetch asks for; `layers` is (begin, end), `lease` one that a lookup held, or 0."""

    chain: bytes
    class_count: int
    delivery: Delivery
    rate_bits: int
    deadline_s: float
    lease: int
    layers: tuple[int, int]

    @property
    def chunk_count(self) -> int:
        return len(self.chain) // DIGEST_BYTES


def told_ms(left_s: float) -> int:
    """Return the deadline to state for an answer that may come as late as that, yet in time."""
    return max(1, int((left_s - min(_WAY_SECONDS, left_s / 10)) * 1000))


def chunk_count(chain: bytes) -> int:
    """Return the number of chunks of a chain; raise INVALID for what is no chain."""
    if not isinstance(chain, bytes):
        raise invalid(f"chain is a {type(chain).__name__}, it must be bytes")
    count, rest = divmod(len(chain), DIGEST_BYTES)
    limit = Limits().chunks_per_request_max
    if rest or count == 0:
        raise invalid(f"chain has {len(chain)} bytes, it must be one or more times {DIGEST_BYTES}")
    if count > limit:
        raise invalid(f"chain has {count} chunks, the limit chunks_per_request_max is {limit}")
    return count


def check_class_count(class_count: int) -> None:
    """Raise INVALID for what is no number of leading classes."""
    if not 1 <= class_count <= CLASS_COUNT:
        raise invalid(f"class_count is {class_count}, allowed are 1 to {CLASS_COUNT}")


def check_text(text: object, what: str) -> None:
    """Raise INVALID for what no message can carry as text: a bug of the caller, told to him."""
    if not isinstance(text, str):
        raise invalid(f"{what} is a {type(text).__name__}, it must be text")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise invalid(f"{what} is no text that UTF-8 has: {error.reason}") from None


def chunk_keys(keyspace: bytes, chain: bytes) -> list[bytes]:
    """Return the key of every chunk of a chain."""
    starts = range(0, len(chain), DIGEST_BYTES)
    return [chunk_key(keyspace, chain[at : at + DIGEST_BYTES]) for at in starts]


def invalid(message: str) -> KvdError:
    return KvdError(ErrorKind.INVALID, message)
