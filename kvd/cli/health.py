"""`kvd health`: asks a daemon by its sockets whether it serves; for probes, so quick and plain."""

import argparse
import os
import sys
from pathlib import Path

from kvd.cli.health_flags import EXIT_BAD, EXIT_NOBODY, EXIT_OK, EXIT_WRONG
from kvd.config import SOCKET_NAMES, complete
from kvd.errors import KvdError
from kvd.settings_sources import DEFAULT_FILE, settle

_SERVICE = "kvd.v1.Kvd"


def run(arguments: argparse.Namespace) -> int:
    """Ask each socket, print one line, and return the exit code."""
    try:
        sockets = [Path(arguments.socket)] if arguments.socket else _sockets(arguments)
    except KvdError as error:
        print(f"kvd: {error.message}", file=sys.stderr, flush=True)
        return EXIT_WRONG
    worst = EXIT_OK
    for path in sockets:
        state = _ask(path.absolute(), arguments.seconds)
        code = _code(state, alive=arguments.alive)
        worst = max(worst, code)
        print(f"{path}: {state or 'no answer'}", file=sys.stderr if code else sys.stdout)
    return worst


def _sockets(arguments: argparse.Namespace) -> list[Path]:
    """Return the gRPC socket of each tenant; raise INVALID for settings that are refused."""
    said = {"config": arguments.config, "directory": arguments.directory}
    flags = {key: value for key, value in said.items() if value}
    if arguments.tenant:
        flags["tenants"] = arguments.tenant
    settled = complete(settle(flags, os.environ, DEFAULT_FILE), os.environ)
    directory, tenants = settled["directory"].value, settled["tenants"].value
    assert isinstance(directory, Path) and isinstance(tenants, tuple)
    return [directory / tenant / SOCKET_NAMES[-1] for tenant in tenants]


def _ask(path: Path, seconds: float) -> str:
    """Return the state that a daemon answers with, or nothing when none answers in time."""
    import grpc
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    # A proxy in the environment is for the network, and this is a file.
    with grpc.insecure_channel(f"unix:{path}", [("grpc.enable_http_proxy", 0)]) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        request = health_pb2.HealthCheckRequest(service=_SERVICE)
        try:
            reply = stub.Check(request, timeout=seconds)
        except grpc.RpcError:
            return ""
    return health_pb2.HealthCheckResponse.ServingStatus.Name(reply.status).lower()


def _code(state: str, *, alive: bool) -> int:
    if not state:
        return EXIT_NOBODY
    return EXIT_OK if alive or state == "serving" else EXIT_BAD
