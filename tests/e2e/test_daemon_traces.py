"""Traces of a real daemon, taken in by a collector of the test's own that speaks OTLP over HTTP."""

import http.server
import signal
import threading

import grpc
import pytest

from kvd.v1 import kvd_pb2 as pb
from kvd.v1.kvd_pb2_grpc import KvdStub
from tests.e2e.process import DEADLINE_S, Daemon
from tests.e2e.rawclient import RawClient, chain_of, keyspace_message, small_keyspace
from tests.e2e.strips import lookup, put, read_mapped, register

pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (  # noqa: E402
    ExportTraceServiceRequest,
)

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


class Collector(http.server.HTTPServer):
    """Takes in what is sent, as it was sent."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Taking)
        self.bodies: list[bytes] = []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def spans(self) -> list:
        requests = [ExportTraceServiceRequest.FromString(body) for body in self.bodies]
        return [
            span
            for request in requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]


class _Taking(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        assert self.path == "/v1/traces"
        self.server.bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *words: object) -> None:
        pass


@pytest.fixture
def collector():
    collector = Collector()
    yield collector
    collector.shutdown()
    collector.server_close()


def test_spans_reach_a_collector_by_the_end(short_directory, collector):
    endpoint = f"http://127.0.0.1:{collector.server_port}"
    daemon = Daemon(short_directory, "--dram", "128MiB", "--traces-endpoint", endpoint).ready()
    try:
        client = RawClient(daemon.tenant)
        keyspace = register(client, keyspace_message(small_keyspace("traced")))
        chain = chain_of(2)
        stored = put(client, keyspace, chain, 4, 500)
        lookup(client, stored)
        read_mapped(client, stored)
        _look_up_by_grpc(daemon, client, stored)
        client.close()
        daemon.send(signal.SIGTERM)
        assert daemon.wait() == 0
    finally:
        daemon.stop()
    spans = collector.spans()
    names = [span.name for span in spans]
    assert {"kvd.reserve", "kvd.seal", "kvd.fetch"} <= set(names)
    assert names.count("kvd.lookup") == 2
    [fetch] = [span for span in spans if span.name == "kvd.fetch"]
    assert [event.name for event in fetch.events] == ["kvd.promise", "kvd.done"]
    assert 0 < fetch.end_time_unix_nano - fetch.start_time_unix_nano < DEADLINE_S * 1e9
    [child] = [span for span in spans if span.parent_span_id]
    assert child.name == "kvd.lookup"
    assert (child.trace_id.hex(), child.parent_span_id.hex()) == (TRACE, PARENT)
    sent = b"".join(collector.bodies)
    assert chain.hex()[:8].encode() in sent and chain.hex()[:10].encode() not in sent
    contents = stored.strips[0, 0][100:116].tobytes()
    for secret in (client.welcome.token.encode(), chain[:8], contents):
        assert secret not in sent


def _look_up_by_grpc(daemon: Daemon, client: RawClient, stored) -> None:
    request = pb.LookupRequest(keyspace=stored.keyspace, lanes=[pb.Lane()], chain=stored.chain)
    metadata = (
        ("authorization", f"Bearer {client.welcome.token}"),
        ("traceparent", f"00-{TRACE}-{PARENT}-01"),
    )
    with grpc.insecure_channel(f"unix:{daemon.tenant / 'grpc.sock'}") as channel:
        KvdStub(channel).Lookup(request, metadata=metadata, timeout=DEADLINE_S)


def test_a_collector_that_is_away_holds_nobody_up(short_directory):
    daemon = Daemon(short_directory, "--dram", "128MiB", "--traces-endpoint", "http://127.0.0.1:9")
    try:
        client = RawClient(daemon.ready().tenant)
        keyspace = register(client, keyspace_message(small_keyspace("traced")))
        read_mapped(client, put(client, keyspace, chain_of(2), 4, 500))
        client.close()
        daemon.send(signal.SIGTERM)
        assert daemon.wait() == 0
    finally:
        daemon.stop()
