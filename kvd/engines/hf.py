"""kvd for transformers: store and load prefixes of a running model; verified greedy decoding.

The adapter only adapts: grid, drafts and verification are `kvd.speculate`'s, bytes the client's.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kvd.client import Client, Comparison, Delivery, Space, Stored, compare
from kvd.clock import NS_PER_S, MonotonicClock
from kvd.engines.border import Border, GuardedFetch
from kvd.engines.hf_model import HfModel, keyspace, weight_revision, weight_stamp
from kvd.engines.hf_view import HfView
from kvd.errors import ErrorKind, KvdError
from kvd.speculate.engine import Batch
from kvd.speculate.generate import Generator, Request
from kvd.speculate.grid import CHUNK_TOKENS, capacity_tokens, pieces, usable_chunks
from kvd.speculate.outcome import Listener, Options, Outcome
from kvd.speculate.prefix import Prefix

_CAPACITY_STEP = 256  # Views grow by whole steps, so that prompts of like length share them.


@dataclass(frozen=True, slots=True)
class Link:
    """How a prefix comes: mapped, or as bytes, the latter paced when `rate_bits` is not 0."""

    delivery: Delivery = Delivery.MAP
    rate_bits: int = 0
    deadline_s: float = 10.0


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
        Whoever switches adapters makes an engine for each, with its name as `adapter`. Raise
        INVALID for a model that is not of full attention, fp32, on the CPU, in evaluation mode.
        """
        self.border = Border()
        self._engine = HfModel(model)
        self._clock = MonotonicClock()
        self.keyspace = keyspace(model, self._engine.shape, name, revision, adapter)
        self._model, self._client, self._revision = model, client, revision
        self._stamp = weight_stamp(model) if client is not None else ()
        self._space = self._open_space()
        self._filled_space = self._space  # Of the weights of the last prefill.
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
            self._generator = Generator(self._engine, *self._views, clock=self._clock)

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
        self, prompt: Sequence[int], tensors: list[list[Any]], durability: str = "memory"
    ) -> Stored | None:
        """Put what `prefill` returned for the same prompt; None when kvd failed."""
        space, whole = self._filled_space, len(prompt) // CHUNK_TOKENS * CHUNK_TOKENS
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
        space = self._filled_space
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
    ) -> list[list[Any]]:
        """Return per layer K and V of the prompt's whole chunks, BF16 [heads, tokens, width]."""
        self.prepare(len(prompt), 1)
        self._filled_space = self._space_now()
        view = self._views[0]
        view.truncate(0)
        for begin, end in pieces(len(prompt), 0):
            self._engine.forward(view, Batch(prompt[begin:end], begin, CHUNK_TOKENS, (0,)))
            if progress is not None:
                progress(end, len(prompt))
        return view.tensors(len(prompt) // CHUNK_TOKENS * CHUNK_TOKENS)

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
        """Return the space of the weights as they are: KV of others must not be found, nor stored.

        Training writes them in place, behind the engine's back. In training mode a forward drops
        values by chance: None.
        """
        if self._model.training:
            return None
        if self._client is None or (stamp := weight_stamp(self._model)) == self._stamp:
            return self._space
        digest = weight_revision(self._model)
        revision = f"{self._revision} changed to {digest}" if self._revision else digest
        self.keyspace = replace(self.keyspace, weight_revision=revision)
        self._stamp, self._space = stamp, self._open_space()
        return self._space

    def _open_space(self) -> Space | None:
        client = self._client
        if client is None:
            return None
        return self.border.call(lambda: client.keyspace(self.keyspace), None)

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
        if not any(fetch.counts):
            fetch.release()
            return None
        deadline_ns = self._clock.now_ns() + int(link.deadline_s * NS_PER_S)
        guarded = GuardedFetch(fetch, self.border)
        gradual = fetch.delivered_bytes < sum(fetch.class_bytes)
        layers = self._engine.layers
        return Prefix(guarded, layers, self._clock, deadline_ns, gradual=gradual)


def _compared(space: Space, tokens: list[int], tensors: list[list[Any]]) -> Comparison | None:
    prepared = space.prepare(tensors)
    try:
        with space.fetch(space.chain(tokens)) as fetch:
            for _ in fetch.arrivals():
                pass
            return compare(fetch, prepared) if any(fetch.counts) else None
    finally:
        prepared.give_back(space.scope.pool)
