"""What operators read: answered at once, from the daemon's desk."""

import os
from collections.abc import Callable

from google.protobuf.message import Message

from kvd.clock import NS_PER_MS
from kvd.core import census
from kvd.daemon.inbox import Inbox
from kvd.limits import PROTOCOL_MAX, PROTOCOL_MIN
from kvd.rpc import admin_replies as replies
from kvd.rpc.hello import daemon_version
from kvd.rpc.sessions import Sessions
from kvd.rpc.wishes import chain_of, lane_of
from kvd.v1 import admin_pb2 as admin

Answers = dict[str, tuple[type[Message], Callable[..., Message]]]  # By name of the call.


class Reads:
    def __init__(
        self, inbox: Inbox, sessions: Sessions, settings: replies.Settings, directory: str
    ) -> None:
        self._inbox, self._sessions, self._desk = inbox, sessions, inbox.desk
        self._settings, self._directory = settings, directory

    def answers(self) -> Answers:
        return {
            "Status": (admin.StatusRequest, self._status),
            "Tiers": (admin.TiersRequest, lambda _: admin.TiersReply(tiers=self._tiers())),
            "Sessions": (admin.SessionsRequest, self._list_sessions),
            "Keyspaces": (admin.KeyspacesRequest, self._list_keyspaces),
            "Stats": (admin.StatsRequest, self._stats),
            "Explain": (admin.ExplainRequest, self._explain),
            "Misses": (admin.MissesRequest, self._list_misses),
            "Pins": (admin.PinsRequest, self._list_pins),
        }

    def _status(self, _: Message) -> admin.StatusReply:
        summary = self._desk.read(census.summarize)
        return admin.StatusReply(
            version=daemon_version(),
            protocol_min=PROTOCOL_MIN,
            protocol_max=PROTOCOL_MAX,
            pid=os.getpid(),
            epoch=self._inbox.epoch,
            uptime_ms=self._desk.age_ns() // NS_PER_MS,
            state=summary.state,
            problems=list(self._desk.problems()),
            tiers=self._tiers(),
            sessions=summary.sessions,
            leases=summary.leases,
            reservations=summary.reservations,
            fetches_waiting=summary.fetches_waiting,
            pins=summary.pins,
            generation=summary.generation,
            tenants=self._settings.tenants,
            directory=self._directory,
            keyspaces=summary.keyspaces,
        )

    def _tiers(self) -> list[admin.TierInfo]:
        desk = self._desk
        return [
            replies.tier_info(tier, self._settings, desk.paths)
            for tier in desk.read(census.count_tiers)
        ]

    def _list_sessions(self, _: Message) -> admin.SessionsReply:
        now_ns, known = self._inbox.now_ns(), self._sessions.get
        found = [(each, known(each.session)) for each in self._desk.read(census.list_sessions)]
        return admin.SessionsReply(
            sessions=[replies.session_info(each, session, now_ns) for each, session in found]
        )

    def _list_keyspaces(self, _: Message) -> admin.KeyspacesReply:
        found = self._desk.read(census.list_keyspaces)
        return admin.KeyspacesReply(keyspaces=map(replies.keyspace_info, found))

    def _list_misses(self, _: Message) -> admin.MissesReply:
        misses = self._desk.read(census.list_misses)
        return admin.MissesReply(
            misses=[replies.miss_info(miss, finding, self._desk) for miss, finding in misses]
        )

    def _list_pins(self, _: Message) -> admin.PinsReply:
        pins = self._desk.read(census.list_pins)
        return admin.PinsReply(pins=[replies.pin_info(pin, self._desk) for pin in pins])

    def _stats(self, request: admin.StatsRequest) -> admin.StatsReply:
        samples = self._inbox.observer.expand(self._inbox.read_metrics())
        return admin.StatsReply(
            at_ms=self._desk.age_ns() // NS_PER_MS,
            samples=[
                replies.sample_message(sample)
                for sample in samples if sample.name.startswith(request.prefix)
            ],
        )  # fmt: skip

    def _explain(self, request: admin.ExplainRequest) -> admin.ExplainReply:
        chain = chain_of(request.chain, self._inbox.limits)
        lanes = tuple(map(lane_of, request.lanes))
        tenant, reports = self._desk.explain(request.keyspace, chain, lanes)
        return admin.ExplainReply(
            tenant=tenant, lanes=[replies.lane_report(report, self._desk) for report in reports]
        )
