"""What the demo's two engine processes do: one stores a document's KV, the other answers from it.

`python -m bench.demo_engine store DIRECTORY`, then `answer`.
"""

import json
import os
import sys
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from bench.report import progress
from kvd.limits import MIB

NEW_TOKENS = 64
CONNECT_SECONDS_MAX = 10
STORE_SECONDS_MAX = 60  # Of one cache, until it is on disk.
INTERRUPTED = 130
console = Console(width=None if sys.stdout.isatty() else 100)


def fail(line: str) -> int:
    """Say in one line what is wrong; return the exit status for it."""
    print(f"demo: {line}", file=sys.stderr)
    return 1


def engine_main(role: str, directory: str) -> int:
    """Run one of the two engine processes."""
    try:
        from bench.model import load_model
        from bench.scene import Scene, document
        from kvd.client import Client

        with progress("loading the model"):
            model, tokenizer = load_model()
        with Client(directory, f"demo {role}", STORE_SECONDS_MAX) as client:
            if not client.wait_connected(CONNECT_SECONDS_MAX):
                return fail(f"no daemon: {client.status().reason}")
            scene, text = Scene(model, client), document(tokenizer)
            if role == "store":
                return _store(scene, text)
            return _Answer(scene, text, tokenizer).show()
    except KeyboardInterrupt:
        return INTERRUPTED
    except RuntimeError as error:
        return fail(str(error))


def _store(scene: Any, text: Any) -> int:
    tokens = len(text.stored)
    console.print(f"[bold]process 1[/] (pid {os.getpid()}): reads a document of {tokens} tokens")
    with progress("prefill, 64 tokens at a time", total=tokens // 64) as advance:
        kept = scene.store(
            text.stored, lambda done, _: advance(f"{done} of {tokens} tokens"), durability="disk"
        )
    stored = kept["kvd"]
    bits = 8 * stored.size_bytes / (tokens * scene.values_per_token)
    console.print(
        f"stored {stored.stored} chunks, {_mib(stored.size_bytes)}, {bits:.2f} bits a value, "
        "on disk; plain caches to compare with beside them. Process 1 ends and forgets everything."
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
        console.print(
            f"[bold]process 2[/] (pid {os.getpid()}): asks a question about it, {len(prompt)} "
            f"tokens in all; its KV comes from disk, and over a link of {link}, anchors first"
        )
        shown = _Shown(self._tokenizer)
        with Live(console=console, get_renderable=shown.render, auto_refresh=False) as live:
            found = self._scene.by_kvd(prompt, Options(NEW_TOKENS), shown.listener(live.refresh))
        if not console.is_terminal:
            console.print()
        if found.missing_chunks:
            return fail(f"{found.missing_chunks} chunks of the document did not come from disk")
        read = _mib(sum(found.class_bytes))
        console.print(f"found on disk: {found.found[0]} chunks, {read} read from there")
        ahead = self._tokenizer.decode(list(found.drafts_ahead))
        console.print(f"drafted while the rest was on its way: {json.dumps(ahead)}")
        rows = []
        with progress("the other ways to the first token", total=len(PLAIN) + 3) as advance:
            self._scene.bring_plain(prompt)
            advance("read from disk")
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
        for heading in ("way", "from", "drafted", "committed", "bytes"):
            table.add_column(heading, justify="left" if heading in ("way", "from") else "right")
        table.add_row("recompute, one forward", "", "", _s(recomputed_ns), "")
        # In memory before the clock started, so that nothing but the link counts against them.
        for name, elapsed_ns, _, size_bytes in rows:
            table.add_row(name, "memory", "", _s(elapsed_ns), _mib(size_bytes))
        drafted = "" if found.first_draft_ns is None else _s(found.first_draft_ns)
        committed, size = _s(found.first_commit_ns), _mib(found.delivered_bytes)
        ours = ("anchors first", "disk", drafted, committed, size)
        table.add_row(*ours, style="bold")
        console.print(table)

    def _counts(self, found: Any, reference: Any) -> None:
        counts = found.counts
        for plane_class, size_bytes in zip(
            ("anchor", "residual", "exact"), found.class_bytes, strict=True
        ):
            console.print(f"{plane_class:9} {_mib(size_bytes):>9}")
        console.print(
            f"drafted {counts.drafted_ahead} tokens before the exact cache was there, "
            f"{counts.accepted_ahead} accepted; later {counts.drafted} drafted on it, "
            f"{counts.accepted} accepted"
        )
        console.print(
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


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / MIB:.1f} MiB"


if __name__ == "__main__":
    sys.exit(engine_main(*sys.argv[1:3]))
