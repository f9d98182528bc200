"""Verbs of `kvd-admin` about a chain: lookup, explain, pin."""

import argparse
from collections.abc import Iterator

from kvd.admin.asking import AdminClient
from kvd.cli.admin_show import CLASS_COLUMNS, HEX_SHOWN
from kvd.cli.chains import chain_flags, read_asked
from kvd.cli.messages import human, human_time
from kvd.cli.tables import show_json, show_line, show_table
from kvd.errors import ErrorKind, KvdError
from kvd.types import CLASS_COUNT
from kvd.v1 import admin_pb2 as admin
from kvd.v1 import kvd_pb2 as pb

# What each verdict means to a person, and what each note of a chunk's story says.
VERDICTS = {
    "whole": "everything is stored",
    "gone": "it is not stored any more",
    "never_stored": "no put of it was seen",
    "diverges": "other tokens follow here in what is stored",
    "other_tenant": "another tenant has it; tenants never share",
    "other_keyspace": "it is stored under a keyspace with other fields",
    "other_lane": "it is stored for another kv group, shard or part",
    "condemned": "its bytes were found wrong; it is not offered, and the next put replaces it",
    "shortened": "only its more significant classes are stored",
    "misplaced": "it is stored behind another chunk than this chain names",
}
REASONS = {
    "room": "evicted to make room in memory, and not on disk",
    "reclaimed": "dropped to make room on disk",
    "cleared": "cleared",
    "evicted": "evicted by an operator",
    "wrong_bytes": "a reader found that it did not fit its checksum",
    "wrong_root": "found damaged when it was moved to or from disk",
    "unreadable": "could not be read from disk",
    "capacity": "a put found no room for it",
    "growing": "a put came while memory was still being made",
    "prefix_broken": "a put came behind a chunk that was not whole",
    "aborted": "its put was aborted",
    "expired": "its put made no progress in its time",
    "session_ended": "its client went before the put was sealed",
    "orphaned": "it was sealed when the chunk before it had gone, or was being moved",
    "quota": "a put found its tenant's memory full of what is held",
    "ssd_quota": "its tenant has no more room on disk",
}


def lookup_flags(parser: argparse.ArgumentParser) -> None:
    chain_flags(parser, needed=True)


def explain_flags(parser: argparse.ArgumentParser) -> None:
    chain_flags(parser, needed=False)


def pin_flags(parser: argparse.ArgumentParser) -> None:
    chain_flags(parser, needed=True)
    parser.add_argument(
        "--classes",
        type=int,
        default=CLASS_COUNT,
        choices=(1, 2, 3),
        help="1: anchors; 2: and residuals; 3: and exact (3)",
    )


def run_lookup(client: AdminClient, arguments: argparse.Namespace) -> int:
    """Show how much is stored; 1 when it is not all."""
    reply = _explained(client, arguments)
    if not show_json(arguments, reply):
        _show_counts(reply)
    return 0 if _is_whole(reply) else 1


def run_explain(client: AdminClient, arguments: argparse.Namespace) -> int:
    """Show why; 1 when something is missing. Without a chain, show what was missed last."""
    if not (arguments.tokens or arguments.chain):
        return _run_misses(client, arguments)
    reply = _explained(client, arguments)
    if not show_json(arguments, reply):
        _show_counts(reply)
        for lane in reply.lanes:
            for line in _lane_lines(lane):
                show_line(line)
    return 0 if _is_whole(reply) else 1


def run_pin(client: AdminClient, arguments: argparse.Namespace) -> int:
    asked = read_asked(client, arguments)
    wish = admin.PinRequest(keyspace=asked.digest, chain=asked.chain, class_count=arguments.classes)
    reply = client.call("Pin", wish)
    if not show_json(arguments, reply):
        counts = ", ".join(map(str, reply.counts))
        show_line(f"pin {reply.pin}: {counts} chunks of each class, {human(reply.bytes)}")
    return 0


def _explained(client: AdminClient, arguments: argparse.Namespace) -> admin.ExplainReply:
    asked = read_asked(client, arguments)
    return client.call("Explain", admin.ExplainRequest(keyspace=asked.digest, chain=asked.chain))


