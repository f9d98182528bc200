"""A client in memory for tests of speculation: keeps what is put, delivers as scripted."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from kvd.client import Arrival, Delivery, Stored
from kvd.codec import EXACT
from kvd.identity import chain_digests
from kvd.types import PlaneClass

CHUNK = 64
_CLASS_OF_PLANES = {4: PlaneClass.ANCHOR, 8: PlaneClass.RESIDUAL, EXACT: PlaneClass.EXACT}


@dataclass
class Script:
    """What goes wrong with the fetches of a space, and when."""

    counts_max: tuple[int, int, int] = (1 << 30,) * 3
    corrupt: dict[PlaneClass, int] = field(default_factory=dict)  # Class: first bad chunk.
    corrupt_layer: int = 0
    ends_before: tuple[PlaneClass, int] | None = None  # The daemon dies: class, layer.
    hangs_before: tuple[PlaneClass, int] | None = None  # Until the fetch is released.
    zeroed: bool = False  # Wrong bytes that pass for good ones: the control.
    fails: frozenset[str] = frozenset()  # Names of verbs that raise.
    noise: Callable[[torch.Tensor, int], torch.Tensor] | None = None
    before: Callable[[PlaneClass, int], None] | None = None  # Called before each arrival.


class FakeClient:
    def __init__(self) -> None:
        self.script = Script()
        self.chunks: dict[bytes, list[list[torch.Tensor]]] = {}
        self.fetches: list[FakeFetch] = []

    def keyspace(self, keyspace: Any) -> "FakeSpace":
        return FakeSpace(self)


class FakeSpace:
    def __init__(self, client: FakeClient) -> None:
        self._client = client

    def chain(self, tokens: list[int], extras: bytes = b"") -> bytes:
        return chain_digests(tokens, CHUNK, extras)

    def put(self, chain: bytes, tensors: list[list[torch.Tensor]], **_: Any) -> Stored:
        self._check("put")
        names = _names(chain)
        for index, name in enumerate(names):
            rows = slice(index * CHUNK, (index + 1) * CHUNK)
            self._client.chunks[name] = [[t[:, rows].clone() for t in layer] for layer in tensors]
        return Stored(len(names), 0, 0, "", 0)

    def fetch(self, chain: bytes, **options: Any) -> "FakeFetch":
        self._check("fetch")
        found = []
        for name in _names(chain):
            if name not in self._client.chunks:
                break
            found.append(self._client.chunks[name])
        fetch = FakeFetch(found, self._client.script, options.get("delivery", Delivery.MAP))
        self._client.fetches.append(fetch)
        return fetch

    def _check(self, verb: str) -> None:
        if verb in self._client.script.fails:
            raise RuntimeError(f"{verb} is scripted to fail")


class FakeFetch:
    """Delivers anchors, residuals, exact, layer by layer; lossy planes are roundings."""

    def __init__(self, chunks: list[Any], script: Script, delivery: Delivery) -> None:
        self.counts = tuple(min(len(chunks), most) for most in script.counts_max)
        self.reason = ""
        self.released = threading.Event()
        self._chunks = chunks
        self._script = script
        # So many that by the rate so far there is time to draft until the very end.
        self.class_bytes = (1 << 50,) * 3
        self.delivered_bytes = 0 if delivery == Delivery.BYTES else sum(self.class_bytes)

    def arrivals(self) -> Iterator[Arrival]:
        if "arrivals" in self._script.fails:
            raise RuntimeError("arrivals is scripted to fail")
        layers = len(self._chunks[0])
        for plane_class in PlaneClass:
            for layer in range(layers):
                if (plane_class, layer) == self._script.ends_before or self.released.is_set():
                    return
                if (plane_class, layer) == self._script.hangs_before:
                    assert self.released.wait(60)
                    return
                if self._script.before is not None:
                    self._script.before(plane_class, layer)
                self.delivered_bytes = self.delivered_bytes or 1
                yield Arrival(plane_class, layer, layer + 1)
        self.delivered_bytes = sum(self.class_bytes)

    def decode(self, *, layers: Any, planes: int, targets: Any, chunks: Any, **_: Any) -> int:
        if "decode" in self._script.fails:
            raise RuntimeError("decode is scripted to fail")
        plane_class = _CLASS_OF_PLANES[planes]
        good = chunks[1]
        if layers[0] == self._script.corrupt_layer:
            good = min(good, self._script.corrupt.get(plane_class, good))
        for index in range(chunks[1]):
            for target, stored in zip(targets[0], self._chunks[index][layers[0]], strict=True):
                rows = target[:, index * CHUNK : (index + 1) * CHUNK]
                rows.copy_(self._values(stored, planes) if index < good else torch.nan)
        return good

    def _values(self, stored: torch.Tensor, planes: int) -> torch.Tensor:
        if self._script.zeroed:
            return torch.zeros_like(stored)
        if planes == EXACT:
            return stored
        if self._script.noise is not None:
            return self._script.noise(stored, planes)
        step = stored.float().abs().amax() / 2 ** (planes - 1)
        return (torch.round(stored.float() / step) * step).to(stored.dtype)

    def release(self) -> None:
        self.released.set()


def _names(chain: bytes) -> list[bytes]:
    return [chain[i : i + 32] for i in range(0, len(chain), 32)]
