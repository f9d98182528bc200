"""Request traces as work for clients: which blocks each request has, and when it is due.

A trace is a file of JSON lines, one a request: `timestamp` (ms), `output_length` (tokens) and
`hash_ids`, one for each block of its prompt; an equal id at the same place is an equal prefix.
"""

import gzip
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

ENVIRONMENT = "KVD_TRACES"
PASS_BLOCKS = 1 << 20  # Numbers of blocks that one pass over the traces has to itself.
_SUFFIXES = (".jsonl", ".jsonl.gz")


@dataclass(frozen=True, slots=True)
class Request:
    """`at`: when it came, from 0 to 1 of its trace's span."""

    at: float
    trace: int
    output_tokens: int
    blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Replay:
    """Requests in order: `due_s` f64[n] from the begin of the run, `trace` u8[n], `output` u32[n].

    The blocks of request i are `blocks[begins[i] : begins[i + 1]]`, u32.
    """

    due_s: np.ndarray
    trace: np.ndarray
    output: np.ndarray
    begins: np.ndarray
    blocks: np.ndarray

    def __len__(self) -> int:
        return len(self.due_s)

    def blocks_of(self, request: int) -> np.ndarray:
        return self.blocks[self.begins[request] : self.begins[request + 1]]

    def distinct_blocks(self) -> int:
        """Return how many chunks it takes to hold all of it: blocks of two traces are never one."""
        of_trace = np.repeat(self.trace.astype(np.int64), np.diff(self.begins))
        return len(np.unique(of_trace << 32 | self.blocks))

    def save(self, path: Path) -> None:
        columns = {name: getattr(self, name) for name in self.__slots__}
        np.savez(path, **columns)

    @staticmethod
    def load(path: Path) -> "Replay":
        with np.load(path) as columns:
            return Replay(**{name: columns[name] for name in Replay.__slots__})


def trace_files(directory: Path | None) -> list[Path]:
    """Return the traces in a directory, or in that of the environment; none when there is none."""
    named = directory or (Path(said) if (said := os.environ.get(ENVIRONMENT)) else None)
    if named is None or not named.is_dir():
        return []
    return sorted(path for path in named.iterdir() if path.name.endswith(_SUFFIXES))


def read_traces(paths: Sequence[Path]) -> list[Request]:
    """Return the requests of all traces in the order they come, each spread over its own span."""
    requests = [each for number, path in enumerate(paths) for each in _read(number, path)]
    return sorted(requests, key=lambda request: request.at)


def replay_of(requests: Sequence[Request], count: int, seconds: float) -> Replay:
    """Return the first `count` requests, due within `seconds` at the distances they had.

    Where there are not so many they come again, as new text: with blocks of their own.
    """
    passes, chosen = divmod(count, len(requests))
    rows = [(number, each) for number in range(passes) for each in requests]
    rows += [(passes, each) for each in requests[:chosen]]
    at = np.array([number + each.at for number, each in rows])
    span = max(float(at[-1]), 1e-9)
    lengths = np.array([len(each.blocks) for _, each in rows], np.int64)
    blocks = [np.array(each.blocks, np.uint32) + number * PASS_BLOCKS for number, each in rows]
    return Replay(
        due_s=at / span * seconds,
        trace=np.array([each.trace for _, each in rows], np.uint8),
        output=np.array([each.output_tokens for _, each in rows], np.uint32),
        begins=np.concatenate([[0], np.cumsum(lengths)]),
        blocks=np.concatenate(blocks).astype(np.uint32),
    )


def _read(number: int, path: Path) -> list[Request]:
    data = path.read_bytes()
    text = gzip.decompress(data) if path.suffix == ".gz" else data
    rows = [json.loads(line) for line in text.splitlines()]
    first, last = rows[0]["timestamp"], rows[-1]["timestamp"]
    span = max(last - first, 1)
    return [
        Request(
            (row["timestamp"] - first) / span, number, row["output_length"], tuple(row["hash_ids"])
        )
        for row in rows
        if row["hash_ids"]
    ]
