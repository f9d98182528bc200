"""The catalog of a set: whether its file is whole, and what of it can be believed."""

from pathlib import Path

from kvd.catalog.contract import Contents, Refusal
from kvd.catalog.loading import load_catalog
from kvd.catalog.looking import Look, has_data
from kvd.checking.findings import Finding, Findings, Kind, Level
from kvd.checking.plan import Plan
from kvd.errors import ErrorKind, Fault, FaultKind, KvdError

_BEGIN_ANEW = "removes it and all segments: the set begins anew"
_DROPS = "drops it, and what stands on it"
_SAID = {
    Refusal.DAMAGED: "is damaged",
    Refusal.NO_KEYSPACE: "is of no known keyspace",
    Refusal.NO_SEGMENT: "has a strip in no known segment of its class and epoch",
}


def load(path: Path, segment_count: int, findings: Findings, plan: Plan) -> Contents | None:
    """Return what the catalog holds, or None when there is none or it is damaged.

    `segment_count` is of segment files. Raise KvdError when it cannot be looked at.
    """
    if not has_data(path):
        _not_there(path, segment_count, findings, plan)
        return None
    look = Look(path)  # At the same time as the loader: both read all of it.
    try:
        contents = load_catalog(path)
        fault = contents if isinstance(contents, Fault) else look.verdict()
    finally:
        look.give_up()
    if fault is None:
        assert isinstance(contents, Contents)
        _tell_refused(path, contents, findings)
        plan.purge = contents.purge
        return contents
    if fault.kind != FaultKind.FORMAT:
        raise KvdError(ErrorKind.UNAVAILABLE, f"{fault.message}; nothing was changed")
    what = fault.message.removeprefix(f"the catalog {path}").strip(" :")
    findings.add(Finding(Kind.CATALOG, Level.WRONG, str(path), what, _BEGIN_ANEW))
    plan.new_catalog = True
    return None


def _not_there(path: Path, segment_count: int, findings: Findings, plan: Plan) -> None:
    """Without segments a set is new; with them it has lost its catalog."""
    plan.new_catalog = bool(segment_count) or path.exists()
    if segment_count:
        what = f"is not there, and segments are: {segment_count}"
        findings.add(Finding(Kind.CATALOG, Level.WRONG, str(path), what, _BEGIN_ANEW))
    elif path.exists():
        what = "was removed, but for its directory"
        findings.add(Finding(Kind.FILE, Level.LEFT, str(path), what, "removes it"))


def _tell_refused(path: Path, contents: Contents, findings: Findings) -> None:
    for reason, count in contents.refused.items():
        problem = f"{_SAID[reason]} ({count} such)"
        finding = Finding(Kind.ROW, Level.WRONG, str(path), f"a record {problem}", _DROPS)
        findings.add_all(Kind.ROW, Level.WRONG, count, [finding])
