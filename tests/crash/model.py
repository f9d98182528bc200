"""What was put, and what must, may and must not be found of it.

Every put of a chunk has values of its own, a *version*, so that a mix of two is not equal to any.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import numpy as np

from kvd.client import EXACT, BlockShape, Cleared, Client, Dtype, Keyspace, Reason, Stored
from kvd.client.fetch import Fetch
from kvd.client.space import Space
from kvd.codec import PLANES, PROFILE_DEFAULT, cell_specs
from kvd.codec.reference import decode_cell, encode_cell
from kvd.limits import DIGEST_BYTES
from kvd.shape import cell_grid
from kvd.types import CLASS_COUNT, Lane
from tests.crash.drops import CONDEMNED, Drop, read_drops

LAYERS, HEADS, WIDTH, CHUNK_TOKENS = 2, 1, 64, 16
ALL = (0, LAYERS)
SHAPE = BlockShape.of_attention(LAYERS, HEADS, WIDTH, Dtype.BF16)
PLANES_BY_CLASSES = (0, 4, PLANES, EXACT)
KEPT = Keyspace("crash", "kept", SHAPE, chunk_tokens=CHUNK_TOKENS)
CLEARED = Keyspace("crash", "cleared", SHAPE, chunk_tokens=CHUNK_TOKENS)


@dataclass(slots=True)
class Chunk:
    """`classes` must be found, of one of `versions`; put at `since_ns` at the latest."""

    versions: set[int] = field(default_factory=set)
    classes: int = 0
    since_ns: int = 0


@dataclass(frozen=True, slots=True)
class Prompt:
    """A chain by the numbers of its chunks; no two keyspaces have one in common."""

    keyspace: Keyspace
    numbers: tuple[int, ...]

    @property
    def chain(self) -> bytes:
        return chain_of(self.keyspace, self.numbers)

    def goes_on(self, other: "Prompt") -> bool:
        """Return whether it has all of another prompt, and more."""
        count = len(other.numbers)
        return len(self.numbers) > count and self.numbers[:count] == other.numbers

    @property
    def digests(self) -> list[bytes]:
        chain = self.chain
        return [chain[at : at + DIGEST_BYTES] for at in range(0, len(chain), DIGEST_BYTES)]


class _Chains:
    """Makes chain digests; no daemon is asked for them."""

    client = Client("/nonexistent")


@lru_cache(maxsize=4096)
def chain_of(keyspace: Keyspace, numbers: tuple[int, ...]) -> bytes:
    tokens = np.concatenate([np.arange(CHUNK_TOKENS) + number * CHUNK_TOKENS for number in numbers])
    return _Chains.client.keyspace(keyspace).chain(tokens)


@lru_cache(maxsize=4096)
def values(digest: bytes, version: int) -> np.ndarray:
    """Return u16[layers, 2, heads, tokens, width]: bit patterns of BF16."""
    rng = np.random.default_rng([int.from_bytes(digest[:8], "little"), version])
    shape = (LAYERS, 2, HEADS, CHUNK_TOKENS, WIDTH)
    bits = rng.standard_normal(shape).astype(np.float32).view(np.uint32)
    return (bits >> 16).astype(np.uint16)


@lru_cache(maxsize=4096)
def known_by(digest: bytes, version: int, class_count: int, first: bool) -> np.ndarray:
    """Return what a reader of so many classes has of a chunk, as `values`; `first` of its chain."""
    if class_count == CLASS_COUNT:
        return values(digest, version)
    return _known_by_fewer(digest, version, first)[class_count]


@lru_cache(maxsize=4096)
def _known_by_fewer(digest: bytes, version: int, first: bool) -> dict[int, np.ndarray]:
    """Return `known_by` of less than all classes, by their count: encoded once for all of them."""
    whole = values(digest, version)
    specs, index = cell_specs(PROFILE_DEFAULT, cell_grid(SHAPE, Lane()), CHUNK_TOKENS, first)
    known = {class_count: np.empty_like(whole) for class_count in range(1, CLASS_COUNT)}
    for layer, kind in np.ndindex(LAYERS, 2):
        spec = specs[int(index[2 * layer + kind])]
        coded = encode_cell(spec, whole[layer, kind, 0])
        for class_count, read in known.items():
            read[layer, kind, 0] = decode_cell(spec, coded, PLANES_BY_CLASSES[class_count])
    return known


def tensors(digests: Sequence[bytes], version: int) -> list[list[np.ndarray]]:
    whole = np.concatenate([values(digest, version) for digest in digests], axis=3)
    return [
        [np.ascontiguousarray(whole[layer, kind]) for kind in range(2)] for layer in range(LAYERS)
    ]


def read_values(fetch: Fetch, class_count: int, count: int) -> np.ndarray | None:
    """Return u16[chunks, layers, 2, heads, tokens, width] of leading chunks, if all are good."""
    shape = (HEADS, count * CHUNK_TOKENS, WIDTH)
    targets = [[np.zeros(shape, np.uint16) for _ in range(2)] for _ in range(LAYERS)]
    if fetch.decode(ALL, PLANES_BY_CLASSES[class_count], targets, chunks=(0, count)) != count:
        return None
    whole = np.array(targets).reshape(LAYERS, 2, HEADS, count, CHUNK_TOKENS, WIDTH)
    return np.moveaxis(whole, 3, 0)


class Model:
    """One client's view of a daemon; nothing is done at the same time."""

    def __init__(self, drops: Path) -> None:
        self.prompts: dict[Prompt, None] = {}
        self.wrong: list[str] = []
        self.lost: list[str] = []
        self.chunks_compared = 0
        self._chunks: dict[bytes, Chunk] = {}
        self.drops, self._drops_seen = drops, 0
        self._version = 0

    def know(self, prompt: Prompt) -> None:
        self.prompts[prompt] = None
        for digest in prompt.digests:
            self._chunks.setdefault(digest, Chunk())

    @property
    def prompts_put(self) -> list[Prompt]:
        """Return all of which something must be found."""
        return [prompt for prompt in self.prompts if any(self.needed(prompt))]

    # ---- what is done ----

    def put(self, space: Space, prompt: Prompt, durability: str, deadline_s: float) -> Stored:
        """Put all of a prompt anew, and note what follows from the answer."""
        digests, since_ns = prompt.digests, time.monotonic_ns()
        self._version += 1
        self.know(prompt)
        chunks = [self._chunks[digest] for digest in digests]
        for chunk in chunks:
            chunk.versions.add(self._version)
        prepared = space.prepare(tensors(digests, self._version))
        made = space.put_strips(
            prompt.chain, prepared, durability=durability, deadline_s=deadline_s
        )
        if made.durable:
            assert made.refused == 0 and made.reason == Reason.NONE, made
            for chunk in chunks:
                chunk.classes, chunk.since_ns = CLASS_COUNT, since_ns
                if made.stored == len(chunks):
                    chunk.versions = {self._version}
        return made

    def clear(self, space: Space, deadline_s: float) -> Cleared:
        """Clear a keyspace, and note what follows from the answer."""
        cleared = [
            self._chunks[digest] for prompt in self.prompts
            if prompt.keyspace == space.keyspace for digest in prompt.digests
        ]  # fmt: skip
        for chunk in cleared:
            chunk.classes = 0
        done = space.clear(deadline_s)
        if done.reason == Reason.NONE:
            for chunk in cleared:
                chunk.versions = set()
        return done

    def condemn(self, prompt: Prompt, number: int) -> None:
        """Note that a reader said that a chunk is wrong: nothing behind it need be found."""
        self._chunks[prompt.digests[number]].classes = 0

    def damaged(self) -> None:
        """Note that what is on disk was changed behind the daemon's back: anything may be lost."""
        for chunk in self._chunks.values():
            chunk.classes = 0

    def restarted(self) -> None:
        """Note that a daemon begins anew: what is behind a missing chunk is gone for good then."""
        self._take_drops()
        for prompt in self.prompts:
            least = CLASS_COUNT
            for chunk in map(self._chunks.__getitem__, prompt.digests):
                least = chunk.classes = min(least, chunk.classes)

    # ---- what must be ----

    def needed(self, prompt: Prompt) -> tuple[int, ...]:
        """Return how many leading chunks of each class must be found."""
        self._take_drops()
        classes = [self._chunks[digest].classes for digest in prompt.digests]
        prefix = np.minimum.accumulate(classes)
        return tuple(int((prefix > plane_class).sum()) for plane_class in range(CLASS_COUNT))

    def compare(
        self, prompt: Prompt, fetch: Fetch, is_held: Callable[[], bool], where: str
    ) -> None:
        """Compare all that a fetch has brought with what may be there, as long as it is held."""
        for class_count in range(1, CLASS_COUNT + 1):
            count = fetch.counts[class_count - 1]
            if not count:
                break
            good = self.compare_good(prompt, fetch, class_count, where)
            if good != count:
                if is_held():
                    self.wrong.append(f"{where}: {good} of {count} chunks pass their checksums")
                break

    def compare_good(self, prompt: Prompt, fetch: Fetch, class_count: int, where: str) -> int:
        """Compare the leading chunks that pass their checksums; return how many do."""
        good = fetch.verify(class_count)
        read = read_values(fetch, class_count, good) if good else None
        if read is None:
            return 0
        for at in range(good):
            self._compare_chunk(prompt.digests[at], read[at], (class_count, at), where)
        return good

    def expect(self, prompt: Prompt, counts: Sequence[int], where: str) -> None:
        """Compare what was found with what must be."""
        needed = self.needed(prompt)
        if any(found < least for found, least in zip(counts, needed, strict=True)):
            self.lost.append(f"{where}: {prompt.numbers}: {tuple(counts)} of {needed}")

    def _compare_chunk(
        self, digest: bytes, read: np.ndarray, what: tuple[int, int], where: str
    ) -> None:
        class_count, at = what
        self.chunks_compared += 1
        known = self._chunks[digest]
        for version in known.versions:
            if np.array_equal(known_by(digest, version, class_count, at == 0), read):
                return
        stale = [
            other for other in range(1, self._version + 1)
            if np.array_equal(known_by(digest, other, class_count, at == 0), read)
        ]  # fmt: skip
        what_else = f"those of {stale[0]}, which is gone" if stale else "not those of any put"
        self.wrong.append(
            f"{where}: chunk {at} has other values than {sorted(known.versions)}: {what_else}"
        )

    def _take_drops(self) -> None:
        """Ask nothing more of what the daemon dropped since it was put."""
        drops = read_drops(self.drops, self._drops_seen)
        for drop in drops:
            self._take_drop(drop)
        self._drops_seen += len(drops)

    def _take_drop(self, drop: Drop) -> None:
        chunk = self._chunks.get(drop.chain)
        if chunk is not None and drop.at_ns >= chunk.since_ns:
            left = 0 if drop.plane_class == CONDEMNED else drop.plane_class
            chunk.classes = min(chunk.classes, left)
