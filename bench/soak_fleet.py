"""The clients of a soak as processes: begun, killed, stopped, replaced; and what they tell."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bench.report import ROOT
from bench.serving import as_child
from bench.soak_blows import Blow, Kind

LEAVE_SECONDS = 30.0
LINES_SHOWN = 9
# Arrays go back to the system when they are freed: what stays is what somebody keeps.
_ENVIRONMENT = {"PYTHONPATH": str(ROOT), "MALLOC_MMAP_THRESHOLD_": "262144"}
_CALLS = ("lookup_us", "fetch_us", "put_us")


@dataclass(slots=True)
class Tally:
    """What all clients told so far. `times` are of calls with one daemon there all the time."""

    requests: int = 0
    skipped: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    why: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    raised: list[str] = field(default_factory=list)
    times: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in _CALLS})
    lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, told: dict[str, Any], *, undisturbed: bool) -> None:
        """Add what a client said of one request; `undisturbed`: it was not stopped meanwhile."""
        with self.lock:
            self.requests += 1
            self.skipped += told["skipped"]
            for name in ("chunks", "good", "stored", "had", "refused", "durable"):
                self.counts[name] += told[name]
            self.counts["fetched"] += max(told["fetched"])
            self.why.update(told["why"])
            self.wrong += told["wrong"]
            if undisturbed and told["steady"]:
                for name in _CALLS:
                    if told[name]:
                        self.times[name].append(told[name])

    def percentile(self, name: str, part: float) -> float:
        """Return microseconds that a part of these calls stayed below; 0 for none at all."""
        times = self.times[name]
        return float(np.percentile(times, 100 * part)) if times else 0.0


class Member:
    """One client's process, and the lines that come from it."""

    def __init__(self, index: int, command: list[str], log: Path, tally: Tally) -> None:
        self.index, self.corrupt, self.blocks = index, 0, 0
        self.ended_by_us = False
        self._tally, self._log = tally, log
        self._stopped_at = self._resumed_at = 0.0
        with log.open("w") as errors:
            self.process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=ROOT,
                env=os.environ | _ENVIRONMENT, preexec_fn=as_child,
            )  # fmt: skip
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def send(self, number: signal.Signals) -> None:
        """Send a signal to a process that may be gone."""
        if number == signal.SIGSTOP:
            self._stopped_at, self._resumed_at = time.monotonic(), float("inf")
        elif number == signal.SIGCONT:
            self._resumed_at = time.monotonic()
        if self.process.poll() is None:
            self.process.send_signal(number)

    def wait(self) -> int:
        """Return the exit code once all that it said was taken in; kill it when it hangs."""
        try:
            code = self.process.wait(LEAVE_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        self._reader.join()
        return code

    def last_words(self) -> str:
        """Return the last lines of what it said: where it raised, and what."""
        lines = self._log.read_text().strip().splitlines()
        said = [line.strip() for line in lines[-LINES_SHOWN:]]
        return " | ".join(said) or "nothing was said"

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if not line.endswith("\n"):
                return  # Killed while it wrote.
            told = json.loads(line)
            apart = told["end_s"] < self._stopped_at or told["begin_s"] > self._resumed_at
            self._tally.take(told, undisturbed=apart or not self._stopped_at)
            self.corrupt = max(self.corrupt, told["corrupt"])
            self.blocks = told["blocks"] or self.blocks


class Fleet:
    """So many clients at any time: who ends is replaced."""

    def __init__(self, directory: Path, replay: Path, clients: int, logs: Path) -> None:
        self._directory, self.replay = directory, replay
        self._clients, self._logs = clients, logs
        self._begin_s = 0.0
        self.tally = Tally()
        self.done: Counter[Kind] = Counter()
        self.members: list[Member] = []
        self.corrupt = 0  # Of those who are gone.

    def begin(self, begin_s: float) -> None:
        """Begin all clients; requests are due from `begin_s` on the monotonic clock."""
        self._begin_s = begin_s
        self.members = [self._start(index) for index in range(self._clients)]

    def strike(self, blow: Blow) -> None:
        """Do to a client what the blow says."""
        member = self.members[blow.client]
        match blow.kind:
            case Kind.KILL:
                member.ended_by_us = True
                member.send(signal.SIGKILL)
                self._replace(member)
            case Kind.LEAVE:
                self._ask_to_leave(member)
                self._replace(member)
            case Kind.STOP:
                member.send(signal.SIGSTOP)
            case Kind.RESUME:
                member.send(signal.SIGCONT)
        self.done[blow.kind] += 1

    def mend(self) -> None:
        """Replace who ended by himself: a call of his raised."""
        for member in list(self.members):
            if not member.ended_by_us and member.process.poll() is not None:
                self._replace(member)

    def leave(self) -> None:
        """Have all of them leave in order, and wait for it."""
        for member in self.members:
            self._ask_to_leave(member)
        for member in self.members:
            self._judge_end(member)
        self.members = []

    def close(self) -> None:
        """End what still runs, whatever it does."""
        for member in self.members:
            member.process.kill()
            member.process.wait()

    def _ask_to_leave(self, member: Member) -> None:
        member.ended_by_us = True
        member.send(signal.SIGCONT)
        member.send(signal.SIGTERM)

    def _replace(self, member: Member) -> None:
        self._judge_end(member)
        self.members[member.index] = self._start(member.index)

    def _judge_end(self, member: Member) -> None:
        code = member.wait()
        self.corrupt += member.corrupt
        # One that is asked to leave before it listens is ended by that.
        killed = member.ended_by_us and code in (-signal.SIGKILL, -signal.SIGTERM)
        if code and not killed:
            self.tally.raised.append(
                f"client {member.index} ended with {code}: {member.last_words()}"
            )

    def _start(self, index: int) -> Member:
        words = [
            str(self._directory),
            str(self.replay),
            str(self._begin_s),
            str(index),
            str(self._clients),
        ]
        command = [sys.executable, "-m", "bench.soak_client", *words]
        return Member(index, command, self._logs / f"client-{index}.log", self.tally)
