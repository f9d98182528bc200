"""What the daemon's desk says -> messages to operators. Names in words, as they are for people."""

from dataclasses import dataclass, field

from kvd.clock import NS_PER_MS
from kvd.core.census import Held, KeyspaceCensus, PinCensus, SessionCensus, TierCensus
from kvd.core.explain import Finding, LaneReport
from kvd.core.story import Miss
from kvd.daemon.desk import Desk
from kvd.identity import Keyspace
from kvd.observe.metrics import TABLE
from kvd.observe.samples import Sample
from kvd.rpc.session import Session
from kvd.types import Lane, PlaneClass, Tier
from kvd.v1 import admin_pb2 as admin
from kvd.v1 import kvd_pb2 as pb

KINDS = {metric.name: metric.kind.value for metric in TABLE}


@dataclass(frozen=True, slots=True)
class Settings:
    """What the daemon was given: tenants, and their quotas in bytes by tier."""

    tenants: tuple[str, ...]
    quotas: dict[Tier, dict[str, int]] = field(default_factory=dict)


def class_infos(held: Held) -> list[admin.ClassInfo]:
    return [
        admin.ClassInfo(name=each.name.lower(), strips=held.strips[each], bytes=held.sizes[each])
        for each in PlaneClass
    ]


def tier_info(tier: TierCensus, settings: Settings, paths: tuple[str, ...]) -> admin.TierInfo:
    quotas = settings.quotas.get(tier.tier, {})
    tenants = {**dict.fromkeys(settings.tenants, Held()), **tier.tenants}
    return admin.TierInfo(
        name=tier.tier.name.lower(),
        capacity=tier.capacity_bytes,
        limit=tier.limit_bytes,
        states=[admin.Amount(name=name, bytes=size) for name, size in tier.states.items()],
        classes=class_infos(tier.held),
        tenants=[
            admin.TenantShare(tenant=name, classes=class_infos(held), quota=quotas.get(name, 0))
            for name, held in sorted(tenants.items())
        ],
        segments=[admin.Amount(name=name, bytes=count) for name, count in tier.segments.items()],
        directories=[
            admin.DirectoryInfo(path=paths[d.number], free=d.free_bytes, fault=d.fault)
            for d in tier.directories
        ],
        waiting_to_be_written=tier.waiting_bytes,
        being_read=tier.reading_bytes,
        fault=tier.fault,
    )


def session_info(found: SessionCensus, session: Session | None, now_ns: int) -> admin.SessionInfo:
    """Return a session; one that drains has no sockets any more, so nobody knows who it was."""
    info = admin.SessionInfo(
        session=found.session,
        tenant=found.tenant,
        state=found.state,
        requests=found.requests,
        leases=found.leases,
        lease_bytes=found.lease_bytes,
        reservations=found.reservations,
        slabs=found.slabs,
        keyspaces=found.keyspaces,
    )
    if session is not None:
        info.uid, info.pid, info.client = session.uid, session.pid, session.client
        info.age_ms, info.transport = (now_ns - session.since_ns) // NS_PER_MS, session.transport
    return info


def lane_message(lane: Lane) -> pb.Lane:
    return pb.Lane(
        kv_group=lane.kv_group,
        shard_scheme=int(lane.shard.scheme),  # type: ignore[arg-type]
        shard_index=lane.shard.index,
        shard_count=lane.shard.count,
        part_profile=lane.part.profile,
        part_index=lane.part.index,
    )


def keyspace_message(keyspace: Keyspace) -> pb.Keyspace:
    message = pb.Keyspace(
        model=keyspace.model,
        weight_revision=keyspace.weight_revision,
        tokenizer=keyspace.tokenizer,
        chain=keyspace.chain,
        layout=keyspace.layout,
        rope=keyspace.rope,
        adapter=keyspace.adapter,
        chunk_tokens=keyspace.chunk_tokens,
    )
    for group in keyspace.shape.groups:
        said = message.groups.add(
            layers=group.layers,
            hit_rule=int(group.hit_rule),  # type: ignore[arg-type]
            trailing_chunks=group.trailing_chunks,
        )
        for t in group.tensors:
            said.tensors.add(role=int(t.role), heads=t.heads, width=t.width, dtype=int(t.dtype))  # type: ignore[arg-type]
    return message


def keyspace_info(found: KeyspaceCensus) -> admin.KeyspaceInfo:
    return admin.KeyspaceInfo(
        digest=found.digest,
        tenant=found.tenant,
        keyspace=keyspace_message(found.keyspace) if found.keyspace else None,
        chunks=found.chunks,
        dram=class_infos(found.dram),
        ssd=class_infos(found.ssd),
        lanes=[lane_message(lane) for lane in found.lanes],
    )


def finding_message(finding: Finding, desk: Desk) -> admin.Finding:
    return admin.Finding(
        verdict=finding.verdict.name.lower(),
        classes=finding.classes,
        notes=[
            admin.Note(
                ago_ms=desk.ago_ns(note.at_ns) // NS_PER_MS,
                why=note.why.name.lower(),
                plane_class=PlaneClass(note.plane_class).name.lower(),
            )
            for note in finding.notes
        ],
        alike=[
            admin.AlikeKeyspace(
                tenant=alike.tenant,
                digest=alike.digest,
                differences=[
                    admin.Difference(field=field, asked=asked, own=own)
                    for field, asked, own in alike.differing
                ],
            )
            for alike in finding.alike
        ],
        forgetful=desk.is_forgetful(),
        heard_ms=desk.heard_ns() // NS_PER_MS,
    )


def lane_report(report: LaneReport, desk: Desk) -> admin.LaneReport:
    return admin.LaneReport(
        lane=lane_message(report.lane),
        asked=report.asked,
        counts=report.counts,
        in_dram=report.in_dram,
        on_disk=report.on_disk,
        first=report.first,
        finding=finding_message(report.finding, desk),
    )


def miss_info(miss: Miss, finding: Finding, desk: Desk) -> admin.MissInfo:
    return admin.MissInfo(
        ago_ms=desk.ago_ns(miss.at_ns) // NS_PER_MS,
        tenant=miss.tenant,
        session=miss.session,
        keyspace=miss.digest,
        model=miss.keyspace.model,
        lane=lane_message(miss.lane),
        chunk=miss.chunk,
        first=miss.first,
        asked=miss.asked,
        finding=finding_message(finding, desk),
        times=miss.times,
    )


def sample_message(sample: Sample) -> admin.Sample:
    return admin.Sample(
        name=sample.name,
        kind=KINDS[sample.name],
        labels=[admin.Label(name=name, value=value) for name, value in sample.labels],
        value=sample.value,
        buckets=[admin.Bucket(le=le, count=count) for le, count in sample.buckets],
    )


def pin_info(pin: PinCensus, desk: Desk) -> admin.PinInfo:
    return admin.PinInfo(
        pin=pin.pin,
        tenant=pin.tenant,
        keyspace=pin.keyspace,
        chunk=pin.chunk,
        counts=pin.counts,
        bytes=pin.size_bytes,
        age_ms=desk.ago_ns(pin.at_ns) // NS_PER_MS,
    )
