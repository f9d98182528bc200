"""The /metrics endpoint: one thread that answers one scrape at a time, of what the loop reads.

A loop that does not answer in time is told of as 503; the scrape waits no longer.
"""

import asyncio
import concurrent.futures
import contextlib
import logging
import re
import socket
import socketserver
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import make_wsgi_app

from kvd.config import MetricsSettings
from kvd.errors import ErrorKind, KvdError
from kvd.observe.exposition import Told
from kvd.observe.samples import Reading, Sample

LOOP_SECONDS = 2.0
CLIENT_SECONDS = 5.0  # For all of a scrape, however its client sends and takes.
REST_SECONDS = 0.2  # Between two: whoever may connect asks for no more of the daemon's time.
_PATH = "/metrics"
_VERSIONS = re.compile("version=([^;,]*)")
_VERSION = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})*\s*")

_log = logging.getLogger("kvd.metrics")

Read = Callable[[], Reading]
Expand = Callable[[Reading], list[Sample]]


class LoopIsLate(Exception):
    pass


def read_on(loop: asyncio.AbstractEventLoop, read: Read, seconds: float = LOOP_SECONDS) -> Reading:
    """Return what `read` returns on the loop's thread; raise LoopIsLate."""
    answer: concurrent.futures.Future[Reading] = concurrent.futures.Future()

    def act() -> None:
        if answer.set_running_or_notify_cancel():
            answer.set_result(read())

    try:
        loop.call_soon_threadsafe(act)
        return answer.result(seconds)
    except (TimeoutError, RuntimeError):
        answer.cancel()
        raise LoopIsLate from None


class Endpoint:
    """Listens from the moment it is made; raises KvdError when it cannot."""

    def __init__(self, host: str, port: int, ask: Callable[[], Reading], expand: Expand) -> None:
        self._ask, self._expand = ask, expand
        family = socket.AF_INET6 if ":" in host else socket.AF_INET

        class Listener(_Listener):
            address_family = family

        try:
            self._server = make_server(host, port, self._answer, Listener, _Quiet)
        except OSError as error:
            why = error.strerror or str(error)
            raise KvdError(
                ErrorKind.UNAVAILABLE,
                f"metrics.listen is {host}:{port}: {why}; name another address, or off",
            ) from None
        self._closing = threading.Event()
        threading.Thread(target=self._serve, name="metrics", daemon=True).start()

    @property
    def port(self) -> int:
        return self._server.server_port

    def close(self) -> None:
        """Listen no more; a scrape under way ends by itself, and is not waited for."""
        self._closing.set()
        with contextlib.suppress(OSError):
            self._server.socket.shutdown(socket.SHUT_RDWR)

    def _serve(self) -> None:
        while not self._closing.is_set():
            self._server.handle_request()
            self._closing.wait(REST_SECONDS)
        self._server.server_close()

    def _answer(self, environ: dict[str, str], start_response: Callable) -> Iterable[bytes]:
        if environ["PATH_INFO"] != _PATH:
            return _say(start_response, "404 Not Found", f"metrics are at {_PATH}")
        try:
            reading = self._ask()
        except LoopIsLate:
            return _say(start_response, "503 Service Unavailable", "the daemon does not answer")
        registry = CollectorRegistry(auto_describe=False)
        registry.register(Told(self._expand(reading)))
        return make_wsgi_app(registry)(_readable(environ), start_response)


@contextlib.contextmanager
def open_endpoint(
    settings: MetricsSettings | None, loop: asyncio.AbstractEventLoop, read: Read, expand: Expand
) -> Iterator[Endpoint | None]:
    """Serve metrics while entered; raise KvdError when an address that was named cannot be had."""
    if settings is None:
        yield None
        return
    try:
        ask = partial(read_on, loop, read)
        endpoint = Endpoint(settings.host, settings.port, ask, expand)
    except KvdError as error:
        if not settings.is_default:
            raise
        _log.warning("going on without metrics: %s", error.message)
        yield None
        return
    try:
        yield endpoint
    finally:
        endpoint.close()


class _Listener(WSGIServer):
    def handle_error(self, request: object, client_address: object) -> None:
        _log.debug("a scrape ended early", exc_info=True)

    def process_request(self, request: socket.socket, client_address: object) -> None:
        """Answer one client, which is cut off in time even if it sends a byte now and then."""
        left = threading.Timer(CLIENT_SECONDS, _cut, (request,))
        left.daemon = True
        left.start()
        try:
            super().process_request(request, client_address)
        finally:
            left.cancel()

    def server_bind(self) -> None:
        socketserver.TCPServer.server_bind(self)  # Without asking a name server who we are.
        self.server_name, self.server_port = self.server_address[:2]
        self.setup_environ()


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


def _readable(environ: dict[str, str]) -> dict[str, str]:
    """Return a request whose Accept names numbers as versions, or none: the library fails there."""
    versions = _VERSIONS.findall(environ.get("HTTP_ACCEPT", ""))
    if all(map(_VERSION.fullmatch, versions)):
        return environ
    return {name: value for name, value in environ.items() if name != "HTTP_ACCEPT"}


def _cut(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def _say(start_response: Callable, status: str, line: str) -> Iterable[bytes]:
    start_response(status, [("Content-Type", "text/plain; charset=utf-8")])
    return [line.encode() + b"\n"]
