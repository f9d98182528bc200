"""Gates: a forward waits at each layer until its prefix is decoded, or will not be."""

import threading

from kvd.clock import NS_PER_S, Clock
from kvd.speculate.engine import Ready


class Unready(Exception):
    """The prefix is shorter than the forward assumed: only `chunks` leading chunks are good."""

    def __init__(self, chunks: int) -> None:
        super().__init__(f"{chunks} leading chunks are good")
        self.chunks = chunks


class Gate:
    """Per layer, how many leading chunks are decoded; written by one thread, awaited by another."""

    def __init__(self, layers: int, clock: Clock, deadline_ns: int) -> None:
        assert layers > 0
        self._good: list[int | None] = [None] * layers
        self._closed = False
        self._changed = threading.Condition()
        self._clock = clock
        self._deadline_ns = deadline_ns
        self.waited_ns = 0

    def open(self, layer: int, good_chunks: int) -> None:
        """Let forwards pass the layer with that many leading chunks."""
        assert good_chunks >= 0
        with self._changed:
            assert not self._closed and self._good[layer] is None, layer
            self._good[layer] = good_chunks
            self._changed.notify_all()

    def close(self) -> None:
        """Say that nothing more comes: layers not open count as without any good chunk."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def complete(self) -> bool:
        """Return whether all layers are decoded."""
        with self._changed:
            return all(good is not None for good in self._good)

    def waiter(self, chunks: int) -> Ready:
        """Return what a forward that assumes `chunks` chunks calls before each layer."""
        return lambda layer: self.wait(layer, chunks)

    def wait(self, layer: int, chunks: int) -> None:
        """Return when the layer has `chunks` leading chunks; raise Unready when it will not."""
        begin_ns = self._clock.now_ns()
        with self._changed:
            while self._good[layer] is None and not self._closed:
                left_ns = self._deadline_ns - self._clock.now_ns()
                if left_ns <= 0:
                    break
                self._changed.wait(left_ns / NS_PER_S)
            good = self._good[layer] or 0
        self.waited_ns += self._clock.now_ns() - begin_ns
        if good < chunks:
            raise Unready(good)
