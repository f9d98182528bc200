"""Run as a process of its own: reads a whole catalog, or verifies every page of its file.

LMDB trusts its file: a damaged page, or a medium that fails under the map, can end the process
that uses it. So another process than the daemon looks at it first. Imports nothing of kvd.
"""

import os
import struct
import sys
from collections.abc import Iterable
from itertools import chain, islice

import lmdb
from lmdb.verify import VerifyError
from lmdb.verify import verify as problems_of

ENTRY = struct.Struct("<BII")  # Table, length of key, length of value; both follow.
END = struct.Struct("<BQ")  # The last entry: no table, and the number of rows.
TABLES = (b"meta", b"keyspaces", b"rows", b"segments")
NO_TABLE = 255
# Exit codes. One that is neither, as of an interpreter that could not begin, is UNREAD as well.
UNREAD = 3  # It could not be seen whether the file is damaged.
DAMAGED = 4  # It was seen.
TABLES_MAX = 16
_AT_ONCE = 4096
_NICE = 10
_SEEN = (lmdb.CorruptedError, lmdb.PageNotFoundError, lmdb.InvalidError)  # In the file itself.
_Entries = list[tuple[bytes, bytes]]


class Damage(Exception):
    """What is wrong with the file, in one line."""


def scan(path: str, row_sizes: tuple[int, int], rows_out: int, others_out: int) -> None:
    """Write rows of these sizes (key, value), joined, to one descriptor and the rest to another."""
    count = 0
    for number, block in _blocks(path):
        rows, others = _split(block, row_sizes) if TABLES[number] == b"rows" else ([], block)
        _write(rows_out, b"".join(chain.from_iterable(rows)))
        _write(others_out, b"".join(_entry(number, *each) for each in others))
        count += len(rows)
    _write(others_out, END.pack(NO_TABLE, count))


def _blocks(path: str) -> Iterable[tuple[int, _Entries]]:
    with (
        lmdb.open(path, readonly=True, create=False, lock=False, max_dbs=TABLES_MAX) as environment,
        environment.begin() as transaction,
    ):
        for number, name in enumerate(TABLES):
            try:
                table = environment.open_db(name, txn=transaction, create=False)
            except lmdb.NotFoundError:
                raise Damage(f"it has no table {name.decode()}") from None
            entries = iter(transaction.cursor(db=table))
            while block := list(islice(entries, _AT_ONCE)):
                yield number, block


def _split(block: _Entries, sizes: tuple[int, int]) -> tuple[_Entries, _Entries]:
    key_bytes, value_bytes = sizes
    fits = [len(key) == key_bytes and len(value) == value_bytes for key, value in block]
    if all(fits):
        return block, []
    pairs = list(zip(block, fits, strict=True))
    return [each for each, fit in pairs if fit], [each for each, fit in pairs if not fit]


def _entry(number: int, key: bytes, value: bytes) -> bytes:
    return ENTRY.pack(number, len(key), len(value)) + key + value


def _write(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def verify(path: str) -> None:
    """Raise Damage with the first problem of the file's structure, its free pages included.

    By plain reads, so a medium that fails is an OSError.
    """
    try:
        problems = problems_of(path)
    except VerifyError as error:
        problems = [str(error)]
    if problems:
        raise Damage(problems[0])


def main(path: str, *numbers: str) -> None:
    if not numbers:
        os.nice(_NICE)  # Nobody waits for it but the first commit.
        verify(path)
        return
    key_bytes, value_bytes, rows_out, others_out = map(int, numbers)
    try:
        scan(path, (key_bytes, value_bytes), rows_out, others_out)
    except _SEEN as error:
        raise Damage(str(error)) from None
    except lmdb.Error:
        verify(path)  # Of a map that cannot be had it is not known why; this may tell.
        raise


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except Damage as error:
        sys.stderr.write(str(error))
        sys.exit(DAMAGED)
    except (MemoryError, lmdb.Error, OSError) as error:  # Says nothing of the file.
        sys.stderr.write(str(error) or "no memory")
        sys.exit(UNREAD)
