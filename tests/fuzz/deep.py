"""`python -m tests.fuzz.deep --seconds N [--only NAME]`: the table of parsers under atheris.

Coverage of kvd guides it, and the mutators of the table make half of what it tries. Each parser has
a process of its own, forked from one that has imported kvd, and an equal part of the time. What one
takes wrong goes to `corpus`, where `make test` tries it again, and the exit status is 1.
"""

import argparse
import ctypes
import io
import os
import random
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from tests.fuzz import parser as table_of
from tests.fuzz.mutate import LONGEST, mutated
from tests.fuzz.parser import CORPUS, Parser, seeds_of, taken

MEMORY_MIB_MAX = 2048
ONE_INPUT_SECONDS_MAX = 60  # A second net: `taken` ends what uses the processor for so long.
LEAST_SECONDS = 2
SHOWN_LINES = 25
_EXECUTED = re.compile(r"stat::number_of_executed_units: (\d+)")


@dataclass(frozen=True, slots=True)
class Campaign:
    """What came of one parser's part of the time."""

    name: str
    executed: int
    seconds: float
    found: tuple[Path, ...]
    status: int  # Of its process, as `waitpid` says.

    @property
    def is_good(self) -> bool:
        return self.executed > 0 and not self.found and self.status == 0

    def line(self) -> str:
        wrong = f"WRONG: {len(self.found)} inputs, status {self.status}"
        verdict = "good" if self.is_good else wrong
        return f"{self.name:20} {self.executed:10,} inputs in {self.seconds:6.1f} s  {verdict}"


def main(words: Sequence[str] | None = None) -> int:
    """Fuzz one parser after the other; return 1 if anything was found, 2 if it cannot begin."""
    flags = argparse.ArgumentParser(prog="python -m tests.fuzz.deep", description=__doc__)
    flags.add_argument("--seconds", type=float, default=600, help="for all parsers together")
    flags.add_argument("--only", action="append", help="the name of a parser; may be repeated")
    flags.add_argument("--corpora", type=Path, help="where inputs of interest are kept")
    options = flags.parse_args(words)
    try:
        import atheris
    except ImportError:
        print("atheris is missing: pip install 'kvd[deep]', as `make test-deep` does")
        return 2
    table = _instrumented(atheris)
    names = options.only or list(table)
    if strange := set(names) - set(table):
        print(f"there is no parser {', '.join(strange)}; there are {', '.join(table)}")
        return 2
    share = max(options.seconds / len(names), LEAST_SECONDS)
    with _scratch() as scratch:
        corpora = options.corpora or scratch / "corpora"
        done = [campaign(table[name], share, corpora, scratch) for name in names]
    executed = sum(each.executed for each in done)
    wrong = [each.name for each in done if not each.is_good]
    verdict = f"wrong: {', '.join(wrong)}" if wrong else "good"
    print(f"{executed:,} inputs of {len(done)} parsers; {verdict}")
    return int(bool(wrong))


def _instrumented(atheris: ModuleType) -> dict[str, Parser]:
    """Return the table, with kvd imported so that its coverage is seen."""
    watched = atheris.instrument_imports(include=["kvd"], exclude=["kvd.testing"])
    with redirect_stderr(io.StringIO()), watched:  # It says a line for each module.
        from tests.fuzz.table import BY_NAME
    return BY_NAME


@contextmanager
def _scratch() -> Iterator[Path]:
    """Make a directory that is removed here, and by none of the forks."""
    path = Path(tempfile.mkdtemp(prefix="kvd-deep-", dir=table_of.scratch_home))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def campaign(
    parser: Parser, seconds: float, corpora: Path, scratch: Path, home: Path = CORPUS
) -> Campaign:
    """Fuzz one parser in a fork, move what it found below `home`, and say so."""
    corpus, found, log = corpora / parser.name, scratch / "found", scratch / "log"
    for directory in (corpus, found):
        directory.mkdir(parents=True, exist_ok=True)
    begin = time.monotonic()
    child = os.fork()
    if child == 0:
        try:
            _send_output_to(log)
            table_of.scratch_home = str(scratch)
            _fuzz(parser, seconds, corpus, found)
        finally:
            # Not Python's exit, as all this is the parent's; but libFuzzer keeps the input then.
            ctypes.CDLL(None).exit(1)
    _, status = os.waitpid(child, 0)
    took, said = time.monotonic() - begin, log.read_text(errors="replace")
    kept = tuple(_keep(path, home / parser.name) for path in sorted(found.iterdir()))
    executed = _EXECUTED.search(said)
    result = Campaign(parser.name, int(executed[1]) if executed else 0, took, kept, status)
    print(result.line(), flush=True)
    if not result.is_good:
        print("\n".join(said.splitlines()[-SHOWN_LINES:]))
        print("\n".join(f"kept: {path}" for path in kept), flush=True)
    return result


def _send_output_to(log: Path) -> None:
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    for standard in (1, 2):
        os.dup2(descriptor, standard)


def _keep(path: Path, home: Path) -> Path:
    home.mkdir(parents=True, exist_ok=True)
    return Path(shutil.move(path, home / path.name))


def _fuzz(parser: Parser, seconds: float, corpus: Path, found: Path) -> None:
    """Fuzz until the time is over or something is found; libFuzzer ends this process."""
    import atheris

    for number, seed in enumerate(seeds_of(parser)):
        (corpus / f"seed-{number}").write_bytes(seed)
    flags = [
        f"-max_total_time={seconds:.0f}", f"-max_len={LONGEST}", "-print_final_stats=1",
        f"-timeout={ONE_INPUT_SECONDS_MAX}", f"-rss_limit_mb={MEMORY_MIB_MAX}",
        f"-artifact_prefix={found}/",
    ]  # fmt: skip

    def attempt(data: bytes) -> None:
        taken(parser, data)

    def mutate(data: bytes, size: int, seed: int) -> bytes:
        rng = random.Random(seed)
        if rng.random() < 0.5:
            return mutated(rng, parser, data)[:size]
        out = atheris.Mutate(data, max(1, len(data)))
        return (parser.mend(out) if rng.random() < 0.5 else out)[:size]

    atheris.Setup([sys.argv[0], *flags, str(corpus)], attempt, custom_mutator=mutate)
    atheris.Fuzz()


if __name__ == "__main__":
    sys.exit(main())
