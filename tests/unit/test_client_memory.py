"""A process without memory for staging or scratch: a miss and a refusal, and nothing else ends."""

import errno

import pytest

from kvd.client import EXACT, Delivery, KvdError, Reason
from kvd.client import mapping as mapping_module
from kvd.client.mapping import Pool
from kvd.errors import ErrorKind
from kvd.limits import MIB
from kvd.v1 import kvd_pb2 as pb
from kvd.wire import FrameKind
from tests.unit.client_peer import CHUNKS, DEADLINE_S, LAYERS, LEASE
from tests.unit.test_client_session import counts_reply

OUT = [OSError(errno.ENOMEM, "Cannot allocate memory"), MemoryError()]


def ends(monkeypatch, error: BaseException) -> None:
    def none_left(size: int) -> None:
        raise error

    monkeypatch.setattr(mapping_module, "Buffer", none_left)


@pytest.mark.parametrize("error", OUT)
def test_a_pool_without_memory_says_how_much_it_lacks_and_what_to_do(monkeypatch, error):
    ends(monkeypatch, error)
    with pytest.raises(KvdError, match="5 MiB") as raised:
        Pool().take(5 * MIB)
    assert raised.value.kind == ErrorKind.OVERLOADED and "ulimit -v" in raised.value.message


@pytest.mark.parametrize("error", OUT)
def test_a_put_without_memory_is_refused(stage, strips, monkeypatch, error):
    ends(monkeypatch, error)
    putting = stage.start(stage.space.put, strips.chain, strips.tensors)
    stage.peer.take_keyspace()
    stage.peer.reply(stage.peer.take(FrameKind.LOOKUP, pb.LookupRequest)[0], counts_reply(1, 1, 1))
    stored = putting.result(DEADLINE_S)
    assert (stored.stored, stored.had, stored.refused) == (0, 1, CHUNKS - 1)
    assert stored.reason == Reason.OVERLOADED


@pytest.mark.parametrize("error", OUT)
def test_a_fetch_without_memory_is_a_miss_and_others_go_on(stage, strips, monkeypatch, error):
    opening = stage.start(stage.space.fetch, strips.chain)
    stage.peer.take_keyspace()
    number, _ = stage.peer.take(FrameKind.FETCH, pb.FetchRequest)
    stage.peer.tell(*strips.given())
    stage.peer.promise(number, strips.promise())
    stage.peer.reply(number, pb.FetchDone())
    mapped = opening.result(DEADLINE_S)
    looking = stage.start(stage.space.lookup, strips.chain)
    looked, _ = stage.peer.take(FrameKind.LOOKUP, pb.LookupRequest)

    ends(monkeypatch, error)
    opening = stage.start(stage.space.fetch, strips.chain, delivery=Delivery.BYTES)
    number, _ = stage.peer.take(FrameKind.FETCH, pb.FetchRequest)
    promise = strips.promise()
    promise.lease = LEASE + 1
    stage.peer.promise(number, promise)
    fetch = opening.result(DEADLINE_S)
    assert fetch.counts == (0, 0, 0) and fetch.reason == Reason.OVERLOADED
    assert stage.peer.take(FrameKind.CANCEL, pb.Cancel)[0] == number
    assert stage.peer.take(FrameKind.RELEASE, pb.ReleaseRequest)[1].lease == LEASE + 1

    stage.peer.reply(looked, counts_reply(2, 2, 2))
    assert looking.result(DEADLINE_S).counts == (2, 2, 2)
    targets = strips.targets()
    assert mapped.decode((0, LAYERS), EXACT, targets) == CHUNKS and strips.equal(targets)
    assert stage.client.status().connected
