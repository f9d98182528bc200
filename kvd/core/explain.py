"""Why a chain is found, or where it breaks and why: read from the index and from the story.

Changes nothing. An operator asks; the walk costs a lookup or two for each chunk.
"""

from dataclasses import dataclass, fields
from enum import IntEnum

import numpy as np

from kvd.core.index import NO_ROW, Index, Tree
from kvd.core.state import State
from kvd.core.story import Miss, Note
from kvd.identity import Keyspace
from kvd.limits import DIGEST_BYTES
from kvd.types import CLASS_COUNT, Lane

ALIKE_MAX = 8  # Keyspaces named as nearly the one that was asked.


class Verdict(IntEnum):
    """What is the matter with the first chunk that is not whole. Numbers travel in messages."""

    WHOLE = 0  # Nothing is missing.
    GONE = 1  # It was there, or was being put: the last note says what became of it.
    NEVER_STORED = 2  # No put of it was seen, as far back as the story goes.
    DIVERGES = 3  # What comes before is stored, with other chunks behind it: other tokens.
    OTHER_TENANT = 4
    OTHER_KEYSPACE = 5  # Stored by the same tenant with other fields, which are named.
    OTHER_LANE = 6  # Stored for another kv group, shard or part.
    CONDEMNED = 7  # There, but not offered: its bytes were found wrong. A put heals it.
    SHORTENED = 8  # Some classes are there, those behind them went.
    MISPLACED = 9  # Stored behind another chunk than the one that the chain names.


@dataclass(frozen=True, slots=True)
class Alike:
    """A keyspace that is nearly the one asked: `differing` fields as (name, asked, its own)."""

    tenant: str
    digest: bytes
    differing: tuple[tuple[str, str, str], ...]


@dataclass(frozen=True, slots=True)
class Finding:
    """Of one chunk: `classes` of it are there; `heard_ns`: notes from before may be forgotten."""

    verdict: Verdict
    classes: int
    notes: tuple[Note, ...]
    alike: tuple[Alike, ...]
    heard_ns: int


@dataclass(frozen=True, slots=True)
class LaneReport:
    """`counts` per class; of those `in_dram` and `on_disk`. `first`: what `finding` is about."""

    lane: Lane
    asked: int
    counts: tuple[int, int, int]
    in_dram: tuple[int, int, int]
    on_disk: tuple[int, int, int]
    first: int
    finding: Finding


def explain_chain(state: State, tree: Tree, chain: bytes) -> LaneReport:
    """Report on a chain in one lane; the tree may be one that nothing was ever put in."""
    index, asked = state.index, len(chain) // DIGEST_BYTES
    counts = [0] * CLASS_COUNT
    rows = index.rows_of(tree, chain, index.count(tree, chain, 0))
    in_dram, on_disk = [0] * CLASS_COUNT, [0] * CLASS_COUNT
    for plane_class in range(CLASS_COUNT):
        absent = np.flatnonzero(~index.present[rows, plane_class])
        counts[plane_class] = int(absent[0]) if len(absent) else len(rows)
        some = rows[: counts[plane_class]]
        there = (index.slab[some, plane_class] != 0) & (index.missing[some, plane_class] == 0)
        in_dram[plane_class] = int(there.sum())
        on_disk[plane_class] = int((index.segment[some, plane_class] != 0).sum())
    first = counts[-1]
    begin = first * DIGEST_BYTES
    chunk, before = chain[begin:][:DIGEST_BYTES], chain[:begin][-DIGEST_BYTES:]
    finding = Finding(Verdict.WHOLE, CLASS_COUNT, (), (), state.story.forgotten_ns)
    if chunk:
        finding = _find(state, tree, chunk, before)
    whole, dram, disk = (tuple(column) for column in (counts, in_dram, on_disk))
    return LaneReport(tree.lane, asked, whole, dram, disk, first, finding)  # type: ignore[arg-type]


