"""The /metrics endpoint over a real socket: what it answers, and when the loop does not."""

import asyncio
import contextlib
import http.client
import logging
import socket
import threading

import pytest
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as parse_openmetrics,
)
from prometheus_client.parser import text_string_to_metric_families

from kvd.clock import NS_PER_S, MonotonicClock
from kvd.config import MetricsSettings
from kvd.errors import KvdError
from kvd.observe.endpoint import REST_SECONDS, Endpoint, LoopIsLate, open_endpoint, read_on
from kvd.observe.metrics import TABLE
from kvd.observe.observer import Observer

DEADLINE_S = 20.0
HERE = "127.0.0.1"


def get(port: int, path: str = "/metrics", method: str = "GET", **headers: str):
    connection = http.client.HTTPConnection(HERE, port, timeout=DEADLINE_S)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


@pytest.fixture
def observer():
    return Observer(("red", 'a"b\\c'), ("/data",), "1.0", 12.5)


@pytest.fixture
def endpoint(observer):
    endpoint = Endpoint(HERE, 0, observer.read, observer.expand)
    yield endpoint
    endpoint.close()


@pytest.fixture
def loop():
    """Yield a loop that runs on a thread of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    thread.join(DEADLINE_S)
    loop.close()


@pytest.mark.parametrize(
    ("accept", "parse"),
    [
        ("text/plain", text_string_to_metric_families),
        ("application/openmetrics-text; version=1.0.0", parse_openmetrics),
    ],
)
def test_both_formats_parse_and_say_help_and_type(endpoint, observer, accept, parse):
    observer.answered("fetch", "ok", 3_000_000)
    status, text = get(endpoint.port, Accept=accept)
    assert status == 200
    families = {family.name: family for family in parse(text)}
    for metric in TABLE:
        family = families[metric.name.removesuffix("_total")]
        assert (family.type, family.documentation) == (metric.kind, metric.help)
        assert family.samples
    seconds = families["kvd_request_seconds"].samples
    assert {s.value for s in seconds if s.labels.get("call") == "fetch"} >= {0.0, 1.0, 0.003}


@pytest.mark.parametrize("version", ["1.ept", "", "x", "1.0.0.0.0", "٣", "9" * 5000])
def test_a_version_that_is_none_leaves_the_plain_format(endpoint, capfd, version):
    accept = f"application/openmetrics-text; version={version}".encode().decode("latin-1")
    status, text = get(endpoint.port, Accept=accept)
    assert status == 200 and "kvd_" in text
    assert capfd.readouterr().err == ""


def test_other_paths_and_methods_are_refused(endpoint):
    assert get(endpoint.port, "/")[0] == 404 and "/metrics" in get(endpoint.port, "/")[1]
    assert get(endpoint.port, method="POST")[0] == 405


def test_a_client_that_leaves_early_harms_nobody(endpoint):
    for _ in range(3):
        connection = http.client.HTTPConnection(HERE, endpoint.port, timeout=DEADLINE_S)
        connection.request("GET", "/metrics")
        connection.close()
    assert get(endpoint.port)[0] == 200


def test_a_client_that_sends_a_byte_now_and_then_is_left(observer, monkeypatch):
    monkeypatch.setattr("kvd.observe.endpoint.CLIENT_SECONDS", 0.3)
    endpoint = Endpoint(HERE, 0, observer.read, observer.expand)
    over = threading.Event()

    def dribble() -> None:
        with contextlib.suppress(OSError), socket.create_connection((HERE, endpoint.port)) as slow:
            connected.set()
            while not over.wait(0.05):
                slow.sendall(b"GET /metrics HTTP/1.1\r\n"[:1])

    connected, thread = threading.Event(), threading.Thread(target=dribble)
    thread.start()
    assert connected.wait(DEADLINE_S)
    assert get(endpoint.port)[0] == 200
    over.set()
    thread.join(DEADLINE_S)
    endpoint.close()


def test_scrapes_without_a_pause_are_spread_out(endpoint):
    clock = MonotonicClock()
    begin_ns = clock.now_ns()
    for _ in range(4):
        assert get(endpoint.port, "/")[0] == 404
    assert clock.now_ns() - begin_ns >= 3 * REST_SECONDS * NS_PER_S


def test_a_loop_that_does_not_answer_is_503_within_the_deadline(observer, loop):
    blocked, go_on = threading.Event(), threading.Event()
    loop.call_soon_threadsafe(lambda: (blocked.set(), go_on.wait(DEADLINE_S)))
    assert blocked.wait(DEADLINE_S)
    read = []
    endpoint = Endpoint(
        HERE,
        0,
        lambda: read_on(loop, lambda: read.append(1) or observer.read(), 0.05),
        observer.expand,
    )
    assert get(endpoint.port)[0] == 503
    go_on.set()
    assert get(endpoint.port)[0] == 200
    assert len(read) == 1, "what nobody waits for any more is not read"
    endpoint.close()


def test_a_loop_that_has_ended_is_late():
    ended = asyncio.new_event_loop()
    ended.close()
    with pytest.raises(LoopIsLate):
        read_on(ended, dict)


def test_a_port_that_is_taken_ends_the_daemon_only_where_it_was_named(
    endpoint, observer, loop, caplog
):
    named = MetricsSettings(HERE, endpoint.port)
    with pytest.raises(KvdError, match=f"metrics.listen is {HERE}:{endpoint.port}: Address"):
        open_endpoint(named, loop, observer.read, observer.expand).__enter__()
    default = MetricsSettings(HERE, endpoint.port, is_default=True)
    caplog.set_level(logging.WARNING, "kvd.metrics")
    with open_endpoint(default, loop, observer.read, observer.expand) as opened:
        assert opened is None
    assert "going on without metrics" in caplog.text


def test_nothing_listens_once_it_is_closed(observer, loop):
    settings = MetricsSettings(HERE, 0)
    with open_endpoint(settings, loop, observer.read, observer.expand) as opened:
        assert get(opened.port)[0] == 200
    with open_endpoint(None, loop, observer.read, observer.expand) as opened:
        assert opened is None
    free = Endpoint(HERE, 0, observer.read, observer.expand)
    port = free.port
    free.close()
    with pytest.raises(OSError):
        while True:  # Until its thread has seen it.
            get(port)
