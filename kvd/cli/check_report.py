"""What a check found, for people and as one object for programs."""

from collections.abc import Iterator

import numpy as np

from kvd.checking.check import Report, Wish
from kvd.checking.findings import Finding, Level
from kvd.cli.messages import human
from kvd.types import PlaneClass, SegmentState

_ENDS_MAX = 20  # Findings of a level that people are shown.


def as_object(report: Report, wish: Wish) -> dict:
    """Return what `--json` prints; its fields stand in `check_flags`."""
    findings, verdicts = report.findings, report.verdicts
    return {
        "whole": not findings.count(Level.WRONG),
        "quick": wish.quick,
        "repaired": report.repaired,
        "wrong": {str(kind): count for kind, count in findings.of(Level.WRONG).items()},
        "left": {str(kind): count for kind, count in findings.of(Level.LEFT).items()},
        "findings": [_finding(each) for each in findings.kept],
        "findings_left_out": findings.left_out,
        "directories": [
            {
                "path": str(space.path),
                "uuid": space.uuid,
                "allocated_bytes": space.allocated_bytes,
                "segments_bytes": space.segments_bytes,
                "catalog_bytes": space.catalog_bytes,
                "other_bytes": space.other_bytes,
            }
            for space in report.spaces
        ],
        "catalog": _catalog(report),
        "classes": _classes(report),
        "segments": list(_segments(report)),
        "read": {
            "strips": verdicts.strips if verdicts else 0,
            "cells": verdicts.cells if verdicts else 0,
            "bytes": verdicts.size_bytes if verdicts else 0,
        },
    }


def _finding(finding: Finding) -> dict:
    return {name: str(getattr(finding, name)) for name in Finding.__slots__}


def _catalog(report: Report) -> dict | None:
    if report.contents is None:
        return None
    return {
        "path": str(report.home),
        "chunks": len(report.contents.rows),
        "keyspaces": len(report.contents.keyspaces),
        "generation": report.contents.meta.generation,
        "shortened": report.shortened,
        "dropped": report.dropped,
    }


def _segments(report: Report) -> Iterator[dict]:
    if report.contents is None or report.accounts is None:
        return
    accounts = report.accounts
    for at, record in enumerate(report.contents.segments):
        yield {
            "directory": str(report.directories[record["directory"]].path),
            "segment": int(record["segment"]),
            "class": PlaneClass(int(record["plane_class"])).name.lower(),
            "state": SegmentState(int(record["state"])).name.lower(),
            "epoch": int(record["epoch"]),
            "strips": int(accounts.strips[at]),
            "live_bytes": int(accounts.live[at]),
            "dead_bytes": int(accounts.dead[at]),
            "free_bytes": int(accounts.free[at]),
        }


def _classes(report: Report) -> dict:
    found = {}
    for plane_class in PlaneClass:
        sums = dict.fromkeys(("segments", "strips", "live_bytes", "dead_bytes", "free_bytes"), 0)
        if report.contents is not None and report.accounts is not None:
            accounts = report.accounts
            some = report.contents.segments["plane_class"] == plane_class
            columns = (np.ones(len(some)), accounts.strips, accounts.live, accounts.dead)
            values = (int(column[some].sum()) for column in (*columns, accounts.free))
            sums = dict(zip(sums, values, strict=True))
        found[plane_class.name.lower()] = sums
    return found


# ---- for people ----


def as_lines(report: Report) -> Iterator[str]:
    yield f"{'class':10}{'segments':>9}{'strips':>11}{'live':>11}{'dead':>11}{'free':>11}"
    for name, sums in _classes(report).items():
        sizes = "".join(f"{human(sums[k]):>11}" for k in ("live_bytes", "dead_bytes", "free_bytes"))
        yield f"{name:10}{sums['segments']:>9,}{sums['strips']:>11,}{sizes}"
    if report.contents is not None:
        size = human(sum(space.catalog_bytes for space in report.spaces))
        rows, keyspaces = len(report.contents.rows), len(report.contents.keyspaces)
        yield f"catalog: {rows:,} chunks, {keyspaces} keyspaces, {size}"
    for space in report.spaces:
        yield f"{space.path}: {human(space.allocated_bytes)} on disk"
    yield from _read(report)
    findings = report.findings
    for level, title in ((Level.WRONG, "wrong"), (Level.LEFT, "left by a crash, harming nobody")):
        count = findings.count(level)
        some = [each for each in findings.kept if each.level == level][:_ENDS_MAX]
        if count:
            yield f"{title}: {count:,}"
        for each in some:
            yield f"  {each.where}: {each.what}; repair {each.repair}"
        if count > len(some):
            yield f"  and {count - len(some):,} more: see --json"
    yield _verdict(report)


def _read(report: Report) -> Iterator[str]:
    if report.verdicts is None:
        yield "read: no strips"
        return
    verdicts = report.verdicts
    size = human(verdicts.size_bytes)
    yield f"read: {verdicts.strips:,} strips of {verdicts.cells:,} cells, {size}"


def _verdict(report: Report) -> str:
    wrong, left = (report.findings.count(level) for level in (Level.WRONG, Level.LEFT))
    if not wrong and not (left and report.repaired):
        return "whole"
    if report.unread:
        return f"not whole: --repair changes nothing before {report.unread:,} strips can be read"
    dropped, shortened = f"{report.dropped:,}", f"{report.shortened:,}"
    if report.contents is None:
        done, wish = "the set begins anew", "begin the set anew"
    else:
        done = f"{dropped} chunks dropped, {shortened} left with fewer classes"
        wish = f"drop {dropped} chunks and leave {shortened} with fewer classes"
    return f"repaired: {done}" if report.repaired else f"not whole: --repair would {wish}"