def _is_whole(reply: admin.ExplainReply) -> bool:
    return all(lane.finding.verdict == "whole" for lane in reply.lanes)


def _show_counts(reply: admin.ExplainReply) -> None:
    columns = ("lane", ">asked", "class", ">found", ">in memory", ">on disk")
    rows = [
        (
            lane_name(lane.lane), str(lane.asked), name.removeprefix(">"),
            *(str(counts[at]) for counts in (lane.counts, lane.in_dram, lane.on_disk)),
        )
        for lane in reply.lanes for at, name in enumerate(CLASS_COLUMNS)
    ]  # fmt: skip
    show_table(f"tenant {reply.tenant}", columns, rows)


def lane_name(lane: pb.Lane) -> str:
    scheme = pb.ShardScheme.Name(lane.shard_scheme).removeprefix("SHARD_SCHEME_").lower()
    shard = "" if scheme == "replicated" else f" {scheme} {lane.shard_index}/{lane.shard_count}"
    part = f" part {lane.part_profile.hex()}:{lane.part_index}" if any(lane.part_profile) else ""
    return f"group {lane.kv_group}{shard}{part}"


def _lane_lines(lane: admin.LaneReport) -> Iterator[str]:
    name, finding = lane_name(lane.lane), lane.finding
    if finding.verdict == "whole":
        yield f"{name}: all {lane.asked} chunks are stored"
        return
    yield f"{name}: chunk {lane.first} of {lane.asked} is the first that is not whole"
    yield from finding_lines(finding)


def finding_lines(finding: admin.Finding) -> Iterator[str]:
    """Yield what is the matter with a chunk, in words."""
    yield f"  {finding.verdict}: {VERDICTS.get(finding.verdict, 'a verdict newer than this tool')}"
    for note in finding.notes:
        planes = "" if note.plane_class == "anchor" else f" ({note.plane_class} and below)"
        why = REASONS.get(note.why, note.why)
        yield f"  {human_time(note.ago_ms)} ago: {why}{planes}"
    for alike in finding.alike:
        differing = "; ".join(
            f"{d.field} is {d.asked or 'empty'}, there {d.own or 'empty'}"
            for d in alike.differences
        )
        name = f"{alike.digest.hex()[:HEX_SHOWN]} of {alike.tenant}"
        yield f"  keyspace {name}: {differing or 'alike'}"
    if finding.verdict in ("never_stored", "diverges"):
        back = "its story was cut for want of room" if finding.forgetful else "the daemon began"
        yield f"  nothing is known from before {human_time(finding.heard_ms)} ago, when {back}"


def _run_misses(client: AdminClient, arguments: argparse.Namespace) -> int:
    """Show the last questions that found less than they asked for."""
    if arguments.keyspace:
        flags = "--tokens or --chain"
        raise KvdError(ErrorKind.INVALID, f"--keyspace alone says no chain; give {flags} too")
    reply = client.call("Misses", admin.MissesRequest())
    if show_json(arguments, reply):
        return 0
    columns = (
        ">last",
        ">times",
        "tenant",
        ">session",
        "keyspace",
        "model",
        "lane",
        ">missed at",
        "why",
    )
    rows = (
        (
            f"{human_time(miss.ago_ms)} ago", f"{miss.times:,}", miss.tenant, str(miss.session),
            miss.keyspace.hex()[:HEX_SHOWN], miss.model, lane_name(miss.lane),
            f"{miss.first} of {miss.asked}", miss_why(miss.finding),
        )
        for miss in reply.misses
    )  # fmt: skip
    show_table("", columns, rows)
    return 0


def miss_why(finding: admin.Finding) -> str:
    if finding.verdict == "whole":
        return "stored since"
    if finding.notes:
        last = finding.notes[-1]
        return f"{finding.verdict}: {REASONS.get(last.why, last.why)}"
    return f"{finding.verdict}: {VERDICTS.get(finding.verdict, '')}"
