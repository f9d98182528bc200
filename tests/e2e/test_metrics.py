"""Every number of /metrics against books kept by hand, over two lives of a real daemon."""

import os
import re
import signal
import socket
import time

import pytest

from kvd.limits import GIB, KIB, MIB
from kvd.observe.metrics import TABLE
from kvd.observe.samples import Kind
from kvd.v1 import kvd_pb2 as pb
from tests.e2e.counted import SIZE, Book, Counted, free_port, key_of, scrape, wait_for
from tests.e2e.process import Daemon
from tests.e2e.rawclient import chain_of, small_keyspace

DRAM, SLABS = 128 * MIB, 4  # With ssd slabs are a quarter of dram.
SLAB = DRAM // SLABS
BUDGET = 64 * MIB
GENERATIONS_AHEAD = 1 << 20
KEYSPACE, OTHER = small_keyspace("metrics"), small_keyspace("cleared")
CHAIN = chain_of(3)
MORE = CHAIN + chain_of(4, seed=900)[-32:]
# Time, and what the machine beside us does; each is looked at by `check_the_rest`.
NOT_BY_HAND = {
    "kvd_loop_lag_seconds", "kvd_carry_out_seconds", "kvd_ssd_free_bytes", "kvd_build_info",
    "kvd_start_time_seconds", "kvd_ssd_written_today_bytes",
}  # fmt: skip
# Of these events a test cannot say how often they come: time passes, disks report in parts.
EVENTS_NOT_BY_HAND = (
    "Ticked", "StripsWritten", "StripsRead", "ReadReleased", "SegmentDone", "Probed", "SpaceSeen",
    "DeliveryMoved",
)  # fmt: skip
SUFFIXES = ("_bucket", "_sum", "_count")


class Node:
    """A daemon that serves metrics, and the book of its life."""

    def __init__(self, directory) -> None:
        self.port, self.book = free_port(), Book()
        self.sessions: list[Counted] = []  # So that none is closed by being forgotten.
        self.daemon = Daemon(
            directory / "r", "--dram", "128MiB", "--tenant", "red", "--tenant", "blue",
            "--data", str(directory / "data"), "--ssd", "64MiB",
            "--metrics-listen", f"127.0.0.1:{self.port}",
            "--limits-probe-seconds", "1", "--limits-space-seconds", "0.5",
        )  # fmt: skip
        self.found = self.daemon.wait_line("at most")
        self.daemon.ready()
        wait_for(self.port, "kvd_slabs_made_total", SLABS)
        wait_for(self.port, "kvd_ssd_commits_total", 1)
        book = self.book
        book.add("slabs_made_total", SLABS)
        book.add("ssd_commits_total")  # Of generations.
        for event, times in (
            ("Started", 1), ("SlabTouched", SLABS), ("Recovered", 1), ("DayBegan", 1),
        ):  # fmt: skip
            book.add("step_seconds_count", times, event=event)
        book.add("dram_configured_bytes", DRAM)
        book.add("ssd_budget_bytes", BUDGET)
        book.add("slabs", SLABS, state="idle")
        book.add("dram_unowned_bytes", DRAM)
        found = re.search(r"segments of (\d+)(.iB), at most (\d+)", self.found)
        number, unit, most = found.groups()
        book.add("ssd_segments_max", int(most))
        book.add("ssd_segment_bytes", int(number) * {"KiB": KIB, "MiB": MIB, "GiB": GIB}[unit])

    def join(self, tenant: str = "red") -> Counted:
        self.sessions.append(Counted(self.daemon.directory, tenant, self.book))
        return self.sessions[-1]

    def slabs_given(self, count: int) -> None:
        self.book.add("slabs", count, state="owned")
        self.book.add("slabs", -count, state="idle")
        self.book.add("dram_unowned_bytes", -count * SLAB)

    def settle(self) -> None:
        """Wait until what the book says is durable."""
        for name in ("kvd_ssd_durable_chunks_total", "kvd_ssd_commits_total"):
            wait_for(self.port, name, self.book.lines[key_of(name)])

    def check(self) -> dict:
        """Compare every series; return the scrape."""
        self.book.lines[key_of("kvd_step_seconds_count", event="Committed")] = self.book.lines[
            key_of("kvd_ssd_commits_total")
        ]
        told = scrape(self.port)
        wrong = {
            key: (value, self.book.lines[key])
            for key, value in told.items()
            if is_by_hand(*key) and value != self.book.lines[key]
        }
        assert not wrong, "told, by hand: " + ", ".join(f"{k}: {v}" for k, v in wrong.items())
        unseen = [key for key, value in self.book.lines.items() if value and key not in told]
        assert not unseen, unseen
        return told

    def end(self) -> None:
        self.daemon.send(signal.SIGTERM)
        assert self.daemon.wait() == 0


def is_by_hand(name: str, labels: frozenset) -> bool:
    of = dict(labels)
    if name.endswith(("_bucket", "_sum")) or of.get("event") in EVENTS_NOT_BY_HAND:
        return False
    return name.removesuffix("_count") not in NOT_BY_HAND


