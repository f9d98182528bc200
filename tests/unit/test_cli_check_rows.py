"""What `kvd check` finds wrong in what a catalog says, each record of it sound in itself."""

import os
from dataclasses import replace

import numpy as np
import pytest

from kvd.catalog.contract import Changes, Table
from kvd.checking.chains import parents_of, settled
from kvd.checking.findings import KEPT_OF_A_KIND, Finding, Findings, Kind, Level
from kvd.checking.holdings import Strips, overlapping
from kvd.format.keyspaces import pack_keyspace
from kvd.format.records import SEGMENT_KEY_BYTES, empty_segments, seal_segments
from kvd.format.rows import empty_rows, keys_of, put_lane, seal_rows
from kvd.limits import PAGE_BYTES
from kvd.table import TABLE_ENTRY
from kvd.testing.disk_strips import CELLS
from kvd.types import Lane, SegmentState
from tests.unit.catalog_scene import CatalogScene
from tests.unit.check_scene import (
    DIGEST,
    KEYSPACE,
    MARK,
    SEGMENT_BYTES,
    Check,
    change_catalog,
    changed_row,
    flip,
    look_here,
    make_set,
    tell,
)
from tests.unit.test_cli_check_repair import WHOLE, classes_of, lost, repaired


@pytest.fixture
def check(capsys, monkeypatch):
    look_here(monkeypatch)
    return Check(capsys)


def whats(answer):
    return [finding["what"].split("): ")[-1].split(") ")[-1] for finding in answer.findings]


# ---- chunks ----


def test_a_chunk_without_its_parent_is_dropped_with_all_behind_it(tmp_path, check):
    made = make_set(tmp_path)
    change_catalog(made, Changes(dropped_rows=keys_of(made.rows[[1, 6]])))
    answer = check.json(made.paths)
    assert whats(answer) == ["the chunk before it is not there"] * 2
    findings, left = repaired(made, check, level="left")
    assert findings == [("chain", "left", "catalog")] * 2 and left == {0: 3}


def test_a_chunk_with_more_classes_than_its_parent_loses_them(tmp_path, check):
    made = make_set(tmp_path)
    row = made.rows[2:3].copy()
    for name in ("root", "segment", "epoch", "page", "pages", "directory"):
        row[name][0, 1:] = 0
    seal_rows(row)
    change_catalog(made, Changes(rows=row))
    answer = check.json(made.paths)
    assert whats(answer) == ["the chunk before it has fewer classes"]
    assert "generation 1003" in answer.findings[0]["what"]
    _, left = repaired(made, check)
    assert lost(made, left) == {2: (3, 1), 3: (3, 1), 4: (3, 1), 5: (2, 1)}


def test_a_chain_without_a_beginning_is_dropped(tmp_path, check):
    made = make_set(tmp_path)
    rows = changed_row(made, 0, parent=made.rows["chain"][3])
    change_catalog(made, Changes(rows=rows))
    assert whats(check.json(made.paths)) == ["its chain has no beginning"] * 6
    _, left = repaired(made, check)
    assert left == {chunk: WHOLE[chunk] for chunk in (6, 7, 8, 9)}


def test_an_unknown_profile_and_a_lane_that_cannot_be(tmp_path, check):
    made = make_set(tmp_path)
    change_catalog(made, Changes(rows=changed_row(made, 4, profile=77)))
    [finding] = check.json(made.paths, "--quick").findings
    assert finding["kind"] == "row" and finding["what"].endswith("profile 77 is not known")
    lane = changed_row(made, 5, kv_group=7, parent=0)
    change_catalog(made, Changes(rows=lane, dropped_rows=keys_of(made.rows[5:6])))
    answer = check.json(made.paths, "--quick")
    assert whats(answer) == [
        "its codec profile 77 is not known", "its keyspace's block shape has no such lane"
    ]  # fmt: skip
    _, left = repaired(made, check)
    assert left == {chunk: WHOLE[chunk] for chunk in (0, 1, 2, 3, 6, 7, 8, 9)}


