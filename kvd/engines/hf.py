"""kvd for transformers: store and load prefixes of a running model; verified greedy decoding.

The adapter only adapts: grid, drafts and verification are `kvd.speculate`'s, bytes the client's.
"""

import contextlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kvd.client import Client, Comparison, Delivery, Space, Stored, compare
from kvd.clock import NS_PER_S, MonotonicClock
from kvd.engines.border import Border, GuardedFetch, attempt
from kvd.engines.hf_identity import Sight, Watch, keyspace, refuse_strange, weight_revision
from kvd.engines.hf_model import HfModel
from kvd.engines.hf_view import HfView
from kvd.errors import ErrorKind, KvdError
from kvd.identity import Keyspace
from kvd.speculate.engine import Batch
from kvd.speculate.generate import Generator, Request
from kvd.speculate.grid import CHUNK_TOKENS, capacity_tokens, pieces, usable_chunks
from kvd.speculate.outcome import Listener, Options, Outcome
from kvd.speculate.prefix import Prefix

_CAPACITY_STEP = 256  # Views grow by whole steps, so that prompts of like length share them.


@dataclass(frozen=True, slots=True)
class Link:
    """How a prefix comes: mapped, or as bytes, the latter paced when `rate_bits` is not 0.

    Raise INVALID for a deadline that nobody can wait for: not above 0, or without an end.
    """

    delivery: Delivery = Delivery.MAP
    rate_bits: int = 0
    deadline_s: float = 10.0

    def __post_init__(self) -> None:
        if not 0 < self.deadline_s <= threading.TIMEOUT_MAX:
            most = f"at most {threading.TIMEOUT_MAX:.0f}"
            raise KvdError(
                ErrorKind.INVALID, f"deadline_s is {self.deadline_s}, it must be above 0 and {most}"
            )


class Prefill(list[list[Any]]):
    """Per layer K and V of whole chunks, BF16 [heads, tokens, width]; and what they are KV of.

    `keyspace` is that of the model which computed them; None when it cannot be told.
    """

    def __init__(
        self, layers: list[list[Any]], tokens: Sequence[int], keyspace: Keyspace | None
    ) -> None:
        super().__init__(layers)
        self.tokens = tuple(tokens)
        self.keyspace = keyspace


_OPTIONS, _LINK, _LISTENER = Options(), Link(), Listener()