@pytest.fixture
def directory(short_directory):
    return short_directory


@pytest.fixture
def node(directory):
    node = Node(directory)
    yield node
    node.daemon.stop()


def test_every_series_is_there_from_the_first_scrape(node):
    """With 0 where nothing happened; of histograms, with all buckets."""
    told = node.check()
    names = {name for name, _ in told}
    for metric in TABLE:
        if metric.kind == Kind.HISTOGRAM:
            assert {metric.name + suffix for suffix in SUFFIXES} <= names
        else:
            assert metric.name in names
    bases = {re.sub(r"_(bucket|sum|count)$", "", name) for name in names}
    assert bases == {metric.name for metric in TABLE}
    check_the_rest(told)


def check_the_rest(told: dict) -> None:
    """What cannot be known by hand is at least possible."""
    by_name = {}
    for (name, labels), value in told.items():
        by_name.setdefault(name, []).append((dict(labels), value))
    [(labels, one)] = by_name["kvd_build_info"]
    assert one == 1 and labels["protocol"] and labels["version"]
    [(_, started)] = by_name["kvd_start_time_seconds"]
    assert 0 <= time.time() - started < 600
    [(labels, free)] = by_name["kvd_ssd_free_bytes"]
    assert 0 <= free < os.statvfs(labels["directory"]).f_blocks * 4096
    for name in ("kvd_loop_lag_seconds", "kvd_carry_out_seconds"):
        [(_, count)] = by_name[f"{name}_count"]
        buckets = sorted((float(of["le"]), value) for of, value in by_name[f"{name}_bucket"])
        assert buckets[-1] == (float("inf"), count) and count > 0
        assert [value for _, value in buckets] == sorted(value for _, value in buckets)


def test_a_trace_with_known_answers_gives_every_number(directory):
    first = Node(directory)
    try:
        _first_life(first)
        first.end()
        second = Node(directory)
    finally:
        first.daemon.stop()
    try:
        _second_life(second)
    finally:
        second.daemon.stop()


def _first_life(node: Node) -> None:
    book, red = node.book, node.join()
    keyspace, other = red.register(KEYSPACE), red.register(OTHER)
    assert red.look_up(keyspace, CHAIN, 0) == 0
    assert red.fetch(keyspace, CHAIN, 0, 0) == 0
    _puts(node, red, keyspace)
    _reads(red, keyspace)
    _wrong_bytes(node, red, keyspace)
    _cleared(node, red, other)
    refused = pb.ReserveRequest(keyspace=keyspace, lane=pb.Lane(), chain=CHAIN, sizes=bytes(36))
    red.call("reserve", refused, "invalid")
    half = pb.LookupRequest(keyspace=keyspace, lanes=[pb.Lane()], chain=CHAIN[:40])
    red.refused("lookup", half, "invalid")
    blue = node.join("blue")
    assert blue.look_up(blue.register(KEYSPACE), CHAIN, 0) == 0
    kept = red.fetch(keyspace, MORE, 4, 0)
    assert kept

    node.slabs_given(2)  # To each session of red that put something.
    chunks = 5  # Three of the chain, one behind them, and one that two sessions put.
    in_dram = 3 * chunks * SIZE
    book.add("dram_bytes", in_dram, tenant="red", state="ready")
    book.add("dram_bytes", 2 * SLAB - in_dram, tenant="red", state="free")
    book.each_class("dram_class_bytes", chunks * SIZE)
    book.each_class("ssd_class_bytes", chunks * SIZE)
    book.add("ssd_tenant_bytes", in_dram, tenant="red")
    book.add("ssd_segments", 3, life="open")
    told = node.check()
    check_the_rest(told)
    _idle(node, told)
    for session in node.sessions:
        session.client.close()
    wait_for(node.port, "kvd_sessions_ended_total", 2, tenant="red")


def _puts(node: Node, red: Counted, keyspace: int) -> None:
    red.seal(
        keyspace, CHAIN, red.reserve(keyspace, CHAIN, "RRR", durability=pb.DURABILITY_DISK), "NNN"
    )
    node.settle()
    assert not red.reserve(keyspace, CHAIN, "HHH").reservation
    red.reserve(keyspace, CHAIN, "BBB", parent=b"x" * 32)
    aborted = red.reserve(keyspace, chain_of(1, seed=700), "R")
    red.call("abort", pb.AbortRequest(reservation=aborted.reservation))
    red.end_reservation("aborted")
    # Two compute the same chunk; who seals later is told so.
    second = node.join()
    twice, again = chain_of(1, seed=800), second.register(KEYSPACE)
    ours, theirs = red.reserve(keyspace, twice, "R"), second.reserve(again, twice, "R")
    red.seal(keyspace, twice, ours, "N")
    second.seal(again, twice, theirs, "C")
    node.settle()
    red.seal(keyspace, MORE, red.reserve(keyspace, MORE, "HHHR"), "SSSN")
    node.settle()


