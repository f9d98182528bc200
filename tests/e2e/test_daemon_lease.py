"""Leases and slabs that are taken back, seen by a client: notice, control page, recall."""

import time
from dataclasses import replace

import numpy as np
import pytest

from kvd.clock import NS_PER_MS
from kvd.limits import MIB, Limits
from kvd.v1 import kvd_pb2 as pb
from kvd.wire import CONTROL_PAGE, FrameKind
from tests.e2e.process import in_process
from tests.e2e.rawclient import (
    DEADLINE_S,
    RawClient,
    Refused,
    chain_of,
    keyspace_message,
    small_keyspace,
)
from tests.e2e.strips import fetch_request, lookup, put, read_mapped, register, reserve_all

CELLS = 4
LIMITS = replace(Limits(), tick_ns=20 * NS_PER_MS, slab_bytes=4 * MIB)
LOSES = replace(LIMITS, lease_ttl_ns=200 * NS_PER_MS)
REVOKES = replace(LOSES, quarantine_ns=200 * NS_PER_MS)


def serving(directory, limits: Limits):
    return in_process(directory, limits, 8 * MIB)


def stored(client: RawClient, model: str, chunks: int = 3):
    keyspace = register(client, keyspace_message(small_keyspace(model)))
    return put(client, keyspace, chain_of(chunks), CELLS, 100)


def test_a_reader_slower_than_its_lease_is_told_then_revoked(short_directory):
    with serving(short_directory, REVOKES) as tenant:
        client = RawClient(tenant)
        promise = read_mapped(client, stored(client, "slow"))
        assert 0 < promise.lease_ms <= 200
        assert client.notice().lease_lost == promise.lease
        # Before anything it was promised is reused, its control page says so.
        deadline = time.monotonic() + DEADLINE_S
        while CONTROL_PAGE.unpack_from(client.page)[2] == 0:
            assert time.monotonic() < deadline
            register(client, keyspace_message(small_keyspace("slow")))
        with pytest.raises(Refused) as refused:
            client.call(FrameKind.RELEASE, pb.ReleaseRequest(lease=promise.lease))
        assert refused.value.kind == pb.LOST
        client.close()


def test_a_lost_lease_that_is_given_back_is_not_revoked(short_directory):
    with serving(short_directory, LOSES) as tenant:
        client = RawClient(tenant)
        promise = read_mapped(client, stored(client, "given back"))
        assert client.notice().lease_lost == promise.lease
        with pytest.raises(Refused) as refused:
            client.call(FrameKind.RENEW, pb.RenewRequest(lease=promise.lease))
        assert refused.value.kind == pb.LOST
        client.call(FrameKind.RELEASE, pb.ReleaseRequest(lease=promise.lease))
        assert CONTROL_PAGE.unpack_from(client.page)[2] == 0
        client.close()


def test_delivery_renews_its_lease_by_progress(short_directory):
    limits = replace(LIMITS, lease_ttl_ns=1000 * NS_PER_MS)
    with serving(short_directory, limits) as tenant:
        client = RawClient(tenant)
        first = stored(client, "progress", 40)
        request = fetch_request(first, delivery=pb.DELIVERY_BYTES, rate_bits=200_000)
        number = client.start(FrameKind.FETCH, request)
        promise = client.answer(number, FrameKind.FETCH)
        plenty = pb.Credit(bytes=1 << 40).SerializeToString()
        client.stream.send(FrameKind.CREDIT, number, plenty)
        began = time.monotonic()
        while not isinstance(client.answer(number, FrameKind.FETCH), pb.FetchDone):
            pass
        assert time.monotonic() - began > 2 * limits.lease_ttl_ns / 1e9
        assert client.notices == []
        client.call(FrameKind.RELEASE, pb.ReleaseRequest(lease=promise.lease))
        client.close()


def test_a_writer_with_all_slabs_is_asked_for_one(short_directory):
    with serving(short_directory, LIMITS) as tenant:
        rich, poor = RawClient(tenant), RawClient(tenant)
        keyspace = register(rich, keyspace_message(small_keyspace("rich")))
        sizes = np.full((5, 3), MIB // 2, "<u4").tobytes()
        request = pb.ReserveRequest(
            keyspace=keyspace, lane=pb.Lane(), chain=chain_of(5), sizes=sizes
        )
        reserved = reserve_all(rich, request)
        slabs = set(np.frombuffer(reserved.slabs, "<u4").tolist())
        assert len(slabs) == 2 and all(rich.channel.slab(slab)[2] for slab in slabs)
        rich.call(FrameKind.ABORT, pb.AbortRequest(reservation=reserved.reservation))
        wanted = pb.ReserveRequest(
            keyspace=register(poor, keyspace_message(small_keyspace("poor"))),
            lane=pb.Lane(), chain=chain_of(1), sizes=np.full((1, 3), 4096, "<u4").tobytes(),
        )  # fmt: skip
        refused = poor.call(FrameKind.RESERVE, wanted)
        assert list(refused.states) == [pb.NOT_ADMITTED]
        slab = rich.channel.listen().slab_recalled.slab
        assert slab in slabs
        rich.channel.send(pb.ToDaemon(slab_detached=pb.SlabDetached(slab=slab)))
        admitted = reserve_all(poor, wanted)
        assert set(np.frombuffer(admitted.slabs, "<u4").tolist()) == {slab}
        assert poor.channel.slab(slab)[2]
        for client in (rich, poor):
            client.close()


def test_a_lookups_lease_is_taken_over_by_a_fetch(short_directory):
    with serving(short_directory, LIMITS) as tenant:
        client = RawClient(tenant)
        first = stored(client, "over")
        counts, lease = lookup(client, first, lease=True)
        assert counts == [3, 3, 3] and lease
        number = client.start(FrameKind.FETCH, fetch_request(first, lease=lease))
        promise = client.answer(number, FrameKind.FETCH)
        client.answer(number, FrameKind.FETCH)
        assert promise.lease != lease
        with pytest.raises(Refused):
            client.call(FrameKind.RELEASE, pb.ReleaseRequest(lease=lease))
        client.call(FrameKind.RELEASE, pb.ReleaseRequest(lease=promise.lease))
        client.close()
