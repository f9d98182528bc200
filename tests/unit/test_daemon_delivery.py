"""Pieces in their order for odd shapes; deliveries wait for what is not there, and end once."""

import asyncio
from dataclasses import replace
from itertools import chain, groupby

import numpy as np
import pytest

from kvd.core.effects import WHOLE, Deliver, LaneColumns
from kvd.core.events import DeliveryEnded, DeliveryMoved
from kvd.daemon.delivery import Delivery
from kvd.daemon.pieces import PIECE_BYTES_MIN, BrokenStrip, class_pieces
from kvd.errors import FaultKind
from kvd.format.strip import pack_table
from kvd.limits import KIB, MIB, Limits
from kvd.table import padded, table_bytes
from kvd.types import PlaneClass

PIECE_MAX = 1 * MIB


def strip(layer_bytes: list[int], cells_per_layer: int) -> np.ndarray:
    """Return a strip whose layers have cells of so many bytes each, multiples of eight."""
    lengths = np.repeat(np.array(layer_bytes), cells_per_layer)
    head = table_bytes(len(lengths))
    offsets = head + np.concatenate(([0], np.cumsum(lengths)[:-1]))
    bytes_ = np.random.default_rng(sum(layer_bytes)).integers(
        0, 256, padded(int(head + lengths.sum())), np.uint8
    )
    none = np.zeros(len(lengths), np.uint64)
    table = pack_table(
        offsets.astype(np.uint32), lengths.astype(np.uint32), np.zeros(len(lengths), bool), none
    )
    bytes_[:head] = table.view(np.uint8)
    return bytes_


class Slabs:
    """Lays lanes of strips out in one slab: `lanes[lane][class][chunk]`."""

    def __init__(self, lanes) -> None:
        self.lanes = lanes
        self.data = np.zeros(0, np.uint8)
        self.columns = tuple(self._lay(lane) for lane in lanes)
        self.counts = tuple(len(lanes[0][c]) for c in range(3))

    def _lay(self, lane) -> LaneColumns:
        offsets, sizes = [], []
        for strips in lane:
            offsets.append([])
            sizes.append([s.size for s in strips])
            for s in strips:
                offsets[-1].append(self.data.size)
                self.data = np.concatenate((self.data, s))
        none = np.zeros(0, np.uint64)
        return LaneColumns(
            none, none, tuple(np.ones(len(s), np.uint32) for s in sizes),
            tuple(np.array(o, np.uint64) for o in offsets),
            tuple(np.array(s, np.uint32) for s in sizes), (none, none, none),
        )  # fmt: skip

    def deliver(self, layers, cells, begin=0, end=None, rate_bits=0) -> Deliver:
        end = max(layers) if end is None else end
        return Deliver(
            1, 1, self.counts, self.columns, begin, end, tuple(layers), tuple(cells), rate_bits
        )

    def view(self, slab: int) -> memoryview:
        assert slab == 1
        return self.data.data

    def by_class(self, deliver, piece_max=PIECE_MAX):
        classes = [each for each in PlaneClass if deliver.counts[each]]
        return [class_pieces(deliver, each, self.view, piece_max) for each in classes]

    def pieces(self, deliver, piece_max=PIECE_MAX):
        got = list(chain(*self.by_class(deliver, piece_max)))
        for place, data in got:
            whole = self.lanes[place.lane][place.plane_class][place.chunk]
            assert bytes(data) == whole[place.offset : place.offset + len(data)].tobytes()
            assert 0 < len(data) <= piece_max
        return got


def same(layer_bytes, cells_per_layer, counts=(2, 1, 1)):
    return [[strip(layer_bytes, cells_per_layer)] * count for count in counts]


def test_bands_are_as_thin_as_a_piece_is_worth_its_head():
    slabs = Slabs([same([10 * KIB] * 12, 1)])
    pieces = slabs.pieces(slabs.deliver([12], [1]))
    sizes = [len(data) for _, data in pieces]
    assert len(pieces) == 4 * 3 and min(sizes) >= PIECE_BYTES_MIN
    assert [k for k, _ in groupby(p.plane_class for p, _ in pieces)] == [0, 1, 2]


def test_a_layer_larger_than_a_piece_is_split():
    slabs = Slabs([same([40 * KIB] * 2, 1, (1, 0, 0))])
    deliver = slabs.deliver([2], [1])
    pieces = slabs.pieces(deliver, 16 * KIB)
    offsets = [place.offset for place, _ in pieces]
    assert offsets == sorted(offsets) and offsets[0] == 0
    assert sum(len(data) for _, data in pieces) == 80 * KIB + table_bytes(2)