def _reads(red: Counted, keyspace: int) -> None:
    lease = red.look_up(keyspace, CHAIN, 3, lease=True)
    red.release(lease, 9)
    red.call("release", pb.ReleaseRequest(lease=lease), "lost")
    red.release(red.fetch(keyspace, CHAIN, 3, 0), 9)
    red.release(red.fetch(keyspace, CHAIN, 3, 0, class_count=1), 3)
    red.release(red.fetch(keyspace, CHAIN, 3, 0, delivery=pb.DELIVERY_BYTES), 9)
    longer = MORE + bytes(32)
    red.release(red.fetch(keyspace, longer, 4, 0), 12)
    # A fetch takes the lease of a lookup over.
    lease = red.look_up(keyspace, CHAIN, 3, lease=True)
    taken = red.fetch(keyspace, CHAIN, 3, 0, lease=lease)
    red.end_lease("taken_over", 9)
    red.release(taken, 9)
    red.call(
        "prefetch",
        pb.PrefetchRequest(keyspace=keyspace, lanes=[pb.Lane()], chain=CHAIN, class_count=3),
    )
    red.book.add("prefetches_total", tenant="red")


def _wrong_bytes(node: Node, red: Counted, keyspace: int) -> None:
    """A reader finds chunk 3 of 4 wrong: it is offered no more, and a put heals it."""
    lease = red.fetch(keyspace, MORE, 4, 0)
    red.release(lease, 12, corrupt=(3).to_bytes(4, "little"))
    red.book.add("condemned_chunks_total", tenant="red", reason="wrong_bytes")
    red.book.add("ssd_commits_total")  # It is dropped from the catalog at once.
    node.settle()
    assert red.look_up(keyspace, MORE, 3) == 0
    red.seal(keyspace, MORE, red.reserve(keyspace, MORE, "HHHP"), "SSSR")
    red.gone("dram", "replaced", 1)
    red.gone("ssd", "replaced", 1)
    node.settle()


def _cleared(node: Node, red: Counted, other: int) -> None:
    red.seal(other, CHAIN, red.reserve(other, CHAIN, "RRR"), "NNN")
    node.settle()
    reply = red.call("clear", pb.ClearRequest(keyspace=other))
    assert reply.chunks == 3
    red.book.add("clears_total", tenant="red")
    red.book.add("ssd_commits_total")
    red.book.add("chunks", -3, tenant="red")
    red.gone("dram", "cleared", 3)
    red.gone("ssd", "cleared", 3)
    node.settle()


def _idle(node: Node, before: dict) -> None:
    """While nobody asks for anything, no counter moves, whatever the clock does."""
    ticks = before[key_of("kvd_step_seconds_count", event="Ticked")]
    wait_for(node.port, "kvd_step_seconds_count", ticks + 3, event="Ticked")
    # What the tier does by itself comes more rarely: it looks at its canaries, and at free space.
    for event in ("Probed", "SpaceSeen"):
        times = before[key_of("kvd_step_seconds_count", event=event)]
        wait_for(node.port, "kvd_step_seconds_count", times + 2, event=event)
    after = scrape(node.port)
    counters = {metric.name for metric in TABLE if metric.kind == Kind.COUNTER}
    moved = [key for key in after if key[0] in counters and after[key] != before[key]]
    assert not moved
    started = key_of("kvd_start_time_seconds")
    assert after[started] == before[started]


def _second_life(node: Node) -> None:
    """Counters begin at 0; what was on disk is read once, and is in dram from then on."""
    book = node.book
    book.add("ssd_recovered_chunks_total", 5)
    book.add("chunks", 5, tenant="red")
    book.add("generation", GENERATIONS_AHEAD)
    book.each_class("ssd_class_bytes", 5 * SIZE)
    book.add("ssd_tenant_bytes", 15 * SIZE, tenant="red")
    book.add("ssd_segments", 3, life="open")
    red = node.join()
    keyspace = red.register(KEYSPACE)
    red.release(red.fetch(keyspace, CHAIN, 0, 3), 9)
    book.each_class("ssd_read_strips_total", 3)
    book.each_class("ssd_read_bytes_total", 3 * SIZE)
    red.release(red.fetch(keyspace, CHAIN, 3, 0), 9)
    red.release(red.fetch(keyspace, MORE, 3, 1, delivery=pb.DELIVERY_BYTES), 12)
    book.each_class("ssd_read_strips_total", 1)
    book.each_class("ssd_read_bytes_total", SIZE)
    in_dram = 12 * SIZE
    node.slabs_given(1)  # To the daemon's own session, which reads into it.
    book.add("dram_bytes", in_dram, tenant="red", state="ready")
    book.add("dram_bytes", SLAB - in_dram, tenant="red", state="free")
    book.each_class("dram_class_bytes", 4 * SIZE)
    check_the_rest(node.check())


def test_a_daemon_ends_when_the_address_that_was_named_is_taken(directory):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        daemon = Daemon(directory, "--dram", "64MiB", "--metrics-listen", address)
        assert daemon.wait() == 2
        line = daemon.wait_line("metrics.listen")
        assert address in line and "in use" in line and "off" in line
