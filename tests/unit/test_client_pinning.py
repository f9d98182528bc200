"""Pinning for the GPU: done lazily through cupy where a device answers, left undone elsewhere."""

import importlib.util
import os
import sys
from types import SimpleNamespace

import pytest

from kvd.arena.memfd import open_slab
from kvd.client import pinning
from kvd.client.mapping import Mapping
from kvd.limits import MIB

READ_ONLY = 8


class Refused(Exception):
    """What stands for cupy's CUDARuntimeError."""


@pytest.fixture
def mapping():
    slab = open_slab("kvd-test", MIB)
    made = Mapping(slab.reading, MIB, writable=False)
    slab.close()
    return [made]


@pytest.fixture
def cupy(monkeypatch):
    """Put a cupy in place that writes down what it is asked; `devices` and `refuses` are set."""
    asked: list[tuple] = []
    made = SimpleNamespace(devices=1, refuses=False, asked=asked)

    def count() -> int:
        if made.devices is None:
            raise Refused
        return made.devices

    def register(*arguments: int) -> None:
        if made.refuses:
            raise Refused
        asked.append(("register", *arguments))

    runtime = SimpleNamespace(
        CUDARuntimeError=Refused,
        getDeviceCount=count,
        hostRegister=register,
        hostUnregister=lambda address: asked.append(("unregister", address)),
    )
    module = SimpleNamespace(cuda=SimpleNamespace(runtime=runtime), __spec__=SimpleNamespace())
    monkeypatch.setitem(sys.modules, "cupy", module)
    pinning._runtime.cache_clear()
    yield made
    pinning._runtime.cache_clear()


def test_a_slab_is_pinned_once_and_unpinned_before_it_is_unmapped(mapping, cupy):
    address = mapping[0].address
    assert mapping[0].pin(writable=False) and mapping[0].pin(writable=False)
    [(_, at, size, flags)] = cupy.asked
    assert (at, size) == (address, MIB) and flags & READ_ONLY
    mapping.clear()
    assert cupy.asked[1:] == [("unregister", address)]


@pytest.mark.parametrize("state", [{"devices": 0}, {"devices": None}, {"refuses": True}])
def test_without_a_device_that_takes_it_nothing_is_pinned(mapping, cupy, state):
    vars(cupy).update(state)
    assert not mapping[0].pin(writable=False)
    mapping.clear()
    assert cupy.asked == []


@pytest.mark.skipif(importlib.util.find_spec("cupy") is not None, reason="cupy is installed")
def test_without_cupy_nothing_is_pinned(mapping):
    pinning._runtime.cache_clear()
    assert not mapping[0].pin(writable=False)


def test_memory_that_is_too_small_is_not_mapped():
    slab = open_slab("kvd-test", MIB)
    with pytest.raises(OSError, match="announced"):
        Mapping(slab.reading, 2 * MIB, writable=False)
    slab.close()


def test_a_mapping_keeps_no_descriptor():
    slab = open_slab("kvd-test", MIB)
    before = len(os.listdir("/proc/self/fd"))
    made = Mapping(slab.writing, MIB, writable=True)
    assert len(os.listdir("/proc/self/fd")) == before
    slab.close()
    assert made.head(8) == bytes(8)
