"""A damaged catalog is a fault with one message, or has lost what was damaged; never a crash."""

import errno
import os
import shutil
import struct
import sys

import lmdb
import numpy as np
import pytest
from lmdb.verify import verify

from kvd.catalog.committing import open_catalog
from kvd.catalog.contract import Changes, Contents, Refusal, Table
from kvd.catalog.environment import Environment, remove_catalog
from kvd.catalog.loading import load_catalog
from kvd.catalog.looking import Look
from kvd.checksum import checksum
from kvd.clock import MonotonicClock
from kvd.errors import Fault, FaultKind
from kvd.format.keyspaces import pack_keyspace
from kvd.format.records import Meta, pack_meta
from kvd.format.rows import KEY_BYTES, put_lane, seal_rows
from kvd.identity import Keyspace
from kvd.limits import MIB
from kvd.shape import BlockShape
from kvd.types import Dtype, Lane
from tests.unit.catalog_scene import (
    DIGEST,
    DIRECTORY,
    FOUNDATION,
    CatalogScene,
    rows_of,
    segments_of,
)

ROWS = rows_of(range(400))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Return the directory of a closed catalog with everything in it."""
    scene = CatalogScene(tmp_path_factory.mktemp("whole"))
    assert scene.commit(FOUNDATION) is None
    for at in range(0, len(ROWS), 40):
        assert scene.commit(Changes(rows=ROWS[at : at + 40])) is None
    scene.catalog.close()
    return scene.path


@pytest.fixture
def copy(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "catalog")


def fault_of(path):
    fault = load_catalog(path)
    assert isinstance(fault, Fault)
    assert str(path) in fault.message and "\n" not in fault.message
    return fault


def used_bytes(path):
    with lmdb.open(str(path), readonly=True, lock=False) as environment:
        return (environment.info()["last_pgno"] + 1) * 4096


def put_raw(path, *entries):
    with lmdb.open(str(path), max_dbs=16, map_size=4 << 20) as environment:
        tables = {t: environment.open_db(t.encode()) for t in Table}
        with environment.begin(write=True) as transaction:
            for table, key, value in entries:
                transaction.put(key, value, db=tables[table])


def test_no_catalog_is_gone(tmp_path):
    assert fault_of(tmp_path / "catalog").kind == FaultKind.GONE
    (tmp_path / "catalog").mkdir()
    assert fault_of(tmp_path / "catalog").kind == FaultKind.GONE


@pytest.mark.parametrize("size", [0, 100, 4096, 8192, 3 * 4096, 9 * 4096])
def test_a_file_that_was_cut_off_is_damaged(copy, size):
    os.truncate(copy / "data.mdb", size)
    assert fault_of(copy).kind == FaultKind.FORMAT


def test_a_file_of_something_else_is_damaged(copy):
    for data in (bytes(1 << 20), b"x" * (1 << 20), np.random.default_rng(1).bytes(1 << 20)):
        (copy / "data.mdb").write_bytes(data)
        assert fault_of(copy).kind == FaultKind.FORMAT


def believed(contents):
    """See that everything in it is what was put."""
    intact = {row.tobytes() for row in ROWS}
    assert {row.tobytes() for row in contents.rows} <= intact
    assert contents.meta == Meta(100, (DIRECTORY,)) or contents.meta == Meta()
    assert {s.tobytes() for s in contents.segments} <= {s.tobytes() for s in segments_of()}
    assert contents.keyspaces.keys() <= {DIGEST}


@pytest.mark.parametrize("seed", range(20))
def test_any_flipped_bit_is_a_fault_or_costs_what_it_hit(copy, seed):
    rng = np.random.default_rng(seed)
    with open(copy / "data.mdb", "r+b") as file:
        for _ in range(1 + seed % 3):
            # Half of them at the heads of pages and their pointers, where LMDB believes most.
            page = int(rng.integers(0, used_bytes(copy) // 4096))
            offset = int(rng.integers(0, 64 if seed % 2 else 4096))
            file.seek(page * 4096 + offset)
            [byte] = file.read(1)
            file.seek(page * 4096 + offset)
            file.write(bytes([byte ^ (1 << int(rng.integers(0, 8)))]))
    match load_catalog(copy):
        case Fault(kind, message):
            assert kind == FaultKind.FORMAT and "\n" not in message
        case Contents() as contents:
            believed(contents)


def test_a_flipped_bit_in_a_row_costs_that_row(copy):
    data = (copy / "data.mdb").read_bytes()
    victim = ROWS[123].tobytes()[84:180]
    assert data.count(victim) >= 1
    (copy / "data.mdb").write_bytes(data.replace(victim, bytes([victim[0] ^ 1]) + victim[1:]))
    contents = load_catalog(copy)
    believed(contents)
    assert len(contents.rows) == 399 and contents.refused == {Refusal.DAMAGED: 1}


def flip_a_first_key(path):
    """Make a key that begins a page of rows less than it was: a search turns to the page before."""
    file = path / "data.mdb"
    data = file.read_bytes()
    for row in ROWS:
        at = data.index(row.tobytes()) + KEY_BYTES - 12
        if not data[at]:
            continue
        file.write_bytes(data[:at] + bytes([data[at] & data[at] - 1]) + data[at + 1 :])
        if not all_are_found(path):
            return
    raise AssertionError("no row begins a page")


def all_are_found(path):
    with (
        lmdb.open(str(path), max_dbs=16, readonly=True, lock=False) as environment,
        environment.begin() as transaction,
    ):
        table = environment.open_db(Table.ROWS.encode(), txn=transaction, create=False)
        keys = transaction.cursor(table).iternext(values=False)
        return all(transaction.get(key, db=table) is not None for key in keys)


def test_a_damaged_record_that_no_search_finds_can_be_purged(copy):
    flip_a_first_key(copy)
    contents = load_catalog(copy)
    assert contents.refused == {Refusal.DAMAGED: 1}
    environment = Environment(copy, 1 << 20)
    environment.apply([contents.purge])
    environment.close()
    assert load_catalog(copy).refused == {}


def test_what_is_refused_can_be_purged(copy):
    lost = np.concatenate([rows_of([1000]), rows_of([1001])])
    put_lane(lost[:1], b"unknown keyspace".ljust(32), Lane())
    lost["epoch"][1] = (1, 1, 9)
    seal_rows(lost)
    old = lost[0].tobytes()
    put_raw(
        copy,
        (Table.ROWS, old[:84], old[84:]),
        (Table.ROWS, lost[1].tobytes()[:84], lost[1].tobytes()[84:]),
        (Table.ROWS, b"short key", old[84:]),
        (Table.ROWS, b"z" * 84, b"short value"),
        (Table.ROWS, b"y" * 84, bytes(144)),
        (Table.SEGMENTS, b"z" * 8, bytes(16)),
        (Table.SEGMENTS, b"x", b"y"),
        (Table.KEYSPACES, b"z" * 32, b"no keyspace"),
        (Table.META, b"other", b"thing"),
    )
    contents = load_catalog(copy)
    believed(contents)
    assert len(contents.rows) == 400
    assert contents.refused == {
        Refusal.DAMAGED: 7, Refusal.NO_KEYSPACE: 1, Refusal.NO_SEGMENT: 1,
    }  # fmt: skip
    scene = CatalogScene(copy.parent)
    assert scene.commit(contents.purge) is None
    scene.catalog.close()
    again = load_catalog(copy)
    assert again.refused == {} and again.purge.items == 0 and len(again.rows) == 400


def test_rows_whose_segments_are_gone_are_refused(copy):
    scene = CatalogScene(copy.parent)
    key = segments_of()[1].tobytes()[:8]
    assert scene.commit(Changes(dropped=((Table.SEGMENTS, key),))) is None
    scene.catalog.close()
    contents = load_catalog(copy)
    assert len(contents.rows) == 0 and contents.refused == {Refusal.NO_SEGMENT: 400}


def test_rows_without_any_segment_are_refused(copy):
    scene = CatalogScene(copy.parent)
    keys = [segment.tobytes()[:8] for segment in segments_of()]
    assert scene.commit(Changes(dropped=tuple((Table.SEGMENTS, key) for key in keys))) is None
    scene.catalog.close()
    assert load_catalog(copy).refused == {Refusal.NO_SEGMENT: 400}


def resealed(data, version):
    """Return a meta record of another version, with a checksum that fits."""
    out = bytearray(data)
    out[8:12] = struct.pack("<I", version)
    out[16:24] = struct.pack("<Q", checksum(bytes(out[:16] + out[24:])))
    return bytes(out)


@pytest.mark.parametrize(
    ("record", "word"),
    [
        (resealed(pack_meta(Meta()), 0), "older"),
        (resealed(pack_meta(Meta()), 2), "newer"),
        (pack_meta(Meta())[:-1], "damaged"),
        (b"", "kvd did not make it"),
    ],
)
def test_a_meta_record_of_another_version_is_a_fault(copy, record, word):
    put_raw(copy, (Table.META, b"meta", record))
    fault = fault_of(copy)
    assert fault.kind == FaultKind.FORMAT and word in fault.message


def test_a_catalog_without_its_meta_record_is_damaged(copy):
    with lmdb.open(str(copy), max_dbs=16, map_size=4 << 20) as environment:
        table = environment.open_db(Table.META.encode())
        with environment.begin(write=True) as transaction:
            transaction.delete(b"meta", db=table)
    assert fault_of(copy).kind == FaultKind.FORMAT


@pytest.mark.parametrize("table", list(Table))
def test_a_catalog_without_one_of_its_tables_is_damaged(copy, table):
    """As a flipped bit of its name leaves it; who opens it for writing would find out too late."""
    with (
        lmdb.open(str(copy), max_dbs=16, map_size=4 << 20) as environment,
        environment.begin(write=True) as transaction,
    ):
        transaction.drop(environment.open_db(table.encode(), txn=transaction))
    fault = fault_of(copy)
    assert fault.kind == FaultKind.FORMAT and table in fault.message


def test_two_lanes_and_keyspaces_are_kept_apart(tmp_path):
    other = Keyspace("other", "revision", BlockShape.of_attention(2, 1, 8, Dtype.BF16))
    digest, data = pack_keyspace(other, "tenant")
    scene = CatalogScene(tmp_path)
    assert scene.commit(FOUNDATION) is None
    rows = rows_of(range(6))
    put_lane(rows[2:4], DIGEST, Lane(1))
    put_lane(rows[4:], digest, Lane())
    seal_rows(rows)
    assert scene.commit(Changes(rows=rows)) is None
    scene.catalog.close()
    assert load_catalog(scene.path).refused == {Refusal.NO_KEYSPACE: 2}
    scene.open()
    assert scene.commit(Changes(keyspaces=((digest, data),))) is None
    scene.catalog.close()
    contents = load_catalog(scene.path)
    assert contents.refused == {} and len(contents.rows) == 6


def test_damage_that_only_a_writer_would_meet_is_found_before_it_writes(copy):
    scene = CatalogScene(copy.parent)
    assert scene.commit(Changes(generation=100)) is None
    scene.catalog.close()
    data = (copy / "data.mdb").read_bytes()
    found = 0
    for page in range(2, used_bytes(copy) // 4096):
        wrong = bytearray(data)
        wrong[page * 4096] ^= 0x40  # A page's own number, which readers do not look at.
        (copy / "data.mdb").write_bytes(wrong)
        if verify(str(copy)) and isinstance(load_catalog(copy), Contents):
            scene = CatalogScene(copy.parent)
            fault = scene.commit(Changes(rows=rows_of([1])))
            assert fault.kind == FaultKind.FORMAT and str(copy) in fault.message
            scene.catalog.close()
            again = load_catalog(copy)  # By the next daemon, which begins anew.
            assert isinstance(again, Fault) and again.kind == FaultKind.FORMAT
            (copy / "damaged").unlink()
            found += 1
            if found == 3:
                return
    raise AssertionError("no such page")


def test_a_reader_that_is_ended_from_outside_says_nothing_of_the_file(tmp_path):
    os.mkfifo(tmp_path / "data.mdb")
    look = Look(tmp_path)  # It waits for a writer.
    look.give_up()
    fault = look.verdict()
    assert fault.kind == FaultKind.IO and "SIGKILL" in fault.message


def test_a_file_that_cannot_be_read_is_not_called_damaged(copy):
    (copy / "data.mdb").unlink()
    (copy / "data.mdb").mkdir()
    fault = Look(copy).verdict()
    assert fault.kind == FaultKind.IO and os.strerror(errno.EISDIR) in fault.message


BROKEN = {
    "no lmdb": 'mkdir -p "$0.d"; echo "raise ImportError(1)" > "$0.d/lmdb.py"; PYTHONPATH="$0.d"',
    "no descriptors": "ulimit -n 3;",
    "SIGBUS": "kill -BUS $$;",
    "SIGSEGV": "kill -SEGV $$;",
    "an unknown exit": "exit 1;",
    "an end that says nothing": "[ $# -lt 4 ] && exit 1; exit 0;",
}


def have_readers_be(monkeypatch, path, prelude):
    """Have `prelude`, of a shell, come before the program of those who look at catalogs."""
    path.write_text(f'#!/bin/sh\n{prelude} exec {sys.executable} "$@"\n')
    path.chmod(0o700)
    monkeypatch.setattr("kvd.catalog.looking.sys.executable", str(path))


@pytest.mark.parametrize("what", BROKEN)
def test_a_reader_in_trouble_says_nothing_of_the_file(copy, tmp_path, monkeypatch, what):
    have_readers_be(monkeypatch, tmp_path / "reader", BROKEN[what])
    for fault in (load_catalog(copy), Look(copy).verdict()):
        assert isinstance(fault, Fault)
        assert fault.kind == FaultKind.IO and "was not read" in fault.message, fault
        assert "\n" not in fault.message


@pytest.mark.parametrize("prelude", ["kill -KILL $$;", "exit 1;"], ids=["killed", "no reader"])
def test_a_verifier_in_trouble_is_followed_by_another_one(copy, tmp_path, monkeypatch, prelude):
    with monkeypatch.context() as patch:
        have_readers_be(patch, tmp_path / "reader", prelude)
        scene = CatalogScene(copy.parent)
        for _ in range(2):
            assert scene.commit(Changes(generation=200)).kind == FaultKind.IO
    assert scene.commit(Changes(generation=200)) is None
    assert scene.catalog.close()
    assert load_catalog(copy).meta.generation == 200


def test_a_signal_counts_only_where_plain_reads_find_damage(copy, tmp_path, monkeypatch):
    """LMDB reads through a map, where a medium that fails is a signal as well."""
    have_readers_be(monkeypatch, tmp_path / "reader", "if [ $# -gt 3 ]; then kill -BUS $$; fi;")
    assert fault_of(copy).kind == FaultKind.IO
    os.truncate(copy / "data.mdb", 8192)
    fault = fault_of(copy)
    assert fault.kind == FaultKind.FORMAT and "SIGBUS" in fault.message


def test_a_file_that_cannot_be_opened_is_not_called_damaged(copy):
    (copy / "data.mdb").unlink()
    (copy / "data.mdb").mkdir()
    fault = fault_of(copy)
    assert fault.kind == FaultKind.IO and os.strerror(errno.EISDIR) in fault.message


def test_a_path_that_cannot_be_looked_at_is_not_called_gone(copy):
    (copy / "data.mdb").rename(copy / "away")
    (copy / "data.mdb").symlink_to("data.mdb")
    assert fault_of(copy).kind == FaultKind.IO
    fault = open_catalog(copy, MIB, lambda _: None, MonotonicClock())
    assert isinstance(fault, Fault) and fault.kind == FaultKind.IO
    assert (copy / "away").exists()


def test_a_catalog_without_its_data_is_made_anew(copy):
    (copy / "data.mdb").unlink()
    assert fault_of(copy).kind == FaultKind.GONE
    scene = CatalogScene(copy.parent)
    assert scene.commit(FOUNDATION) is None
    scene.catalog.close()
    assert len(load_catalog(copy).rows) == 0


def test_a_damaged_catalog_can_be_removed_and_made_anew(copy):
    (copy / "data.mdb").write_bytes(b"x" * 8192)
    assert fault_of(copy).kind == FaultKind.FORMAT
    remove_catalog(copy)
    assert os.listdir(copy.parent) == []
    scene = CatalogScene(copy.parent)
    assert scene.commit(FOUNDATION) is None
    scene.catalog.close()
