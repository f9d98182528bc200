"""A raw client that keeps books: for every call, by hand, what a daemon must count it as.

Knows nothing of how the daemon counts, but the names of its metrics.
"""

import http.client
import mmap
import socket
import threading
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from kvd.checksum import strip_root
from kvd.identity import chunk_key
from kvd.types import Lane, PlaneClass
from kvd.v1 import kvd_pb2 as pb
from kvd.wire import FrameKind
from tests.e2e.rawclient import DEADLINE_S, RawClient, Refused, keyspace_message
from tests.e2e.strips import make_strip

CLASSES = ("anchor", "residual", "exact")
CELLS, CELL_BYTES = 4, 5000
STRIP = make_strip(CELLS, CELL_BYTES, 1)
TABLE = STRIP[: 16 * CELLS].tobytes()
SIZE = STRIP.size
CODEC_PROFILE = 1
EVENTS = {
    "keyspace": "KeyspaceWanted", "reserve": "ReserveWanted", "seal": "SealWanted",
    "abort": "AbortWanted", "lookup": "LookupWanted", "fetch": "FetchWanted",
    "prefetch": "PrefetchWanted", "clear": "ClearWanted", "release": "ReleaseWanted",
}  # fmt: skip
KINDS = {
    "keyspace": FrameKind.REGISTER_KEYSPACE, "reserve": FrameKind.RESERVE, "seal": FrameKind.SEAL,
    "abort": FrameKind.ABORT, "lookup": FrameKind.LOOKUP, "fetch": FrameKind.FETCH,
    "prefetch": FrameKind.PREFETCH, "clear": FrameKind.CLEAR, "release": FrameKind.RELEASE,
}  # fmt: skip

Key = tuple[str, frozenset]


def key_of(name: str, **labels: str) -> Key:
    return name, frozenset(labels.items())