def test_a_generation_that_may_be_given_out_again(tmp_path, check):
    made = make_set(tmp_path)
    row = changed_row(made, 9, generation=MARK)
    change_catalog(made, Changes(rows=row))
    found = {f["what"].split("): ")[-1]: f["repair"] for f in check.json(made.paths).findings}
    said = f"its generation may be given out again, as all from {MARK} on"
    assert found.pop(said) == "raises the mark above it"
    # The strips are of another generation, so their roots are wrong.
    assert len(found) == 2
    answer = check.json(made.paths, "--repair")
    assert answer.code == 1
    assert check.json(made.paths).report["catalog"]["generation"] == MARK + 1


# ---- places ----


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"pages": (2, 1, 1)}, "shares pages with another one"),
        ({"page": (15, 15, 1), "pages": (2, 1, 1)}, "is not all inside of its file"),
        ({"page": (1 << 28, 15, 1), "pages": (1 << 21, 1, 1)}, "is not all inside of its file"),
    ],
)
def test_places_that_cannot_be(tmp_path, check, columns, said):
    made = make_set(tmp_path)
    change_catalog(made, Changes(rows=changed_row(made, 3, **columns)))
    for flags in ((), ("--quick",)):
        answer = check.json(made.paths, *flags)
        assert answer.code == 1 and said in whats(answer)
    found, left = repaired(made, check)
    assert ("strip", "wrong", made.placed[3, 0].path.name) in found
    assert not {3, 4, 5} & left.keys()


@pytest.mark.parametrize("inside", [0, 1, 2])
def test_a_strip_inside_of_the_last_one_costs_it_no_bytes(tmp_path, check, inside):
    made = make_set(tmp_path)
    outer, inner = made.placed[8, 0], made.placed[9, 0]
    assert outer.path == inner.path and (outer.pages, inner.pages) == (3, 1)
    pages = made.rows["page"][9].copy()
    pages[0] = outer.page + inside
    change_catalog(made, Changes(rows=changed_row(made, 9, page=pages)))
    of_outer = [f["what"] for f in check.json(made.paths).findings if "1008)" in f["what"]]
    assert [what.split(") ")[1] for what in of_outer] == ["shares pages with another one"]


def test_strips_in_a_free_segment_can_be_written_over(tmp_path, check):
    made = make_set(tmp_path)
    path = made.placed[9, 1].path
    row = empty_segments(1)
    row["segment"], row["plane_class"], row["epoch"] = int(path.name), 1, 1
    row["state"] = SegmentState.FREE
    seal_segments(row)
    change_catalog(made, Changes(segments=row))
    strips = [p for p in made.placed.values() if p.path == path]
    answer = check.json(made.paths)
    assert whats(answer) == ["lies in a segment that is free"] * len(strips)
    _, left = repaired(made, check)
    assert lost(made, left) == {p.chunk: (WHOLE[p.chunk], 1) for p in strips}
    assert path.exists()


def test_records_that_were_refused_are_counted_and_dropped(tmp_path, check):
    made = make_set(tmp_path)
    segment = int(made.placed[9, 0].path.name)
    key = empty_segments(1)
    key["segment"] = segment
    change_catalog(made, Changes(dropped=((Table.SEGMENTS, key.tobytes()[:SEGMENT_KEY_BYTES]),)))
    answer = check.json(made.paths)
    gone = {p.chunk for p in made.placed.values() if p.path.name == f"{segment:08d}"}
    assert answer.report["wrong"]["row"] == len(gone)
    assert f"({len(gone)} such)" in answer.findings[0]["what"]
    assert ("file", "left", f"{segment:08d}") in tell(answer)
    answer = check.json(made.paths, "--repair")
    assert check.json(made.paths).findings == []
    assert lost(made, classes_of(made)).keys() == gone


# ---- segments that nothing is in ----