def explain_miss(state: State, miss: Miss) -> Finding:
    """Say what is the matter, now, with the chunk that a question missed."""
    tree = state.index.trees_by_key.get((miss.digest, miss.lane))
    if tree is None:  # Nothing was ever put in it.
        tree = Tree(NO_ROW, miss.digest, miss.tenant, miss.lane, None, keyspace=miss.keyspace)  # type: ignore[arg-type]
    return _find(state, tree, miss.chunk, miss.before)


def _find(state: State, tree: Tree, chunk: bytes, before: bytes) -> Finding:
    index, story = state.index, state.story
    notes = story.notes.get((tree.digest, tree.lane, chunk), ())
    row = tree.rows.get(chunk, NO_ROW)
    classes, alike = 0, ()
    if row != NO_ROW:
        verdict = _verdict_of_row(index, tree, row, before)
        classes = int(index.present[row].sum())
    elif notes:
        verdict = Verdict.GONE
    else:
        verdict, alike = _elsewhere(state, tree, chunk)
        if verdict == Verdict.NEVER_STORED and _has_others_behind(index, tree, before):
            verdict = Verdict.DIVERGES
    return Finding(verdict, classes, notes, alike, story.forgotten_ns)


def _verdict_of_row(index: Index, tree: Tree, row: int, before: bytes) -> Verdict:
    if index.condemned[row]:
        return Verdict.CONDEMNED
    parent = tree.rows.get(before, NO_ROW) if before else NO_ROW
    if index.parent[row] != parent:
        return Verdict.MISPLACED
    return Verdict.WHOLE if index.complete(row) else Verdict.SHORTENED


def _elsewhere(state: State, tree: Tree, chunk: bytes) -> tuple[Verdict, tuple[Alike, ...]]:
    """Look for the chunk in all other trees, and else for keyspaces that are nearly this one."""
    holders = [other for other in state.index.trees if chunk in other.rows]
    for other in holders:
        if other.digest == tree.digest:
            return Verdict.OTHER_LANE, ()
    own = [other for other in holders if other.tenant == tree.tenant]
    if own:
        return Verdict.OTHER_KEYSPACE, _compared(tree, own)
    if holders:
        return Verdict.OTHER_TENANT, _compared(tree, holders)
    return Verdict.NEVER_STORED, _compared(tree, _of_same_model(state, tree))


def _of_same_model(state: State, tree: Tree) -> list[Tree]:
    assert tree.keyspace is not None
    return [
        other for other in state.index.trees
        if other.rows and other.digest != tree.digest and other.keyspace is not None
        and other.tenant == tree.tenant and other.keyspace.model == tree.keyspace.model
    ]  # fmt: skip


def _compared(tree: Tree, others: list[Tree]) -> tuple[Alike, ...]:
    """Return each keyspace once, those that differ in fewest fields first."""
    found = {}
    for other in others:
        if other.keyspace is not None and tree.keyspace is not None:
            differing = differences(tree.keyspace, other.keyspace)
            found[other.digest] = Alike(other.tenant, other.digest, differing)
    return tuple(sorted(found.values(), key=lambda a: len(a.differing)))[:ALIKE_MAX]


def differences(asked: Keyspace, own: Keyspace) -> tuple[tuple[str, str, str], ...]:
    """Return (field, asked, own) of every field that differs; of the shape, what differs in it."""
    found = []
    for field in fields(Keyspace):
        left, right = getattr(asked, field.name), getattr(own, field.name)
        if left != right:
            found.append((field.name, describe(left), describe(right)))
    return tuple(found)


def describe(value: object) -> str:
    """Return a field of a keyspace in words: a shape as groups of layers x tensors."""
    groups = getattr(value, "groups", None)
    if groups is None:
        return str(value)
    return "; ".join(
        f"{group.layers} layers of "
        + " ".join(f"{t.role.name} {t.heads}x{t.width} {t.dtype.name}" for t in group.tensors)
        for group in groups
    )


def _has_others_behind(index: Index, tree: Tree, before: bytes) -> bool:
    """Return whether other chunks are stored where this one would be."""
    if before:
        parent = tree.rows.get(before, NO_ROW)
        return parent != NO_ROW and bool(index.first_child[parent] != NO_ROW)
    return bool(tree.rows)
