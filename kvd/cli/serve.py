"""`kvd serve`: puts daemon and rpc together, and sees to signals, logs and the exit code."""

import argparse
import asyncio
import contextlib
import ctypes
import logging
import os
import resource
import signal
import sys
import threading
from dataclasses import replace

from kvd.cli.serve_flags import said_flags
from kvd.cli.service import Service, take_service, whose
from kvd.cli.version import version
from kvd.clock import seconds_since_1970
from kvd.config import LogSettings, ServeConfig, serve_config
from kvd.daemon.loop import Daemon, exit_on_bug
from kvd.daemon.loop import run as run_loop
from kvd.daemon.memory_bound import dram_that_fits
from kvd.daemon.quotas import quotas_of
from kvd.daemon.recovery import FoundTier, find_tier
from kvd.errors import KvdError
from kvd.limits import GIB
from kvd.observe.endpoint import open_endpoint
from kvd.observe.logs import start_log
from kvd.observe.observer import Observer
from kvd.observe.traces import open_traces
from kvd.rpc.server import Server
from kvd.units import human

EXIT_OK = 0
EXIT_CANNOT_START = 2

SWITCH_SECONDS = 0.0005
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3

_log = logging.getLogger("kvd.serve")


def run(arguments: argparse.Namespace) -> int:
    """Serve until a signal; return the exit code."""
    start_log(LogSettings(format="text"), sys.stderr)  # Until it is known what is wanted.
    if not __debug__:
        return _refuse("python -O strips the assertions that kvd relies on; start it without -O")
    _tune_process()
    threading.excepthook = lambda failed: exit_on_bug(failed.exc_value)
    # Until the loop listens, a signal ends the process: recovery leaves a disk as a crash would.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        config = serve_config(said_flags(arguments), os.environ)
        start_log(config.log, sys.stderr, os.environ.get("JOURNAL_STREAM", ""))
        service = take_service(os.environ)
        service.recovering()
        found = find_tier(config.ssd) if config.ssd else None
        fits = dram_that_fits(config.dram_bytes, service.kept.slabs)
        config = replace(config, dram_bytes=fits)
        run_loop(_serve(config, found, service))
    except KvdError as error:
        return _refuse(error.message)
    except OSError as error:
        return _refuse(f"{error.filename or 'starting'}: {error.strerror}")
    except BaseExceptionGroup as group:
        exit_on_bug(group.exceptions[0])
    return EXIT_OK


async def _serve(config: ServeConfig, found: FoundTier | None, service: Service) -> None:
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(_log_unhandled)
    stop, hurry = asyncio.Event(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, lambda: (hurry if stop.is_set() else stop).set())
    quotas = quotas_of(config, found)
    daemon = Daemon(config.dram_bytes, config.limits, loop, found=found, quotas=quotas)
    observer = daemon.observer = _observer(config, found)
    notifier, owner = service.notifier, whose(config.directory, found)
    try:
        if found is not None:
            _log.info(found.describe())
            daemon.recover(found)
        if chunks := await daemon.succession.take_over(service.kept, owner, notifier):
            _log.info("%d chunks of the daemon before are in dram", chunks)
        async with contextlib.AsyncExitStack() as stack:
            read = daemon.read_metrics
            observer.traces = stack.enter_context(open_traces(config.traces_endpoint, version()))
            stack.enter_context(open_endpoint(config.metrics, loop, read, observer.expand))
            server = await stack.enter_async_context(
                Server(config, daemon, loop, passed=service.listeners)
            )
            daemon.start()
            daemon.desk.on_stop = stop.set
            _log.info(
                f"ready on {config.directory}, dram {human(config.dram_bytes)}, "
                f"tenants {' '.join(config.tenant_names)}, pid {os.getpid()}"
            )
            service.ready(daemon, loop)
            await stop.wait()
            _log.info("draining")
            service.stopping(config.limits.drain_ns)
            await server.stop_accepting()
            await daemon.drain(hurry, is_kept=notifier.is_managed)
            if notifier.is_managed and daemon.succession.leave(owner, notifier):
                _log.info("dram is kept for the next start")
            if hurry.is_set():
                server.grace_s = 0
    finally:
        service.close()
        daemon.close()
    _log.info("stopped")


def _observer(config: ServeConfig, found: FoundTier | None) -> Observer:
    directories = [str(directory.path) for directory in found.directories] if found else []
    return Observer(config.tenant_names, directories, version(), seconds_since_1970())


def _tune_process() -> None:
    """Keep freed memory, as fresh memory costs many times a copy; allow all descriptors there are.

    The loop waits for no other thread's Python longer than it must: a scrape costs tens of
    milliseconds of it.

    Files and sockets are the daemon's own until it says otherwise.
    """
    sys.setswitchinterval(SWITCH_SECONDS)
    libc = ctypes.CDLL(None)
    libc.mallopt(_M_MMAP_THRESHOLD, GIB)
    libc.mallopt(_M_TRIM_THRESHOLD, 2 * GIB - 1)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    os.umask(0o077)


def _log_unhandled(loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
    error = context.get("exception")
    _log.error("%s", context.get("message"), exc_info=error)  # type: ignore[arg-type]


def _refuse(line: str) -> int:
    _log.error("%s", line)
    return EXIT_CANNOT_START