def test_segments_without_strips_may_be_as_a_crash_leaves_them(tmp_path, check):
    made = make_set(tmp_path)
    first, second, third = sorted({p.path for p in made.placed.values()})[:3]
    change_catalog(made, Changes(dropped_rows=keys_of(made.rows)))
    first.unlink()
    flip(second, 100)
    flip(third, 0)
    findings, left = repaired(made, check, level="left")
    assert findings == [("segment", "left", p.name) for p in (first, second, third)]
    assert left == {}


# ---- a catalog that is full ----


def test_a_full_catalog_drops_what_it_cannot_shorten(tmp_path, check):
    made = make_set(tmp_path)
    last = made.rows[9:10].copy()
    for name in ("root", "segment", "epoch", "page", "pages", "directory"):
        last[name][0, 1:] = 0
    seal_rows(last)
    change_catalog(made, Changes(rows=last))
    scene = CatalogScene(made.paths[0], 0)
    names = (replace(KEYSPACE, model="m" * 8000 + str(number)) for number in range(1000))
    while scene.commit(Changes(keyspaces=(pack_keyspace(next(names), "tenant"),))) is None:
        pass
    scene.catalog.close()
    flip(made.placed[8, 1].path, made.placed[8, 1].begin + 48)
    found, answer = check.json(made.paths), check.json(made.paths, "--repair")
    # A look cannot know it: chunk 8 would lose its residual, and 9 has none to lose.
    counts = ("shortened", "dropped")
    assert [found.report["catalog"][name] for name in counts] == [1, 0]
    assert [answer.report["catalog"][name] for name in counts] == [0, 2]
    again = check.json(made.paths)
    assert again.code == 0 and again.findings == []
    assert classes_of(made) == {chunk: WHOLE[chunk] for chunk in range(8)}


def test_a_table_that_cannot_be_is_wrong_whatever_its_root(tmp_path, check):
    made = make_set(tmp_path)
    placed = made.placed[9, 1]
    table = np.frombuffer(placed.strip.data, TABLE_ENTRY, CELLS).copy()
    table["offset"][1] = table["offset"][0]  # Two cells in one place.
    strip = replace(placed.strip, data=table.tobytes() + placed.strip.data[table.nbytes :])
    with open(placed.path, "r+b") as file:
        os.pwrite(file.fileno(), strip.data, placed.begin)
    root = made.rows["root"][9].copy()
    root[1] = strip.root
    change_catalog(made, Changes(rows=changed_row(made, 9, root=root)))
    assert whats(check.json(made.paths)) == ["has a table that cannot be"]
    _, left = repaired(made, check)
    assert lost(made, left) == {9: (2, 1)}


# ---- accounts ----


def test_what_of_a_segment_is_dead_and_what_is_free(tmp_path, check):
    made = make_set(tmp_path)
    free, full = made.placed[9, 1].path, made.placed[0, 0].path
    records = empty_segments(2)
    records["segment"], records["plane_class"] = (int(free.name), int(full.name)), (1, 0)
    records["state"], records["epoch"] = (SegmentState.FREE, SegmentState.FULL), 1
    seal_segments(records)
    gone = sorted({p.chunk for p in made.placed.values() if p.path == free})
    keep = [p for p in made.placed.values() if p.chunk not in gone]
    change_catalog(made, Changes(dropped_rows=keys_of(made.rows[gone]), segments=records))
    answer = check.json(made.paths, "--quick")
    assert answer.code == 0 and any(
        p.path == full and p.chunk in gone for p in made.placed.values()
    )
    found = {segment["segment"]: segment for segment in answer.report["segments"]}
    room = SEGMENT_BYTES - PAGE_BYTES
    for path in {p.path for p in made.placed.values()}:
        strips = [p for p in keep if p.path == path]
        live = sum(p.pages for p in strips) * PAGE_BYTES
        behind = SEGMENT_BYTES - max((p.page + p.pages for p in strips), default=1) * PAGE_BYTES
        expected = {free: room, full: 0}.get(path, behind)
        said = found[int(path.name)]
        assert (said["live_bytes"], said["free_bytes"]) == (live, expected)
        assert said["dead_bytes"] == room - live - expected and said["strips"] == len(strips)