def test_small_strips_are_one_piece_each():
    slabs = Slabs([same([8] * 3, 2)])
    pieces = slabs.pieces(slabs.deliver([3], [2]))
    assert [(p.plane_class, p.chunk, p.offset) for p, _ in pieces] == [
        (0, 0, 0), (0, 1, 0), (1, 0, 0), (2, 0, 0),
    ]  # fmt: skip
    assert all(len(data) == table_bytes(6) + 48 for _, data in pieces)


def test_empty_cells_send_the_table_and_nothing_else():
    slabs = Slabs([same([0] * 4, 2, (1, 1, 0))])
    pieces = slabs.pieces(slabs.deliver([4], [2]))
    assert [len(data) for _, data in pieces] == [table_bytes(8)] * 2


def test_layers_asked_for_follow_the_table_apart():
    slabs = Slabs([same([16 * KIB] * 8, 1, (1, 0, 0))])
    pieces = slabs.pieces(slabs.deliver([8], [1], begin=2, end=5))
    head = table_bytes(8)
    assert [(p.offset, len(d)) for p, d in pieces] == [
        (0, head),
        (head + 32 * KIB, 32 * KIB),
        (head + 64 * KIB, 16 * KIB),
    ]


def test_lanes_of_different_depths_go_side_by_side():
    deep, shallow = same([32 * KIB] * 4, 1, (1, 0, 0)), same([32 * KIB] * 2, 1, (1, 0, 0))
    slabs = Slabs([deep, shallow])
    pieces = slabs.pieces(slabs.deliver([4, 2], [1, 1]))
    assert [p.lane for p, _ in pieces] == [0, 1, 0, 1, 0, 0]


def test_a_table_that_cannot_be_one_is_refused_when_it_is_reached():
    slabs = Slabs([same([8], 1, (2, 0, 0))])
    at = int(slabs.columns[0].offsets[0][1])
    slabs.data[at : at + 4] = 255
    [pieces] = slabs.by_class(slabs.deliver([1], [1]))
    assert next(pieces)[0].chunk == 0
    with pytest.raises(BrokenStrip, match="anchor strip of chunk 1"):
        next(pieces)


# ---- deliveries ----


class ByHand:
    """A clock and a sink that a test moves."""

    def __init__(self) -> None:
        self.now = 0
        self.room = 0
        self.sent = []

    def now_ns(self) -> int:
        return self.now

    def has_room(self) -> bool:
        return self.room > 0

    def has_turn(self) -> bool:
        return True

    def send(self, place, data) -> None:
        self.room -= 1
        self.sent.append((place, len(data)))


def begin(slabs, deliver):
    hand, events = ByHand(), []
    delivery = Delivery(deliver, slabs.by_class(deliver), events.append, hand, Limits())
    delivery.start(hand)
    return hand, events, delivery


@pytest.fixture
def slabs():
    return Slabs([same([32 * KIB] * 4, 1, (3, 0, 0))])


def test_a_delivery_goes_on_when_there_is_room_and_ends_once(slabs):
    hand, events, delivery = begin(slabs, slabs.deliver([4], [1]))
    assert hand.sent == [] and events == []
    hand.room = 5
    delivery.pump()
    assert len(hand.sent) == 5 and events == []
    hand.room = 100
    delivery.pump()
    delivery.pump()
    delivery.stop()
    total = sum(size for _, size in hand.sent)
    assert len(hand.sent) == 12 and events == [DeliveryEnded(1, total, None)]


def test_a_stopped_delivery_sends_no_more(slabs):
    hand, events, delivery = begin(slabs, slabs.deliver([4], [1]))
    hand.room = 1
    delivery.pump()
    delivery.stop()
    hand.room = 100
    delivery.pump()
    [ended] = events
    assert len(hand.sent) == 1 and ended.fault.kind == FaultKind.CANCELLED
    assert ended.delivered_bytes == hand.sent[0][1]


def test_progress_is_told_now_and_then_and_only_when_there_was_some(slabs):
    hand, events, delivery = begin(slabs, slabs.deliver([4], [1]))
    tick_ns = Limits().tick_ns
    for _ in range(3):
        hand.room, hand.now = 1, hand.now + tick_ns // 2
        delivery.pump()
    assert events == [DeliveryMoved(1)]
    hand.now += 10 * tick_ns
    delivery.pump()
    assert events == [DeliveryMoved(1)] * 2
    hand.now += 10 * tick_ns
    delivery.pump()
    assert events == [DeliveryMoved(1)] * 2


def test_a_paced_delivery_waits_for_its_timer():
    async def main():
        slabs = Slabs([same([32 * KIB] * 2, 1, (1, 0, 0))])
        # A piece in a quarter of a millisecond of the loop's clock; the test's stands still.
        hand, events, delivery = begin(slabs, slabs.deliver([2], [1], rate_bits=1 << 30))
        hand.room = 100
        delivery.pump()
        assert hand.sent == []
        hand.now = 10**9
        while not events:
            await asyncio.sleep(0)
        assert len(hand.sent) == 2

    asyncio.run(main())