class Book:
    """What every series must show, 0 where nothing was noted."""

    def __init__(self) -> None:
        self.lines: Counter[Key] = Counter()

    def add(self, name: str, amount: float = 1, /, **labels: str) -> None:
        labels = {"class" if label == "of" else label: value for label, value in labels.items()}
        self.lines[key_of(f"kvd_{name}", **labels)] += amount

    def each_class(self, name: str, amount: float, /, classes: int = 3, **labels: str) -> None:
        for of in CLASSES[:classes]:
            self.add(name, amount, of=of, **labels)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def scrape(port: int) -> dict[Key, float]:
    """Return every sample of /metrics, read by Prometheus's own parser."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE_S)
    connection.request("GET", "/metrics")
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    assert answer.status == 200, text
    families = text_string_to_metric_families(text)
    samples = [sample for family in families for sample in family.samples]
    told = {key_of(sample.name, **sample.labels): sample.value for sample in samples}
    assert len(told) == len(samples), "a series is told twice"
    return told


def wait_for(port: int, name: str, value: float, **labels: str) -> None:
    """Scrape until a series has at least a value."""
    deadline, pause = time.monotonic() + DEADLINE_S, threading.Event()
    while (seen := scrape(port)[key_of(name, **labels)]) < value:
        assert time.monotonic() < deadline, f"{name} {labels} is {seen}, not {value}"
        pause.wait(0.02)


class Counted:
    """One session of a tenant."""

    def __init__(self, directory: Path, tenant: str, book: Book) -> None:
        self.client, self.tenant, self.book = RawClient(directory / tenant), tenant, book
        self.digests: dict[int, bytes] = {}
        book.add("sessions_opened_total", tenant=tenant)
        book.add("step_seconds_count", event="SessionOpened")
        book.add("sessions", tenant=tenant)

    def call(self, name: str, message, outcome: str = "ok"):
        """Ask, note that it was asked, and return the answer, or the refusal."""
        number = self.client.start(KINDS[name], message)
        return self.note(name, lambda: self.client.answer(number, KINDS[name]), outcome)

    def note(self, name: str, wait, outcome: str = "ok"):
        self.book.add("requests_total", call=name, outcome=outcome)
        short = "ok" if outcome == "ok" else "error"
        self.book.add("request_seconds_count", call=name, outcome=short)
        self.book.add("step_seconds_count", event=EVENTS[name])
        try:
            answer = wait()
        except Refused as refused:
            assert pb.ErrorKind.Name(refused.kind).lower() == outcome, refused
            return refused
        assert outcome == "ok", answer
        return answer

    def refused(self, name: str, message, outcome: str) -> None:
        """Ask what cannot be meant: the core hears nothing of it."""
        number = self.client.start(KINDS[name], message)
        with pytest.raises(Refused) as refused:
            self.client.answer(number, KINDS[name])
        assert pb.ErrorKind.Name(refused.value.kind).lower() == outcome
        self.book.add("refused_requests_total", tenant=self.tenant, outcome=outcome)

    def register(self, keyspace) -> int:
        reply = self.call("keyspace", keyspace_message(keyspace))
        self.digests[reply.keyspace] = reply.digest
        return reply.keyspace

    # ---- puts ----

    def reserve(self, keyspace: int, chain: bytes, expected: str, **more) -> pb.ReserveReply:
        """Reserve, and note its chunks by the letters of `expected`: Have, Reserved, rePlace,
        Broken prefix."""
        sizes = np.full((len(chain) // 32, 3), SIZE, "<u4").tobytes()
        request = pb.ReserveRequest(
            keyspace=keyspace, lane=pb.Lane(), chain=chain, sizes=sizes, **more
        )
        reply = self.call("reserve", request)
        states = {"H": pb.HAVE, "R": pb.RESERVED, "P": pb.REPLACE, "B": pb.NOT_ADMITTED}
        assert list(reply.states) == [states[letter] for letter in expected], reply
        names = {"H": "have", "R": "reserved", "P": "replace"}
        for letter in expected:
            if letter == "B":
                reason = {"tenant": self.tenant, "reason": "prefix_broken"}
                self.book.add("not_admitted_chunks_total", **reason)
            else:
                state = {"tenant": self.tenant, "state": names[letter]}
                self.book.add("reserved_chunks_total", **state)
        if reply.reservation:
            self.book.add("reservations_opened_total", tenant=self.tenant)
            self.book.add("reservations", tenant=self.tenant)
            self.book.add("generation")
        return reply

    def seal(self, keyspace: int, chain: bytes, reserved: pb.ReserveReply, expected: str):
        """Fill and seal all of a reservation: New, Replaced, Coalesced, Skipped."""
        slabs = np.frombuffer(reserved.slabs, "<u4").reshape(-1, 3)
        offsets = np.frombuffer(reserved.offsets, "<u8").reshape(-1, 3)
        roots = np.zeros((len(expected), 3), "<u8")
        for chunk, plane_class in np.argwhere(slabs).tolist():
            size, descriptor, _ = self.client.channel.slab(int(slabs[chunk, plane_class]))
            with mmap.mmap(descriptor, size) as slab:
                begin = int(offsets[chunk, plane_class])
                slab[begin : begin + SIZE] = STRIP.tobytes()
            key = chunk_key(self.digests[keyspace], chain[32 * chunk : 32 * chunk + 32])
            roots[chunk, plane_class] = strip_root(
                key, Lane(), PlaneClass(plane_class), reserved.generation, CODEC_PROFILE, TABLE
            )
        sizes = np.full((len(expected), 3), SIZE, "<u4")
        request = pb.SealRequest(
            reservation=reserved.reservation, sizes=sizes.tobytes(), roots=roots.tobytes(),
            profile=CODEC_PROFILE, last=True,
        )  # fmt: skip
        self.call("seal", request)
        names = {"N": "new", "R": "replaced", "C": "coalesced", "S": "skipped"}
        for letter in expected:
            state = {"tenant": self.tenant, "state": names[letter]}
            self.book.add("sealed_chunks_total", **state)
        visible = expected.count("N") + expected.count("R")
        self.book.each_class("sealed_bytes_total", visible * SIZE, tenant=self.tenant)
        self.end_reservation("sealed")
        self.book.add("chunks", expected.count("N"), tenant=self.tenant)
        self._saved(visible)

    def _saved(self, chunks: int) -> None:
        self.book.each_class("ssd_written_strips_total", chunks)
        self.book.each_class("ssd_written_bytes_total", chunks * SIZE)
        self.book.each_class("ssd_durable_strips_total", chunks)
        self.book.add("ssd_durable_chunks_total", chunks)
        self.book.add("ssd_commits_total", chunks > 0)

    def end_reservation(self, how: str) -> None:
        self.book.add("reservations_ended_total", tenant=self.tenant, how=how)
        self.book.add("reservations", -1, tenant=self.tenant)

    def gone(self, tier: str, reason: str, chunks: int) -> None:
        """Note whole chunks that left a tier."""
        labels = {"tenant": self.tenant, "tier": tier, "reason": reason}
        self.book.each_class("evicted_strips_total", chunks, **labels)
        self.book.each_class("evicted_bytes_total", chunks * SIZE, **labels)

    # ---- questions ----

    def look_up(self, keyspace: int, chain: bytes, found: int, *, lease: bool = False) -> int:
        request = pb.LookupRequest(
            keyspace=keyspace, lanes=[pb.Lane()], chain=chain, lease=lease
        )  # fmt: skip
        reply = self.call("lookup", request)
        assert np.frombuffer(reply.counts, "<u4").tolist() == [found] * 3
        asked, tenant = len(chain) // 32, self.tenant
        self.book.add("lookups_total", tenant=tenant)
        self.book.each_class("lookup_requested_strips_total", asked, tenant=tenant)
        self.book.each_class("lookup_hit_strips_total", found, tenant=tenant)
        self.book.each_class("lookup_missed_strips_total", asked - found, tenant=tenant)
        self.granted(reply.lease, 3 * found)
        return reply.lease

    def granted(self, lease: int, strips: int) -> None:
        if lease:
            self.book.add("leases_granted_total", tenant=self.tenant)
            self.book.add("leases", tenant=self.tenant)
            self.book.add("lease_bytes", strips * SIZE, tenant=self.tenant)

    def end_lease(self, how: str, strips: int) -> None:
        self.book.add("leases_ended_total", tenant=self.tenant, how=how)
        self.book.add("leases", -1, tenant=self.tenant)
        self.book.add("lease_bytes", -strips * SIZE, tenant=self.tenant)

    def release(self, lease: int, strips: int, corrupt: bytes = b"") -> None:
        self.call("release", pb.ReleaseRequest(lease=lease, corrupt=corrupt))
        self.end_lease("released", strips)

    def fetch(self, keyspace: int, chain: bytes, dram: int, ssd: int, **more) -> int:
        """Fetch a chain of which so many chunks are in dram, and so many on disk only, after
        them; return the lease."""
        classes, tenant = more.setdefault("class_count", 3), self.tenant
        request = pb.FetchRequest(keyspace=keyspace, lanes=[pb.Lane()], chain=chain, **more)
        number = self.client.start(FrameKind.FETCH, request)
        promise = self.client.answer(number, FrameKind.FETCH)
        assert np.frombuffer(promise.counts, "<u4").tolist()[:classes] == [dram + ssd] * classes
        by_bytes = more.get("delivery") == pb.DELIVERY_BYTES
        if by_bytes:
            credit = pb.Credit(bytes=1 << 40).SerializeToString()
            self.client.stream.send(FrameKind.CREDIT, number, credit)
        sent = self.note("fetch", lambda: self._collect(number))
        if by_bytes:
            self.book.add("delivered_bytes_total", sent, tenant=tenant)
            self.book.add("deliveries_total", tenant=tenant, outcome="whole")
            self.book.add("step_seconds_count", event="DeliveryEnded")
        asked = len(chain) // 32
        self.book.add("fetches_total", tenant=tenant, delivery="bytes" if by_bytes else "map")
        for tier, wanted, hit in (("dram", asked, dram), ("ssd", asked - dram, ssd)):
            of = {"tenant": tenant, "tier": tier, "classes": classes}
            self.book.each_class("fetch_requested_strips_total", wanted, **of)
            self.book.each_class("fetch_hit_strips_total", hit, **of)
            self.book.each_class("fetch_missed_strips_total", wanted - hit, **of)
        promised = (dram + ssd) * SIZE
        self.book.each_class("fetch_promised_bytes_total", promised, classes, tenant=tenant)
        if dram + ssd < asked:
            self.book.add("fetch_shortfalls_total", tenant=tenant, reason="not_stored")
        self.granted(promise.lease, classes * (dram + ssd))
        return promise.lease

    def _collect(self, number: int) -> int:
        """Return the bytes of pieces that come until the end."""
        sent = 0
        while True:
            kind, about, body = self.client.stream.receive()
            assert about == number
            if kind == FrameKind.PIECE:
                sent += len(body) - 12
            elif kind == FrameKind.REPLY:
                assert pb.FetchDone.FromString(body).delivered_bytes == sent
                return sent
            else:
                assert kind == FrameKind.READY, kind
