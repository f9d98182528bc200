"""What any arena must do, run on every implementation: the memfd one, and the simulator's.

A rig makes an arena and lets its background work proceed; checks are plain functions.
"""

import os
from collections.abc import Callable
from typing import Protocol

from kvd.arena.contract import Arena, Report
from kvd.errors import Fault
from kvd.limits import PAGE_BYTES

SLAB_BYTES = 16 * PAGE_BYTES


class Rig(Protocol):
    def make(self, report: Report) -> Arena:
        """Return a fresh arena."""
        ...

    def settle(self, done: Callable[[], bool]) -> None:
        """Let background work proceed until `done`; fail after a bounded time."""
        ...


class Reports:
    """Collects what an arena reports, in order."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, Fault | None]] = []

    def __call__(self, slab: int, fault: Fault | None) -> None:
        self.seen.append((slab, fault))


def _made(rig: Rig, *slabs: int) -> tuple[Arena, Reports]:
    reports = Reports()
    arena = rig.make(reports)
    for slab in slabs:
        arena.create_slab(slab, SLAB_BYTES)
    rig.settle(lambda: len(reports.seen) == len(slabs))
    return arena, reports


def check_each_slab_is_reported_once(rig: Rig) -> None:
    arena, reports = _made(rig, 1, 2, 7)
    assert sorted(reports.seen) == [(1, None), (2, None), (7, None)]
    arena.close()
    assert len(reports.seen) == 3


def check_a_fresh_slab_is_zero_and_cannot_be_written_through_a_view(rig: Rig) -> None:
    arena, _ = _made(rig, 1)
    view = arena.view_slab(1)
    assert view.readonly and view.nbytes == SLAB_BYTES and not any(view)
    arena.close()


def check_slabs_do_not_share_bytes(rig: Rig) -> None:
    arena, _ = _made(rig, 1, 2)
    assert arena.view_slab(1) is not arena.view_slab(2)
    descriptors = {arena.slab_descriptor(s, writable=w) for s in (1, 2) for w in (False, True)}
    assert len(descriptors) == 4
    arena.close()


def check_a_descriptor_is_the_same_until_the_slab_is_destroyed(rig: Rig) -> None:
    arena, _ = _made(rig, 1)
    for writable in (False, True):
        first = arena.slab_descriptor(1, writable=writable)
        assert arena.slab_descriptor(1, writable=writable) == first
    arena.close()


def check_a_loan_lasts_as_long_as_it_is_open_and_no_longer(rig: Rig) -> None:
    arena, _ = _made(rig, 1)
    with arena.lend_slab(1) as (lent, first_loan):
        first = os.dup(lent)
    with arena.lend_slab(1) as (lent, second_loan):
        second = os.dup(lent)
    assert first_loan != second_loan
    assert arena.is_lent(1, first_loan) and arena.is_lent(1, second_loan)
    os.close(first)
    assert not arena.is_lent(1, first_loan) and arena.is_lent(1, second_loan)
    os.close(second)
    assert not arena.is_lent(1, second_loan)
    arena.close()


def check_a_view_outlives_its_slab(rig: Rig) -> None:
    arena, _ = _made(rig, 1)
    view = arena.view_slab(1)
    arena.destroy_slab(1)
    assert not any(view)
    arena.close()
    assert not any(view)


def check_a_destroyed_number_can_be_used_again(rig: Rig) -> None:
    arena, reports = _made(rig, 1)
    arena.destroy_slab(1)
    arena.create_slab(1, 2 * SLAB_BYTES)
    rig.settle(lambda: len(reports.seen) == 2)
    assert arena.view_slab(1).nbytes == 2 * SLAB_BYTES
    arena.close()


def check_a_slab_destroyed_before_its_report_is_not_reported_later(rig: Rig) -> None:
    reports = Reports()
    arena = rig.make(reports)
    arena.create_slab(1, SLAB_BYTES)
    arena.destroy_slab(1)
    before = len(reports.seen)
    arena.create_slab(2, SLAB_BYTES)
    rig.settle(lambda: (2, None) in reports.seen)
    assert [slab for slab, _ in reports.seen[before:]] == [2]
    arena.close()


def check_pages_are_apart_and_advance(rig: Rig) -> None:
    arena, _ = _made(rig)
    (first, first_descriptor), (second, second_descriptor) = (arena.create_page(5) for _ in "ab")
    assert first_descriptor != second_descriptor
    first.revoke(1)
    first.revoke(2)
    second.revoke(1)
    arena.close()


CHECKS = (
    check_each_slab_is_reported_once,
    check_a_fresh_slab_is_zero_and_cannot_be_written_through_a_view,
    check_slabs_do_not_share_bytes,
    check_a_descriptor_is_the_same_until_the_slab_is_destroyed,
    check_a_loan_lasts_as_long_as_it_is_open_and_no_longer,
    check_a_view_outlives_its_slab,
    check_a_destroyed_number_can_be_used_again,
    check_a_slab_destroyed_before_its_report_is_not_reported_later,
    check_pages_are_apart_and_advance,
)
