"""Every arena passes the suite that kvd ships."""

import threading

import pytest

from kvd.arena.slabs import MemfdArena
from kvd.testing.arena_conformance import CHECKS

DEADLINE_S = 20.0


class MemfdRig:
    """Waits for the arena's thread by the reports it makes."""

    def __init__(self) -> None:
        self._moved = threading.Condition()

    def make(self, report):
        def relay(slab, fault):
            with self._moved:
                report(slab, fault)
                self._moved.notify_all()

        return MemfdArena(relay, slabs_max=8)

    def settle(self, done):
        with self._moved:
            assert self._moved.wait_for(done, DEADLINE_S)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_memfd_arena(check):
    check(MemfdRig())