def test_findings_are_kept_up_to_a_number_of_each_kind():
    findings = Findings()
    one = Finding(Kind.CELL, Level.WRONG, "", "", "")
    for count in (KEPT_OF_A_KIND - 1, 1, 5):
        findings.add_all(Kind.CELL, Level.WRONG, count, [one] * count)
    findings.add(replace(one, level=Level.LEFT))
    assert len(findings.kept) == KEPT_OF_A_KIND + 1 and findings.left_out == 5
    assert findings.of(Level.WRONG) == {Kind.CELL: KEPT_OF_A_KIND + 5}
    assert findings.count(Level.LEFT) == 1


# ---- the arithmetic of it ----


def rows_of_chain(links):
    """Return rows of one lane, by number and its parent's, in the order of the catalog."""
    rows = empty_rows(len(links))
    put_lane(rows, DIGEST, Lane())
    for row, (number, parent) in zip(rows, sorted(links.items()), strict=True):
        row["chain"][31], row["parent"][31] = number, parent
        row["chain"][0] = row["parent"][0] = 1
        if not parent:
            row["parent"] = 0
    return rows


def test_parents_are_found_or_missing():
    rows = rows_of_chain({1: 0, 2: 1, 5: 2, 7: 9, 8: 7})
    assert parents_of(rows).tolist() == [5, 0, 1, 6, 3]
    assert parents_of(rows[:0]).tolist() == []
    other = rows.copy()
    put_lane(other, DIGEST, Lane(1))
    # The same chunks of another lane are other rows.
    assert parents_of(np.concatenate((rows[:2], other[1:]))).tolist() == [6, 0, 7, 2, 7, 4]


def settled_plainly(kept, parents):
    out = []
    for row in range(len(kept)):
        least, at, steps = 3, row, 0
        while at < len(kept) and steps <= len(kept):
            least, at, steps = min(least, kept[at]), parents[at], steps + 1
        out.append(0 if at > len(kept) or steps > len(kept) else least)
    return out


@pytest.mark.parametrize("seed", range(8))
def test_what_chunks_keep_is_what_all_before_them_keep(seed):
    rng = np.random.default_rng(seed)
    for _ in range(20):
        count = int(rng.integers(1, 40))
        kept = rng.choice(4, count, p=(0.02, 0.03, 0.05, 0.9)).astype(np.uint8)
        parents = np.maximum(np.arange(count) - rng.choice((1, 1, 1, 2, 5), count), -1)
        parents[parents < 0] = rng.choice((count, count, count + 1))
        order = rng.permutation(count)  # Rows lie in the order of their digests.
        where = np.concatenate((np.argsort(order), [count, count + 1]))
        parents = where[parents[order]]
        if seed % 2:  # Circles.
            parents[rng.integers(0, count)] = rng.integers(0, count)
        assert settled(kept, parents).tolist() == settled_plainly(kept, parents)


@pytest.mark.parametrize("seed", range(15))
def test_overlapping_strips_are_all_found(seed):
    rng = np.random.default_rng(seed)
    count = int(rng.integers(0, 40))
    columns = [rng.integers(0, high, count) for high in (2, 3, 60)]
    order = np.lexsort(columns[::-1])
    directories, segments, pages = (column[order] for column in columns)
    counts = rng.choice((1, 2, 20), count, p=(0.6, 0.35, 0.05))
    strips = Strips(order, order, directories, segments, pages, counts)
    taken = {}
    for at in range(count):
        for page in range(pages[at], pages[at] + counts[at]):
            taken.setdefault((directories[at], segments[at], page), set()).add(at)
    shared = {at for several in taken.values() if len(several) > 1 for at in several}
    assert overlapping(strips).tolist() == sorted(shared)
