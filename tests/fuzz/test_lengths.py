"""A length that says everything allocates nothing: what a parser takes goes by what there is."""

import json
import os
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest

from tests.fuzz.parser import Parser, seeds_of, taken
from tests.fuzz.table import BY_NAME, PARSERS
from tests.fuzz.wire import BYTES, HUGE, varint

ROOT = Path(__file__).resolve().parents[2]
SWEPT_BYTES_MAX = 256  # Heads and tables are at the begin.
SEEDS_MAX = 2
ADDRESS_SPACE_BYTES = 192 << 20  # Beyond what the interpreter has, for all parsers together.
WITH_LENGTHS = [parser for parser in PARSERS if parser.lengths]
PROTOBUFS = [parser for parser in PARSERS if parser.protobuf]


def peak_bytes(parser: Parser, data: bytes) -> tuple[bool, int]:
    """Return whether it was taken, and the most memory that this took."""
    tracemalloc.start()
    try:
        answer = taken(parser, data)
        return answer, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def known_lengths(parser: Parser) -> list[bytes]:
    seed = seeds_of(parser)[0]
    return [parser.mend(length.most(seed)) for length in parser.lengths]


def long_fields(parser: Parser) -> list[bytes]:
    """Return messages of which a field says that it has 4 GiB."""
    heads = {seed[: parser.head] for seed in seeds_of(parser)}
    tags = [varint(number << 3 | BYTES) for number in range(1, 11)]
    return [head + tag + HUGE + bytes(20) for head in sorted(heads) for tag in tags]


def refuse_for_nothing(parser: Parser, inputs: list[bytes]) -> None:
    """Assert that none is taken, or takes much more memory than what is good."""
    _, usual = peak_bytes(parser, seeds_of(parser)[0])
    for data in inputs:
        is_taken, peak = peak_bytes(parser, data)
        assert not is_taken and peak <= usual + parser.room_bytes, (peak, data[:80])


@pytest.mark.parametrize("parser", WITH_LENGTHS, ids=lambda parser: parser.name)
def test_the_largest_length_is_refused_and_takes_no_memory(parser):
    assert taken(parser, seeds_of(parser)[0])
    refuse_for_nothing(parser, known_lengths(parser))


@pytest.mark.parametrize("parser", PROTOBUFS, ids=lambda parser: parser.name)
def test_the_longest_field_is_refused_and_takes_no_memory(parser):
    refuse_for_nothing(parser, long_fields(parser))


@pytest.mark.parametrize("parser", PARSERS, ids=lambda parser: parser.name)
def test_no_number_anywhere_takes_memory(parser):
    """Wherever a length may stand: what is there is made the largest, and mended."""
    for seed in seeds_of(parser)[:SEEDS_MAX]:
        _, usual = peak_bytes(parser, seed)
        swept = min(len(seed), SWEPT_BYTES_MAX)
        for at in range(0, swept, 4 * -(-swept // (4 * parser.tries))):
            data = parser.mend(seed[:at] + b"\xff" * 4 + seed[at + 4 :])
            _, peak = peak_bytes(parser, data)
            assert peak <= usual + parser.room_bytes, (at, peak, usual)


def test_nothing_beyond_what_is_there_is_reserved_either():
    """Once more where address space is bounded: of memory that no Python object holds, too."""
    command = [sys.executable, "-m", "tests.fuzz.test_lengths"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout) == {
        parser.name: len(known_lengths(parser)) + len(long_fields(parser) * parser.protobuf)
        for parser in PARSERS
    }


def main() -> None:
    """Say how many inputs of each parser were refused within a bounded address space."""
    import resource

    for parser in PARSERS:  # What is made once is made before.
        taken(parser, seeds_of(parser)[0])
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limit = used + ADDRESS_SPACE_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    refused = {}
    for name, parser in BY_NAME.items():
        inputs = known_lengths(parser) + (long_fields(parser) if parser.protobuf else [])
        refused[name] = sum(not taken(parser, data) for data in inputs)
    print(json.dumps(refused))


if __name__ == "__main__":
    main()
