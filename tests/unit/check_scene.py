"""A set of data directories with real strips and a real catalog, and `kvd check` run on it."""

import json
import os
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from lmdb.verify import verify

from kvd.catalog import scan
from kvd.catalog.contract import Changes
from kvd.catalog.looking import damaged
from kvd.cli.main import main
from kvd.disk.contract import SegmentPlace
from kvd.disk.directories import home_of, open_directories
from kvd.disk.files import OsFiles
from kvd.disk.heads import make_segment, segment_path
from kvd.format.keyspaces import pack_keyspace
from kvd.format.records import empty_segments, seal_segments
from kvd.format.rows import empty_rows, put_lane, seal_rows
from kvd.identity import Keyspace, chain_digests, chunk_key
from kvd.limits import DIGEST_BYTES, MIB, PAGE_BYTES
from kvd.shape import BlockShape, KvGroup, TensorShape
from kvd.testing.disk_strips import LANES, PROFILE, Strip, make_strip
from kvd.types import CLASS_COUNT, Dtype, PlaneClass, Role, SegmentState
from tests.unit.catalog_scene import CatalogScene

SEGMENT_PAGES = 16
SEGMENT_BYTES = SEGMENT_PAGES * PAGE_BYTES
GENERATION = 1000  # Of chunk 0; the mark is above all.
MARK = 5000
# Both lanes have three cells: one layer of three heads, and one half of six.
_SHAPE = BlockShape(
    (
        KvGroup(1, (TensorShape(Role.K, 3, 8, Dtype.BF16),)),
        KvGroup(1, (TensorShape(Role.K, 6, 8, Dtype.BF16),)),
    )
)
KEYSPACE = Keyspace("model", "revision", _SHAPE, chunk_tokens=2)
DIGEST, DATA = pack_keyspace(KEYSPACE, "tenant")
LENGTHS = (6, 4)  # Chunks of the chain in each lane.
CLASSES_OF_LAST = 2  # The last chunk of each chain has no exact strip.


@dataclass(frozen=True)
class Placed:
    """A strip and where it lies; `chunk` is its row's number in the scene."""

    chunk: int
    strip: Strip
    path: Path
    page: int

    @property
    def pages(self):
        return len(self.strip.data) // PAGE_BYTES

    @property
    def begin(self):
        return self.page * PAGE_BYTES


@dataclass(frozen=True)
class Made:
    """`rows` are sealed, in the order of the chunks; `placed` by chunk and class."""

    paths: list
    rows: np.ndarray
    placed: dict


def chain_of(lane):
    digests = chain_digests(list(range(100 * lane, 100 * lane + 2 * LENGTHS[lane])), 2)
    return [digests[at : at + DIGEST_BYTES] for at in range(0, len(digests), DIGEST_BYTES)]


def make_set(root, directories=1):
    """Make directories with strips of one to three pages; each class has segments of its own."""
    paths = [root / f"data{number}" for number in range(directories)]
    opened = open_directories(paths, SEGMENT_BYTES, OsFiles())
    rows, placed, pens = empty_rows(sum(LENGTHS)), {}, {}
    records = []
    for lane, length in enumerate(LENGTHS):
        chain = chain_of(lane)
        for at in range(length):
            chunk = lane * LENGTHS[0] + at
            row = rows[chunk : chunk + 1]
            put_lane(row, DIGEST, LANES[lane])
            row["chain"] = np.frombuffer(chain[at], np.uint8)
            row["parent"] = np.frombuffer(chain[at - 1] if at else bytes(DIGEST_BYTES), np.uint8)
            row["generation"], row["profile"], row["heat"] = GENERATION + chunk, PROFILE, chunk / 4
            for plane_class in list(PlaneClass)[: CLASSES_OF_LAST if at == length - 1 else 3]:
                pages = 1 + (chunk + plane_class) % 3
                strip = replace(
                    make_strip(CLASS_COUNT * chunk + plane_class, pages, plane_class),
                    key=chunk_key(DIGEST, chain[at]), lane=lane, generation=GENERATION + chunk,
                )  # fmt: skip
                place = _place(opened, records, pens, plane_class, pages, chunk)
                number, segment, page = place
                path = Path(segment_path(opened[number], segment))
                with open(path, "r+b") as file:
                    os.pwrite(file.fileno(), strip.data, page * PAGE_BYTES)
                placed[chunk, plane_class] = Placed(chunk, strip, path, page)
                row["root"][0, plane_class] = strip.root
                row["segment"][0, plane_class], row["epoch"][0, plane_class] = segment, 1
                row["page"][0, plane_class], row["pages"][0, plane_class] = page, pages
                row["directory"][0, plane_class] = number
    seal_rows(rows)
    segments = empty_segments(len(records))
    for record, (number, segment, plane_class) in zip(segments, records, strict=True):
        record["directory"], record["segment"], record["plane_class"] = number, segment, plane_class
        record["state"], record["epoch"] = SegmentState.OPEN, 1
    seal_segments(segments)
    scene = CatalogScene(home_of(opened).parent, MIB)
    uuids = tuple(directory.superblock.directory for directory in opened)
    first = Changes(keyspaces=((DIGEST, DATA),), directories=uuids, generation=MARK)
    assert scene.commit(replace(first, rows=rows, segments=segments)) is None
    scene.catalog.close()
    for directory in opened:
        directory.release()
    return Made(paths, rows, placed)