def test_a_broken_strip_ends_it_as_a_checksum_fault(slabs):
    slabs.data[0:4] = 255
    hand, events, _ = begin(slabs, slabs.deliver([4], [1]))
    [ended] = events
    assert ended.fault.kind == FaultKind.CHECKSUM and ended.delivered_bytes == 0
    assert hand.sent == [] and ended.broken == (0, 0)


def test_a_broken_strip_behind_others_is_named(slabs):
    at = int(slabs.columns[0].offsets[0][2])
    slabs.data[at : at + 4] = 255
    hand, events, delivery = begin(slabs, slabs.deliver([4], [1]))
    hand.room = 100
    delivery.pump()
    [ended] = events
    assert ended.broken == (0, 2) and ended.delivered_bytes == sum(size for _, size in hand.sent)


# ---- what is still being read from disk ----


@pytest.fixture
def three_classes():
    return Slabs([same([32 * KIB] * 4, 1, (2, 2, 1))])


def waiting(slabs, ready, rate_bits=0):
    """Begin a delivery of which not all is there; what is not, has no table yet."""
    whole = slabs.data.copy()
    for plane_class in range(3):
        if ready[plane_class] != WHOLE:
            for at, size in zip(
                slabs.columns[0].offsets[plane_class], slabs.columns[0].sizes[plane_class],
                strict=True,
            ):  # fmt: skip
                slabs.data[int(at) : int(at) + int(size)] = 255
    deliver = replace(slabs.deliver([4], [1], rate_bits=rate_bits), ready=ready)
    hand, events, delivery = begin(slabs, deliver)
    hand.room = 1000
    delivery.pump()
    slabs.data[:] = whole
    return hand, events, delivery


def classes_of(hand):
    return [place.plane_class for place, _ in hand.sent]


def test_nothing_of_a_class_is_touched_before_all_of_it_is_there(three_classes):
    hand, events, delivery = waiting(three_classes, (3, 1, 0))
    assert hand.sent == [] and events == []
    delivery.more((WHOLE, 254, 0))
    assert classes_of(hand) == [0] * 8 and events == []
    delivery.more((WHOLE, WHOLE, 0))
    delivery.more((WHOLE, WHOLE, 0))
    assert classes_of(hand) == [0] * 8 + [1] * 8 and events == []
    delivery.more((WHOLE, WHOLE, WHOLE))
    assert classes_of(hand) == [0] * 8 + [1] * 8 + [2] * 4
    assert events == [DeliveryEnded(1, sum(size for _, size in hand.sent), None)]


def test_classes_that_nobody_asked_for_are_not_waited_for():
    slabs = Slabs([same([32 * KIB] * 4, 1, (1, 0, 0))])
    hand, events, delivery = waiting(slabs, (0, 0, 0))
    delivery.more((WHOLE, 0, 0))
    assert len(hand.sent) == 4 and [type(event) for event in events] == [DeliveryEnded]


def test_more_that_comes_while_there_is_no_room_is_sent_later(three_classes):
    hand, events, delivery = waiting(three_classes, (WHOLE, 0, 0))
    hand.room = 0
    delivery.more((WHOLE, WHOLE, WHOLE))
    assert classes_of(hand) == [0] * 8 and events == []
    hand.room = 1000
    delivery.pump()
    assert len(hand.sent) == 20 and len(events) == 1


def test_a_delivery_that_waits_can_be_stopped_and_hears_no_more(three_classes):
    hand, events, delivery = waiting(three_classes, (WHOLE, 0, 0))
    delivery.stop()
    three_classes.data[:] = 255
    delivery.more((WHOLE, WHOLE, WHOLE))
    delivery.pump()
    [ended] = events
    assert ended.fault.kind == FaultKind.CANCELLED and len(hand.sent) == 8


def test_time_without_anything_to_send_is_not_made_up_for():
    async def main():
        slabs = Slabs([same([32 * KIB] * 4, 1, (1, 1, 0))])
        hand, events, delivery = waiting(slabs, (WHOLE, 0, 0), rate_bits=1 << 30)
        async with asyncio.timeout(30):
            hand.now = 10**9
            while len(hand.sent) < 4:
                await asyncio.sleep(0)
            delivery.more((WHOLE, WHOLE, 0))
            delivery.pump()
            assert len(hand.sent) == 4
            hand.now = 2 * 10**9
            while not isinstance(events[-1], DeliveryEnded):
                await asyncio.sleep(0)
        assert len(hand.sent) == 8

    asyncio.run(main())