class HfEngine:
    """One model and one client; one request at a time. A fault of kvd means recompute."""

    def __init__(
        self,
        model: Any,
        client: Client | None = None,
        *,
        name: str = "",
        revision: str = "",
        adapter: str = "",
    ) -> None:
        """Take a model; `revision` spares the digest of its weights, until they change in place.
        Adapters of PEFT are told apart by their settings and weights; `adapter` names what else is
        switched. Raise INVALID for a model that is not of full attention, fp32, on the CPU, in
        evaluation mode, or that has hooks: of one that comes later nothing is stored or found.
        """
        self.border = Border()
        self._engine = HfModel(model)
        self._clock = MonotonicClock()
        self.keyspace = keyspace(model, self._engine.shape, name, revision, adapter)
        self._model, self._client, self._revision = model, client, revision
        self._name, self._adapter = name, adapter
        self._watch = Watch(model)
        self._seen = self._watch.look()
        self._space: Space | None = None
        self._space_keyspace: Keyspace | None = None
        self._generator: Generator | None = None
        self._views: tuple[HfView, HfView] | None = None

    def prepare(self, prompt_tokens: int, new_tokens: int) -> None:
        """Make and touch the views for such a request, so that it need not wait for memory."""
        if prompt_tokens < 1 or new_tokens < 1:
            asked = f"{prompt_tokens} prompt tokens and {new_tokens} new ones"
            raise KvdError(ErrorKind.INVALID, f"asked are {asked}; at least one of each is needed")
        if prompt_tokens + new_tokens > self._engine.tokens_max:
            raise KvdError(
                ErrorKind.INVALID,
                f"{prompt_tokens} prompt tokens and {new_tokens} new ones exceed the "
                f"{self._engine.tokens_max} positions of the model",
            )
        capacity = -(-capacity_tokens(prompt_tokens, new_tokens) // _CAPACITY_STEP) * _CAPACITY_STEP
        if self._views is None or self._views[0].capacity < capacity:
            self._views = self._engine.view(capacity), self._engine.view(capacity)
            self._generator = Generator(self._engine, *self._views, attempt, self._clock)

    def store(
        self,
        prompt: Sequence[int],
        progress: Callable[[int, int], None] | None = None,
        durability: str = "memory",
    ) -> Stored | None:
        """Run the prompt in the reference way and put the KV of its whole chunks.

        Never stores tainted KV (I13): everything is computed here, from the first token on. None
        when kvd failed.
        """
        return self.put(prompt, self.prefill(prompt, progress), durability)

    def put(
        self, prompt: Sequence[int], tensors: Prefill, durability: str = "memory"
    ) -> Stored | None:
        """Put what `prefill` returned for the same prompt; None when kvd failed, or when it cannot
        be told which model computed it. Raise INVALID for other tensors, or another prompt's.
        """
        whole = len(prompt) // CHUNK_TOKENS * CHUNK_TOKENS
        if not isinstance(tensors, Prefill):
            given = type(tensors).__name__
            raise KvdError(ErrorKind.INVALID, f"put takes what prefill returned, not a {given}")
        if tensors.tokens != tuple(prompt[:whole]):
            raise KvdError(
                ErrorKind.INVALID, "put was given what prefill returned for other tokens"
            )
        space = self._space_of(tensors.keyspace)
        if space is None or not whole:
            return None
        return self.border.call(
            lambda: space.put(space.chain(list(prompt[:whole])), tensors, durability=durability),
            None,
        )

    def compare(self, prompt: Sequence[int]) -> Comparison | None:
        """Compute the prompt's KV again and compare it with what is stored, bit by bit.

        Costs a prefill. None when nothing could be compared: kvd failed, or has none of it.
        """
        whole = len(prompt) // CHUNK_TOKENS * CHUNK_TOKENS
        if self._client is None or not whole:
            return None
        tensors = self.prefill(prompt)
        space = self._space_of(tensors.keyspace)
        if space is None:
            return None
        return self.border.call(lambda: _compared(space, list(prompt[:whole]), tensors), None)

    def prefetch(self, prompt: Sequence[int]) -> None:
        """Announce a prompt that is soon to be generated from; costs one short round trip."""
        space, chunks = self._space_now(), usable_chunks(len(prompt))
        if space is not None and chunks:
            tokens = list(prompt[: chunks * CHUNK_TOKENS])
            self.border.call(lambda: space.prefetch(space.chain(tokens)), None)

    @property
    def exact_view(self) -> HfView:
        """Return the view that the last request committed from; `prepare` makes it."""
        assert self._views is not None
        return self._views[0]

    def prefill(
        self, prompt: Sequence[int], progress: Callable[[int, int], None] | None = None
    ) -> Prefill:
        """Return per layer K and V of the prompt's whole chunks, BF16 [heads, tokens, width]."""
        self.prepare(len(prompt), 1)
        before, seen = self._keyspace_now(), self._seen
        view = self._views[0]
        view.truncate(0)
        for begin, end in pieces(len(prompt), 0):
            self._engine.forward(view, Batch(prompt[begin:end], begin, CHUNK_TOKENS, (0,)))
            if progress is not None:
                progress(end, len(prompt))
        whole = len(prompt) // CHUNK_TOKENS * CHUNK_TOKENS
        # A thread that trains may have come between: KV of two models is of none.
        same = self._keyspace_now() == before and self._seen is seen
        return Prefill(view.tensors(whole), prompt[:whole], before if same else None)

    def generate(
        self,
        prompt: Sequence[int],
        options: Options = _OPTIONS,
        link: Link = _LINK,
        listener: Listener = _LISTENER,
    ) -> Outcome:
        """Return the greedy continuation: the tokens of the verifying routine, however obtained."""
        self.prepare(len(prompt), options.new_tokens)
        begin_ns = self._clock.now_ns()
        prefix = self.border.call(lambda: self._open(prompt, link), None)
        outcome = self._generator.run(Request(prompt, options, begin_ns, listener), prefix)
        if outcome.fault is not None:
            self.border.note(outcome.fault)
        return outcome

    def _space_now(self) -> Space | None:
        """Return the space of the model as it is: KV of others must not be found, nor stored."""
        return None if self._client is None else self._space_of(self._keyspace_now())

    def _keyspace_now(self) -> Keyspace | None:
        """Return the keyspace of the model as it is, None when that cannot be told.

        Training writes weights in place, adapters are switched, behind the engine's back. In
        training mode a forward drops values by chance: None.
        """
        return self.border.call(self._looked, None)

    def _looked(self) -> Keyspace | None:
        sight = self._watch.look()
        if sight.training:
            return None
        refuse_strange(self._model, sight)
        if sight != self._seen:
            revision = self._revision_of(sight)
            self.keyspace = keyspace(
                self._model, self._engine.shape, self._name, revision, self._adapter
            )
            self._seen = sight
        return self.keyspace

    def _revision_of(self, sight: Sight) -> str:
        if sight.weights == self._seen.weights:
            return self.keyspace.weight_revision
        digest = weight_revision(self._model)
        return f"{self._revision} changed to {digest}" if self._revision else digest

    def _space_of(self, keyspace: Keyspace | None) -> Space | None:
        client = self._client
        if client is None or keyspace is None:
            return None
        if self._space is None or keyspace != self._space_keyspace:
            self._space = self.border.call(lambda: client.keyspace(keyspace), None)
            self._space_keyspace = keyspace
        return self._space

    def _open(self, prompt: Sequence[int], link: Link) -> Prefix | None:
        space, chunks = self._space_now(), usable_chunks(len(prompt))
        if space is None or not chunks:
            return None
        chain = space.chain(list(prompt[: chunks * CHUNK_TOKENS]))
        fetch = space.fetch(
            chain,
            delivery=link.delivery,
            rate_bits=link.rate_bits,
            deadline_s=link.deadline_s,
        )
        with contextlib.ExitStack() as unused:
            unused.callback(fetch.release)
            if not any(fetch.counts):
                return None
            deadline_ns = self._clock.now_ns() + int(link.deadline_s * NS_PER_S)
            guarded = GuardedFetch(fetch, self.border)
            gradual = fetch.delivered_bytes < sum(fetch.class_bytes)
            layers = self._engine.layers
            prefix = Prefix(guarded, layers, self._clock, deadline_ns, gradual=gradual)
            unused.pop_all()
        return prefix


def _compared(space: Space, tokens: list[int], tensors: list[list[Any]]) -> Comparison | None:
    prepared = space.prepare(tensors)
    try:
        with space.fetch(space.chain(tokens)) as fetch:
            for _ in fetch.arrivals():
                pass
            return compare(fetch, prepared) if any(fetch.counts) else None
    finally:
        prepared.give_back(space.scope.pool)
