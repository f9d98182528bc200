"""What the first-token bench and the demo share: the document, stores, and fetches on a slow link.

Every way of getting a cache ends in the same tail forward on the same views, fed layer by layer.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.plain import PLAIN, Plain, PlainTargets, encode
from kvd.client import Client, Delivery, Space, Stored
from kvd.clock import NS_PER_S, MonotonicClock
from kvd.engines.hf import HfEngine, Link
from kvd.engines.hf_model import HfModel
from kvd.speculate.engine import Batch
from kvd.speculate.grid import CHUNK_TOKENS, usable_chunks
from kvd.speculate.outcome import Listener, Options, Outcome
from kvd.speculate.prefix import Prefix
from kvd.speculate.verify import run_prompt

LINK_BITS = 200_000_000
DEADLINE_SECONDS = 60.0
DOCUMENT_CHUNKS = 64  # 4,096 tokens.
TEXTS = Path(__file__).parent / "texts"
QUESTIONS = {
    "narrative": "\n\nWho is the main character of this story and what happens to them?",
    "treatise": "\n\nWrite a short summary of the text above.",
    "drama": "\n\nWrite a short summary of the text above.",
}
NAMES = tuple(QUESTIONS)

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Document:
    """`stored` are the tokens whose KV is kept; `prompt` goes on behind them with a question."""

    stored: list[int]
    prompt: list[int]


def document(tokenizer: Any, name: str = NAMES[0]) -> Document:
    """Return one of the texts of `bench/texts`, cut to whole chunks, as a user's message."""
    text = (TEXTS / f"{name}.txt").read_text()
    mark = "\x00"
    messages = [{"role": "user", "content": mark}]
    frame = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    head, foot = frame.split(mark)
    stored = tokenizer(head + text).input_ids[: DOCUMENT_CHUNKS * CHUNK_TOKENS]
    assert len(stored) == DOCUMENT_CHUNKS * CHUNK_TOKENS, len(stored)
    prompt = stored + tokenizer(QUESTIONS[name] + foot).input_ids
    assert usable_chunks(len(prompt)) == DOCUMENT_CHUNKS, len(prompt)
    return Document(stored, prompt)


class Scene:
    """One engine with its client, its own cache of a document and three plain ones beside it."""

    def __init__(self, model: Any, client: Client) -> None:
        self.engine = HfEngine(model, client, name="SmolLM2-135M-Instruct")
        self._model = HfModel(model)
        self._clock = MonotonicClock()
        [group] = self._model.shape.groups
        self._spaces: dict[str, Space] = {
            plain.name: client.keyspace(plain.keyspace(group.layers, group.tensors[0].heads))
            for plain in PLAIN
        }

    @property
    def values_per_token(self) -> int:
        """Return how many values a token's KV has."""
        [group] = self._model.shape.groups
        return group.layers * sum(tensor.heads * tensor.width for tensor in group.tensors)

    def warm(self, prompt: Sequence[int], new_tokens: int) -> None:
        """Touch the views and run a forward of each kind: no clock runs over first times."""
        self.engine.prepare(len(prompt), new_tokens)
        view = self._view()
        view.truncate(0)
        for tokens in (64, 16, 1):
            self._model.forward(view, Batch(prompt[:tokens], 0, tokens, (0,)))
            view.truncate(0)

    def store(
        self,
        stored: Sequence[int],
        progress: Progress | None = None,
        durability: str = "memory",
    ) -> dict[str, Stored]:
        """Prefill the document once and store its KV in kvd's code and in the plain ones."""
        tensors = self.engine.prefill(stored, progress)
        kept = {"kvd": self.engine.put(stored, tensors, durability)}
        for plain in PLAIN:
            space, values = self._spaces[plain.name], encode(plain, tensors)
            kept[plain.name] = space.put(space.chain(list(stored)), values, durability=durability)
        short = [
            name for name, answer in kept.items()
            if answer is None or answer.refused or answer.durable != (durability == "disk")
        ]  # fmt: skip
        if short:
            where = "--dram" if durability == "memory" else "--dram or --ssd, or a faster disk"
            raise RuntimeError(f"not stored: {', '.join(short)}; give the daemon more {where}")
        return kept

    def bring_plain(self, prompt: Sequence[int]) -> None:
        """Have the plain caches in the daemon's memory, also where they are only on its disk."""
        chunks = usable_chunks(len(prompt))
        for plain in PLAIN:
            space = self._spaces[plain.name]
            chain = space.chain(list(prompt[: chunks * CHUNK_TOKENS]))
            with space.fetch(chain, class_count=1, deadline_s=DEADLINE_SECONDS) as fetch:
                for _ in fetch.arrivals():
                    pass
                if fetch.error is not None or fetch.counts[0] < chunks:
                    raise RuntimeError(f"{plain.name}: {fetch.error or fetch.reason}")

    def by_kvd(
        self, prompt: Sequence[int], options: Options, listener: Listener | None = None
    ) -> Outcome:
        """Generate with anchors first over the slow link."""
        link = Link(Delivery.BYTES, LINK_BITS, DEADLINE_SECONDS)
        return self.engine.generate(prompt, options, link, listener or Listener())

    def by_reference(self, prompt: Sequence[int], new_tokens: int) -> Outcome:
        """Generate with the full cache and without drafts, as fast as it comes."""
        link = Link(Delivery.MAP, deadline_s=DEADLINE_SECONDS)
        return self.engine.generate(prompt, Options(new_tokens, draft=False), link)

    def by_plain(self, plain: Plain, prompt: Sequence[int]) -> tuple[int, int, int]:
        """Return (nanoseconds to the first token, the token, bytes) of a plain cache's fetch."""
        space, view = self._spaces[plain.name], self._view()
        buffers = [
            [tensor[0].numpy() for tensor in pair]
            for pair in zip(view.keys, view.values, strict=True)
        ]
        targets = PlainTargets(plain, buffers)
        chunks = usable_chunks(len(prompt))
        begin_ns = self._clock.now_ns()
        fetch = space.fetch(
            space.chain(list(prompt[: chunks * CHUNK_TOKENS])),
            class_count=1,
            delivery=Delivery.BYTES,
            rate_bits=LINK_BITS,
            deadline_s=DEADLINE_SECONDS,
        )
        assert fetch.counts[0] == chunks, (plain, fetch.counts, fetch.reason)
        deadline_ns = begin_ns + int(DEADLINE_SECONDS * NS_PER_S)
        prefix = Prefix(fetch, self._model.layers, self._clock, deadline_ns)
        with fetch, ThreadPoolExecutor(1) as pool:
            filled = pool.submit(prefix.fill, view, targets)
            ready = prefix.anchors.waiter(chunks)
            choice = run_prompt(self._model, view, prompt, chunks, ready)
            elapsed_ns = self._clock.now_ns() - begin_ns
            filled.result()
        return elapsed_ns, choice.token, fetch.delivered_bytes

    def by_recompute(self, prompt: Sequence[int]) -> int:
        """Return the nanoseconds to the first token without any cache, in one forward."""
        view = self._view()
        view.truncate(0)
        begin_ns = self._clock.now_ns()
        self._model.forward(view, Batch(prompt, 0, len(prompt), (len(prompt) - 1,)))
        return self._clock.now_ns() - begin_ns

    def _view(self) -> Any:
        return self.engine.exact_view
