"""Spans of requests for OpenTelemetry, where somebody asked for them: its packages are an extra.

They are imported only here, and only then. What is sent is who, how much and how long: of digests
eight digits, of contents nothing.
"""

import contextlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from kvd.errors import ErrorKind, KvdError

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanProcessor

EXPORT_SECONDS = 2.0  # For one batch; what a collector does not take in time is dropped.
QUEUE_SPANS_MAX = 2048
_PATH = "/v1/traces"

Attributes = Mapping[str, str | int | bool]


class Span:
    """One request under way."""

    def __init__(self, span: Any) -> None:
        self._span = span

    def event(self, name: str, attributes: Attributes) -> None:
        self._span.add_event(f"kvd.{name}", _named(attributes))

    def end(self, attributes: Attributes, error: str = "") -> None:
        """End it; `error` is the kind, where the answer was one."""
        from opentelemetry.trace import Status, StatusCode

        self._span.set_attributes(_named(attributes))
        if error:
            self._span.set_status(Status(StatusCode.ERROR, error))
        self._span.end()


class Traces:
    """Spans go to a processor, on whose thread they are sent."""

    def __init__(self, processor: "SpanProcessor", version: str) -> None:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        resource = Resource.create({"service.name": "kvd", "service.version": version})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("kvd", version)
        self._propagator = TraceContextTextMapPropagator()

    def begin(self, call: str, attributes: Attributes, traceparent: str = "") -> Span:
        """Begin a span, behind the caller's where his `traceparent` (W3C) is one."""
        from opentelemetry.trace import SpanKind

        context = self._propagator.extract({"traceparent": traceparent}) if traceparent else None
        return Span(
            self._tracer.start_span(
                f"kvd.{call}", context, kind=SpanKind.SERVER, attributes=_named(attributes)
            )
        )

    def close(self) -> None:
        self._provider.shutdown()


@contextlib.contextmanager
def open_traces(endpoint: str, version: str) -> Iterator[Traces | None]:
    """Send spans to a collector while entered; raise KvdError when the packages are missing."""
    if not endpoint:
        yield None
        return
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise KvdError(
            ErrorKind.UNAVAILABLE,
            f"traces.endpoint is {endpoint}, and {error.name} is missing; "
            "pip install 'kvd[otel]', or leave it out",
        ) from None
    exporter = OTLPSpanExporter(f"{endpoint.rstrip('/')}{_PATH}", timeout=EXPORT_SECONDS)
    processor = BatchSpanProcessor(exporter, max_queue_size=QUEUE_SPANS_MAX)
    traces = Traces(processor, version)
    try:
        yield traces
    finally:
        traces.close()


def _named(attributes: Attributes) -> dict[str, str | int | bool]:
    return {f"kvd.{name}": value for name, value in attributes.items()}
