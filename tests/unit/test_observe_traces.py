"""Spans of requests in memory: what they say, whose children they are, and going without them."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest

from kvd.core.effects import FetchDone, LaneColumns, Promise, Sealed, Shortfall
from kvd.core.events import Delivery, FetchWanted, ReleaseWanted, SealWanted
from kvd.errors import ErrorKind, KvdError
from kvd.observe.observer import Observer
from kvd.observe.traces import Traces, open_traces
from kvd.rpc.watched import Watched
from kvd.types import Lane

pytest.importorskip("opentelemetry.sdk")
from opentelemetry.sdk.trace.export import SimpleSpanProcessor  # noqa: E402
from opentelemetry.sdk.trace.export.in_memory_span_exporter import (  # noqa: E402
    InMemorySpanExporter,
)

CHAIN = bytes(range(64))
CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
NONE = np.zeros(0, np.uint64)


class Asker:
    """Who waits for an answer."""

    def __init__(self, traceparent: str = "") -> None:
        self.traceparent, self.told = traceparent, []

    def answer(self, outcome) -> None:
        self.told.append(outcome)

    def promise(self, promise) -> None:
        self.told.append(promise)

    def ready(self, ready) -> None:
        self.told.append(ready)


@pytest.fixture
def exporter():
    return InMemorySpanExporter()


@pytest.fixture
def inbox(exporter):
    observer = Observer(("red",))
    observer.traces = Traces(SimpleSpanProcessor(exporter), "1.0")
    times = iter(range(0, 10**12, 1000))
    yield SimpleNamespace(observer=observer, now_ns=lambda: next(times))
    observer.traces.close()


def fetch_wish() -> FetchWanted:
    lanes = (Lane(),)
    return FetchWanted(1, 7, 1, lanes, CHAIN, 2, 0, 0, Delivery.MAP, 0, 0, 10)


def promise(ready: tuple[int, int, int]) -> Promise:
    sizes = (np.array([4096, 4096], np.uint32), np.array([8192], np.uint32), np.zeros(0, np.uint32))
    columns = LaneColumns(NONE, NONE, sizes, (NONE,) * 3, sizes, (NONE,) * 3)
    return Promise(3, (2, 1, 0), (columns,), Shortfall.NOT_STORED, 1, ready)


def test_a_fetch_is_a_span_with_its_events(inbox, exporter):
    asker = Asker(CALLER)
    watched = Watched(fetch_wish(), asker, inbox, "red")
    watched.promise(promise((1, 0, 255)))
    watched.ready((255, 255, 255))
    watched.answer(FetchDone(0))
    [span] = exporter.get_finished_spans()
    assert span.name == "kvd.fetch" and span.kind.name == "SERVER"
    assert dict(span.attributes) == {
        "kvd.tenant": "red", "kvd.session": 7, "kvd.chunks": 2, "kvd.first": "00010203",
        "kvd.lanes": 1, "kvd.classes": 2, "kvd.delivery": "map",
        "kvd.delivered_bytes": 0, "kvd.reason": "none",
    }  # fmt: skip
    assert [event.name for event in span.events] == ["kvd.promise", "kvd.ready", "kvd.done"]
    told = dict(span.events[0].attributes)
    assert told["kvd.bytes"] == 2 * 4096 + 8192 and told["kvd.reason"] == "not_stored"
    assert [told[f"kvd.chunks.{c}"] for c in ("anchor", "residual", "exact")] == [2, 1, 0]
    assert format(span.context.trace_id, "032x") == CALLER.split("-")[1]
    assert format(span.parent.span_id, "016x") == CALLER.split("-")[2]
    assert span.resource.attributes["service.name"] == "kvd"
    assert len(asker.told) == 3


@pytest.mark.parametrize("said", ["", "nonsense", "00-" + "0" * 32 + "-" + "0" * 16 + "-01"])
def test_without_a_caller_it_is_a_root(inbox, exporter, said):
    watched = Watched(fetch_wish(), Asker(said), inbox, "red")
    watched.answer(KvdError(ErrorKind.LATE, "too late"))
    [span] = exporter.get_finished_spans()
    assert span.parent is None
    assert span.status.status_code.name == "ERROR" and span.status.description == "late"


def test_a_seal_says_how_much(inbox, exporter):
    sizes = np.full((2, 3), 4096, np.uint32)
    roots = np.zeros((2, 3), np.uint64)
    Watched(SealWanted(1, 7, 1, 0, sizes, roots, 1, True), Asker(), inbox, "red").answer(
        Sealed(np.ones(2, np.uint8), durable=True)
    )
    [span] = exporter.get_finished_spans()
    assert (span.attributes["kvd.chunks"], span.attributes["kvd.bytes"]) == (2, 6 * 4096)
    assert span.attributes["kvd.durable"] is True


def test_small_calls_are_timed_and_not_traced(inbox, exporter):
    nothing = np.zeros(0, np.uint32)
    Watched(ReleaseWanted(1, 7, 3, nothing), Asker(), inbox, "red").answer(FetchDone(0))
    assert not exporter.get_finished_spans()
    assert inbox.observer.read()["kvd_requests_total"] == {("release", "ok"): 1}


def test_off_is_off():
    with open_traces("", "1.0") as traces:
        assert traces is None


def test_missing_packages_are_named_with_the_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(KvdError, match=r"opentelemetry.* is missing; pip install 'kvd\[otel\]'"):
        open_traces("http://127.0.0.1:1", "1.0").__enter__()
