"""What a client does to a daemon, from a seed; and how all of it is looked at after a restart."""

import random
import threading
import time
from collections.abc import Callable

from kvd.client import Client, Delivery, Reason
from kvd.client.fetch import Fetch
from tests.crash.model import CLEARED, KEPT, Model, Prompt
from tests.e2e.process import DEADLINE_S

ROOM_PAUSE_S = 0.01
PROMPT_CHUNKS_MAX = 6
OTHERS_MAX = 10  # Of which nothing need be found.


class Work:
    """`fresh`: prompts that were never put come all the time, so that the budget overflows."""

    def __init__(self, model: Model, seed: int, *, fresh: bool) -> None:
        self.model, self.chance, self._fresh = model, random.Random(seed), fresh
        self._number = 0
        self._kept = [self.invent(KEPT) for _ in range(8)]
        self._cleared = [self.invent(CLEARED) for _ in range(6)]
        self.done = 0

    def step(self, client: Client, where: str) -> None:
        """Do one thing, of any outcome."""
        self.done += 1
        act = self.chance.choices(
            (self._put, self._fetch, self._prefetch, self._condemn, self._clear),
            (60, 15, 8, 8, 9),
        )[0]
        act(client, where)

    def look_at_all(self, client: Client, where: str) -> None:
        """Fetch all prompts of which something must be there, and some of the others."""
        prompts = list(self.model.prompts)
        others = self.chance.sample(prompts, min(len(prompts), OTHERS_MAX))
        wanted = dict.fromkeys((*self.model.prompts_put, *self._cleared, *others))
        for prompt in wanted:
            if not any(other.goes_on(prompt) for other in wanted):
                self.look_at(client, prompt, where)

    def look_at(self, client: Client, prompt: Prompt, where: str) -> None:
        space = client.keyspace(prompt.keyspace)
        if self.chance.random() < 0.25:
            found = space.lookup(prompt.chain)
            if found.reason == Reason.NONE:
                self.model.expect(prompt, found.counts, f"{where}, lookup")
        delivery = self.chance.choice(list(Delivery))
        failures = client.status().counters.checksum_failures
        with fetched(lambda: space.fetch(prompt.chain, delivery=delivery)) as fetch:
            list(fetch.arrivals())
            if fetch.reason in (Reason.DISCONNECTED, Reason.LOST) or fetch.error is not None:
                return
            epoch = client.status().epoch

            def is_held() -> bool:
                return fetch.error is None and _is_met(client, epoch)

            self.model.compare(prompt, fetch, is_held, where)
            if client.status().counters.checksum_failures > failures:
                self.model.wrong.append(f"{where}: a checksum failed")
            self.model.expect(prompt, fetch.counts, f"{where}, fetch {fetch.reason.name}")

    def invent(self, keyspace) -> Prompt:
        """Return a prompt that goes on from another one, or begins anew."""
        known = [p for p in self.model.prompts if p.keyspace == keyspace]
        begin: tuple[int, ...] = ()
        if known and self.chance.random() < 0.6:
            numbers = self.chance.choice(known).numbers
            begin = numbers[: self.chance.randint(0, len(numbers))][: PROMPT_CHUNKS_MAX - 1]
        count = self.chance.randint(1, PROMPT_CHUNKS_MAX - len(begin))
        first = self._number + 1
        self._number += count
        prompt = Prompt(keyspace, (*begin, *range(first, first + count)))
        self.model.know(prompt)
        return prompt

    def _any(self) -> Prompt:
        if self._fresh and self.chance.random() < 0.4:
            self._kept = [*self._kept[-15:], self.invent(KEPT)]
        return self.chance.choice(self.chance.choice((self._kept, self._cleared)))

    def _put(self, client: Client, where: str) -> None:
        prompt = self._any()
        durability = "disk" if self.chance.random() < 0.7 else "memory"
        self.model.put(client.keyspace(prompt.keyspace), prompt, durability, DEADLINE_S)

    def _fetch(self, client: Client, where: str) -> None:
        self.look_at(client, self._any(), where)

    def _prefetch(self, client: Client, where: str) -> None:
        prompt = self._any()
        client.keyspace(prompt.keyspace).prefetch(prompt.chain)

    def _condemn(self, client: Client, where: str) -> None:
        """Say that a chunk is wrong, and put it again with other values."""
        prompt = self._any()
        space = client.keyspace(prompt.keyspace)
        fetch = fetched(lambda: space.fetch(prompt.chain))
        list(fetch.arrivals())
        if fetch.counts[0]:
            number = self.chance.randrange(fetch.counts[0])
            self.model.condemn(prompt, number)
            fetch.release((number,))
        fetch.release()
        self.model.put(space, prompt, "disk", DEADLINE_S)

    def _clear(self, client: Client, where: str) -> None:
        self.model.clear(client.keyspace(CLEARED), DEADLINE_S)


def _is_met(client: Client, epoch: int) -> bool:
    """Return whether the client is still connected to the same daemon."""
    status = client.status()
    return status.connected and status.epoch == epoch


def fetched(fetch: Callable[[], Fetch]) -> Fetch:
    """Fetch until there is room to read into: memory grows, and changes hands, behind it."""
    deadline, pause = time.monotonic() + DEADLINE_S, threading.Event()
    while True:
        made = fetch()
        if made.reason != Reason.NO_ROOM:
            return made
        made.release()
        assert time.monotonic() < deadline, "there is no room to read into"
        pause.wait(ROOM_PAUSE_S)
