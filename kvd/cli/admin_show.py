"""Verbs of `kvd-admin` that only show: status, tiers, sessions, keyspaces, pins."""

import argparse
from collections.abc import Iterable, Iterator

from kvd.admin.asking import AdminClient
from kvd.cli.messages import human, human_time
from kvd.cli.tables import show_json, show_line, show_table
from kvd.v1 import admin_pb2 as admin
from kvd.v1 import kvd_pb2 as pb

CLASS_COLUMNS = (">anchor", ">residual", ">exact")
NO_UID = 0xFFFF_FFFF  # Of a session that attached: no socket told who it is.
HEX_SHOWN = 12  # Of a digest: enough to tell keyspaces apart, and to name one by.


def no_flags(parser: argparse.ArgumentParser) -> None:
    pass


status_flags = tiers_flags = sessions_flags = keyspaces_flags = pins_flags = no_flags


def run_status(client: AdminClient, arguments: argparse.Namespace) -> int:
    """Show what the daemon is; 1 when it has problems."""
    reply = client.call("Status", admin.StatusRequest())
    if not show_json(arguments, reply):
        _show_status(reply)
    return 1 if reply.problems else 0


def _show_status(reply: admin.StatusReply) -> None:
    show_line(
        f"{reply.version}, {reply.state}, pid {reply.pid}, up {human_time(reply.uptime_ms)}, "
        f"on {reply.directory}"
    )
    for tier in reply.tiers:
        show_line(f"{tier.name:5} {_tier_line(tier)}")
    show_line(
        f"{reply.sessions} sessions, {reply.leases} leases, {reply.reservations} reservations, "
        f"{reply.fetches_waiting} fetches waiting, {reply.keyspaces} keyspaces, {reply.pins} pins"
    )
    for problem in reply.problems:
        show_line(f"problem: {problem}")
    if not reply.problems:
        show_line("no problems")


def _tier_line(tier: admin.TierInfo) -> str:
    used = sum(each.bytes for each in tier.classes)
    parts = [f"{human(used)} of {human(tier.capacity)} hold strips"]
    if tier.capacity < tier.limit:
        parts.append(f"{human(tier.limit)} configured")
    parts += [f"{each.name} {human(each.bytes)}" for each in tier.classes]
    if tier.waiting_to_be_written:
        parts.append(f"{human(tier.waiting_to_be_written)} to be written")
    return ", ".join(parts)


# ---- tiers ----


def run_tiers(client: AdminClient, arguments: argparse.Namespace) -> int:
    reply = client.call("Tiers", admin.TiersRequest())
    if show_json(arguments, reply):
        return 0
    for tier in reply.tiers:
        title = f"{tier.name}: {human(tier.capacity)} of {human(tier.limit)} configured"
        show_table(title, ("tenant", *CLASS_COLUMNS, ">strips", ">quota"), _tenant_rows(tier))
        for line in _tier_lines(tier):
            show_line(line)
        show_line("")
    return 0


def _tenant_rows(tier: admin.TierInfo) -> Iterator[tuple[str, ...]]:
    for share in tier.tenants:
        quota = human(share.quota) if share.quota else "-"
        yield share.tenant, *class_cells(share.classes), _strips(share.classes), quota
    yield "all", *class_cells(tier.classes), _strips(tier.classes), ""


def class_cells(classes: Iterable[admin.ClassInfo]) -> list[str]:
    sizes = {each.name: each.bytes for each in classes}
    return [human(sizes.get(name.removeprefix(">"), 0)) for name in CLASS_COLUMNS]


def _strips(classes: Iterable[admin.ClassInfo]) -> str:
    return f"{sum(each.strips for each in classes):,}"


def _tier_lines(tier: admin.TierInfo) -> Iterator[str]:
    if tier.states:
        yield "bytes: " + ", ".join(f"{each.name} {human(each.bytes)}" for each in tier.states)
    if tier.segments:
        yield "segments: " + ", ".join(f"{s.name} {s.bytes}" for s in tier.segments if s.bytes)
        yield (
            f"{human(tier.waiting_to_be_written)} wait to be written, "
            f"{human(tier.being_read)} are being read"
        )
    for directory in tier.directories:
        fault = f", degraded: {directory.fault}" if directory.fault else ""
        yield f"{directory.path}: {human(directory.free)} free{fault}"
    if tier.fault:
        yield f"nothing is written: {tier.fault}"


# ---- sessions, keyspaces, pins ----


def run_sessions(client: AdminClient, arguments: argparse.Namespace) -> int:
    reply = client.call("Sessions", admin.SessionsRequest())
    if show_json(arguments, reply):
        return 0
    columns = (
        ">session", "tenant", "state", "client", ">uid", ">pid", ">age", ">requests", ">leases",
        ">leased", ">reservations", ">slabs", "transport",
    )  # fmt: skip
    rows = (
        (
            str(s.session), s.tenant, s.state, s.client,
            "-" if s.uid == NO_UID else str(s.uid), str(s.pid) if s.pid else "-",
            human_time(s.age_ms), str(s.requests), str(s.leases), human(s.lease_bytes),
            str(s.reservations), str(s.slabs), s.transport,
        )
        for s in reply.sessions
    )  # fmt: skip
    show_table("", columns, rows)
    return 0


def run_keyspaces(client: AdminClient, arguments: argparse.Namespace) -> int:
    reply = client.call("Keyspaces", admin.KeyspacesRequest())
    if show_json(arguments, reply):
        return 0
    columns = ("keyspace", "tenant", "model", "revision", "shape", ">chunks", ">dram", ">ssd")
    rows = (
        (
            each.digest.hex()[:HEX_SHOWN], each.tenant, each.keyspace.model,
            each.keyspace.weight_revision, _shape(each.keyspace), f"{each.chunks:,}",
            human(sum(c.bytes for c in each.dram)), human(sum(c.bytes for c in each.ssd)),
        )
        for each in reply.keyspaces
    )  # fmt: skip
    show_table("", columns, rows)
    return 0


def _shape(keyspace: pb.Keyspace) -> str:
    groups = [
        f"{group.layers} x "
        + "+".join(
            f"{pb.Role.Name(t.role).removeprefix('ROLE_').lower()} {t.heads}x{t.width}"
            for t in group.tensors
        )
        for group in keyspace.groups
    ]
    dtypes = {t.dtype for group in keyspace.groups for t in group.tensors}
    names = (pb.Dtype.Name(d).removeprefix("DTYPE_").lower() for d in sorted(dtypes))
    return f"{'; '.join(groups)} {' '.join(names)}, {keyspace.chunk_tokens} tokens"


def run_pins(client: AdminClient, arguments: argparse.Namespace) -> int:
    reply = client.call("Pins", admin.PinsRequest())
    if show_json(arguments, reply):
        return 0
    columns = (">pin", "tenant", "keyspace", *CLASS_COLUMNS, ">size", ">age")
    rows = (
        (
            str(pin.pin), pin.tenant, pin.keyspace.hex()[:HEX_SHOWN], *map(str, pin.counts),
            human(pin.bytes), human_time(pin.age_ms),
        )
        for pin in reply.pins
    )  # fmt: skip
    show_table("", columns, rows)
    return 0
