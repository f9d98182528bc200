"""What `top` and `report` show, as one plain object: from a daemon's replies at two moments.

Everything here is JSON; None stands for what cannot be said, as the hit rate of no questions.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from kvd.admin.asking import AdminClient
from kvd.cli.figures import CLASSES, TIERS, Figures, Span, figures_of
from kvd.cli.messages import as_object
from kvd.v1 import admin_pb2 as admin

SESSIONS_SHOWN = 10
_RATES = {
    "sealed": "kvd_sealed_bytes_total",
    "promised": "kvd_fetch_promised_bytes_total",
    "delivered": "kvd_delivered_bytes_total",
    "read": "kvd_ssd_read_bytes_total",
    "written": "kvd_ssd_written_bytes_total",
    "evicted": "kvd_evicted_bytes_total",
}
_QUEUES = {
    "write_queue_bytes": "kvd_ssd_write_queue_bytes",
    "reading_bytes": "kvd_ssd_reading_bytes",
    "waiting_seals": "kvd_ssd_waiting_seals",
    "pending_fetches": "kvd_pending_fetches",
    "postponed_fetches": "kvd_postponed_fetches",
    "open_deliveries": "kvd_open_deliveries",
    "leases": "kvd_leases",
    "reservations": "kvd_reservations",
}


@dataclass(frozen=True, slots=True)
class Moment:
    """What a daemon said of itself at one moment."""

    status: admin.StatusReply
    sessions: admin.SessionsReply
    figures: Figures


def look(client: AdminClient) -> Moment:
    status = client.call("Status", admin.StatusRequest())
    sessions = client.call("Sessions", admin.SessionsRequest())
    stats = client.call("Stats", admin.StatsRequest())
    return Moment(status, sessions, figures_of(stats))


def numbers_of(before: Figures, now: Moment) -> dict:
    """Return what there is now, and what happened since `before`: of an empty one, ever."""
    span = Span(before, now.figures)
    status = now.status
    if not before.series:
        span = Span(Figures(now.figures.at_ms - status.uptime_ms), now.figures)
    return {
        "seconds": round(span.seconds, 3),
        "version": status.version,
        "state": status.state,
        "uptime_ms": status.uptime_ms,
        "problems": list(status.problems),
        "tiers": [_tier(tier, span, status.tenants) for tier in status.tiers],
        "lookup_hit_rate": _share(
            span.grown("kvd_lookup_hit_strips_total"),
            span.grown("kvd_lookup_requested_strips_total"),
        ),
        "bytes_per_second": {name: span.rate(metric) for name, metric in _RATES.items()},
        "evicted_bytes": {tier: _evicted(span, tier) for tier in TIERS},
        "calls": list(_calls(span)),
        "queues": {name: now.figures.total(metric) for name, metric in _QUEUES.items()},
        "loop_lag_p99_seconds": span.quantile("kvd_loop_lag_seconds", 0.99),
        "sessions": [as_object(s) for s in _busiest(now.sessions)[:SESSIONS_SHOWN]],
        "sessions_count": len(now.sessions.sessions),
    }


def _tier(tier: admin.TierInfo, span: Span, tenants: list[str]) -> dict:
    return {
        "tier": tier.name,
        "capacity": tier.capacity,
        "limit": tier.limit,
        "classes": {each.name: each.bytes for each in tier.classes},
        "by_tenant": {
            share.tenant: {each.name: each.bytes for each in share.classes}
            for share in tier.tenants
        },
        "hit_rate": span.hit_rate(tier.name),
        "hit_rate_by_tenant": {name: span.hit_rate(tier.name, tenant=name) for name in tenants},
        "hit_rate_by_class": {
            name: span.hit_rate(tier.name, **{"class": name}) for name in CLASSES
        },
        "fault": tier.fault,
    }


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _evicted(span: Span, tier: str) -> dict[str, float]:
    reasons = span.now.names_of("kvd_evicted_bytes_total", "reason")
    grown = {r: span.grown("kvd_evicted_bytes_total", tier=tier, reason=r) for r in reasons}
    return {reason: size for reason, size in grown.items() if size}


def _calls(span: Span) -> Iterator[dict]:
    for call in span.now.names_of("kvd_request_seconds", "call"):
        count = span.grown("kvd_requests_total", call=call)
        if not count:
            continue
        yield {
            "call": call,
            "per_second": count / span.seconds,
            "errors": count - span.grown("kvd_requests_total", call=call, outcome="ok"),
            "p50_seconds": span.quantile("kvd_request_seconds", 0.5, call=call),
            "p99_seconds": span.quantile("kvd_request_seconds", 0.99, call=call),
            "histogram": [
                [le if le != float("inf") else None, count]
                for le, count in span.buckets("kvd_request_seconds", call=call)
            ],
        }


def _busiest(reply: admin.SessionsReply) -> list[admin.SessionInfo]:
    return sorted(reply.sessions, key=lambda s: (-s.lease_bytes, -s.requests, s.session))
