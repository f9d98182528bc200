"""A found prefix on its way into views: decodes each layer of each class as it arrives.

Owns the fetch and, while `fill` runs, the views' prefix rows. Decides nothing about tokens.
"""

import threading
from collections.abc import Sequence

from kvd.client import Fetch
from kvd.clock import Clock
from kvd.codec import EXACT
from kvd.speculate.engine import View
from kvd.speculate.gate import Gate
from kvd.speculate.grid import CHUNK_TOKENS
from kvd.types import PlaneClass

ANCHOR_PLANES, RESIDUAL_PLANES = 4, 8
_FAR_NS = 1 << 62


class Prefix:
    """One fetch of a prompt's chunks; gates say which layers of which precision are in.

    `gradual`: classes come one after the other, so that there is time to draft between them.
    """

    def __init__(
        self, fetch: Fetch, layers: int, clock: Clock, deadline_ns: int, *, gradual: bool = True
    ) -> None:
        self.found = tuple(fetch.counts)
        self.anchor_chunks, self.residual_chunks, self.exact_chunks = self.found
        assert self.anchor_chunks >= self.residual_chunks >= self.exact_chunks, self.found
        self.anchors = Gate(layers, clock, deadline_ns)
        self.exact = Gate(layers, clock, deadline_ns)
        self.gradual = gradual
        self.decode_anchors_ns = 0
        self._fetch = fetch
        self._layers = layers
        self._residual_layers = 0
        self._ended = threading.Event()
        self._clock = clock
        self._begin_ns, self._begin_bytes = clock.now_ns(), fetch.delivered_bytes

    def fill(self, exact: View, draft: View | None) -> None:
        """Decode arrivals into the views until nothing more comes; runs on a thread of its own."""
        try:
            for arrival in self._fetch.arrivals():
                layers = range(arrival.layer_begin, arrival.layer_end)
                match arrival.plane_class:
                    case PlaneClass.ANCHOR if draft is not None:
                        going = self._fill_anchors(draft, layers)
                    case PlaneClass.RESIDUAL:
                        going = self._note_residual(layers)
                    case PlaneClass.EXACT if self.exact_chunks:
                        going = self._fill_exact(exact, layers)
                    case _:
                        going = True
                if not going:
                    break
        finally:
            # Whatever ended it, nobody waits for what will not come, nor writes to the views.
            self.anchors.close()
            self.exact.close()
            self._ended.set()

    def residual_complete(self) -> bool:
        """Return whether the draft view can go on from 8 planes: all its chunks have them."""
        return self._residual_layers == self._layers and self.residual_chunks == self.anchor_chunks

    def upgrade(self, draft: View) -> bool:
        """Decode 8 planes into the draft view, between two steps on it; False: it is spoilt."""
        assert self.residual_complete() and self.anchors.complete()
        for layer in range(self._layers):
            good = self._decode(draft, layer, RESIDUAL_PLANES, self.residual_chunks)
            if good < self.residual_chunks:
                return False
        return True

    def last_byte_ns(self) -> int:
        """Return an estimate of when the last promised byte arrives, from the rate so far."""
        return (
            self._clock.now_ns()
            if self.exact.complete()
            else self._arrives_ns(self._fetch.class_bytes)
        )

    def exact_begin_ns(self) -> int:
        """Return an estimate of when the first layer of the exact class arrives."""
        anchor, residual, exact = self._fetch.class_bytes
        return self._arrives_ns((anchor, residual, exact // self._layers))

    def _arrives_ns(self, sizes_bytes: Sequence[int]) -> int:
        now_ns = self._clock.now_ns()
        there, wanted = self._fetch.delivered_bytes, sum(sizes_bytes)
        if there >= wanted:
            return now_ns
        came = there - self._begin_bytes
        if came == 0:  # What was here at once says nothing of a link; of a disk, that it is quick.
            return now_ns if there else _FAR_NS
        return now_ns + (wanted - there) * (now_ns - self._begin_ns) // came

    @property
    def class_bytes(self) -> tuple[int, int, int]:
        return self._fetch.class_bytes

    @property
    def delivered_bytes(self) -> int:
        return self._fetch.delivered_bytes

    def release(self) -> None:
        """End the fetch; `fill` ends soon after. Idempotent."""
        self._fetch.release()

    def stop(self) -> None:
        """End the fetch and return when `fill`, which must have been started, has ended."""
        self.release()
        self._ended.wait()

    def _fill_anchors(self, draft: View, layers: range) -> bool:
        begin_ns = self._clock.now_ns()
        for layer in layers:
            good = self._decode(draft, layer, ANCHOR_PLANES, self.anchor_chunks)
            self.anchors.open(layer, good)
        self.decode_anchors_ns += self._clock.now_ns() - begin_ns
        return True

    def _note_residual(self, layers: range) -> bool:
        self._residual_layers += len(layers)
        return True

    def _fill_exact(self, exact: View, layers: range) -> bool:
        for layer in layers:
            good = self._decode(exact, layer, EXACT, self.exact_chunks)
            self.exact.open(layer, good)
            if not good:
                return False  # The first chunk is bad: nothing else can be used.
        return True

    def _decode(self, view: View, layer: int, planes: int, chunks: int) -> int:
        """Decode one layer of the first `chunks` chunks; return how many leading ones are good."""
        targets = [list(view.targets(layer))]
        good = self._fetch.decode(
            layers=(layer, layer + 1), planes=planes, targets=targets, chunks=(0, chunks)
        )
        view.loaded(layer, good * CHUNK_TOKENS)
        return good