def _place(opened, records, pens, plane_class, pages, chunk):
    """Return directory, segment and page for a strip, making a segment where there is no room."""
    segment, page = pens.get(plane_class, (0, SEGMENT_PAGES))
    if page + pages > SEGMENT_PAGES:
        segment, page = len(records) + 1, 1
        number = segment % len(opened)
        records.append((number, segment, plane_class))
        place = SegmentPlace(number, segment, 1, plane_class)
        assert make_segment(OsFiles(), opened[number], place) is None
    pens[plane_class] = segment, page + pages
    return segment % len(opened), segment, page


class LookHere:
    """Looks at a catalog in this process: only for files that cannot end it."""

    def __init__(self, path, numbers=(), descriptors=()):
        self._path, self._problems = path, []
        if numbers:
            key_bytes, value_bytes, rows, others = map(int, numbers)
            scan.scan(str(path), (key_bytes, value_bytes), rows, others)
        else:
            self._problems = verify(str(path))

    def verdict(self):
        return damaged(self._path, self._problems[0]) if self._problems else None

    def give_up(self):
        pass


def look_here(monkeypatch):
    """Save the processes that look at catalogs, as damaged ones are tried elsewhere."""
    for room in ("kvd.catalog.loading", "kvd.catalog.committing", "kvd.checking.believing"):
        monkeypatch.setattr(f"{room}.Look", LookHere)


def flip(path, offset, bit=0):
    with open(path, "r+b") as file:
        [byte] = os.pread(file.fileno(), 1, offset)
        os.pwrite(file.fileno(), bytes([byte ^ 1 << bit]), offset)


@dataclass(frozen=True)
class Answer:
    code: int
    out: str
    err: str

    @property
    def report(self):
        return json.loads(self.out)

    @property
    def findings(self):
        return self.report["findings"]


class Check:
    """Runs the verb as a person would, and sees that what it says is never a traceback."""

    def __init__(self, capsys):
        self._capsys = capsys

    def __call__(self, paths, *flags):
        words = [word for path in paths for word in ("--data", str(path))]
        code = main(["check", *words, *flags])
        out, err = self._capsys.readouterr()
        assert "Traceback" not in out + err
        return Answer(code, out, err)

    def json(self, paths, *flags):
        answer = self(paths, "--json", *flags)
        assert answer.err == "" and answer.out.count("\n") == 1
        return answer

    def refused(self, paths, *flags):
        """Return the one line that says why nothing was checked."""
        answer = self(paths, *flags)
        assert (answer.code, answer.out) == (2, "")
        assert answer.err.startswith("kvd: ") and answer.err.count("\n") == 1
        return answer.err


def change_catalog(made, changes):
    """Commit changes to the catalog of a set."""
    scene = CatalogScene(made.paths[0], MIB)
    assert scene.commit(changes) is None
    scene.catalog.close()


def changed_row(made, chunk, **columns):
    """Return one sealed row with other values in some columns; a callable changes what is there."""
    row = made.rows[chunk : chunk + 1].copy()
    for name, value in columns.items():
        row[name] = value
    seal_rows(row)
    return row


def segment_bytes_of(made):
    """Return the content of each segment file there is."""
    files = (file for path in made.paths for file in (path / "segments").iterdir())
    return {file: file.read_bytes() for file in files}


def tell(answer):
    """Return what was found, as (kind, level, the file's name)."""
    return [(f["kind"], f["level"], Path(f["where"].split(" ")[0]).name) for f in answer.findings]
