"""The table of metrics against what the core counts and what a state is read as."""

from dataclasses import fields
from typing import get_args

import pytest

from kvd.core import events
from kvd.core.counts import REPLACED, Counts, Shed
from kvd.core.disk_events import DiskEvent
from kvd.core.effects import NotAdmitted, ReserveState, Shortfall
from kvd.core.story import Why
from kvd.core.transitions import SegmentLife, SlabState, StripState
from kvd.daemon.gauges import read_counts, read_gauges
from kvd.errors import ErrorKind, FaultKind
from kvd.observe import metrics
from kvd.observe.metrics import TABLE
from kvd.observe.observer import Observer
from kvd.observe.samples import OTHER, Kind, samples_of
from kvd.types import PlaneClass
from tests.unit.disk_scene import DiskScene

BY_NAME = {metric.name: metric for metric in TABLE}
RPC_COUNTED = {
    "kvd_requests_total",
    "kvd_refused_requests_total",
    "kvd_rate_refused_total",
    "kvd_denied_total",
}


def values_of(name: str, label: str) -> set[str]:
    return set(next(each.values for each in BY_NAME[name].labels if each.name == label))


def lower(words) -> set[str]:
    return {word.name.lower() for word in words}


def test_names_are_given_once():
    assert len(BY_NAME) == len(TABLE)


def test_every_count_of_the_core_is_a_metric_and_no_other_counter_is():
    counted = {f"kvd_{field.name}_total" for field in fields(Counts)}
    counters = {metric.name for metric in TABLE if metric.kind == Kind.COUNTER}
    assert counters - RPC_COUNTED == counted


@pytest.mark.parametrize("metric", TABLE, ids=lambda metric: metric.name)
def test_names_say_kind_and_unit(metric):
    assert metric.name.startswith("kvd_")
    assert metric.name.endswith("_total") == (metric.kind == Kind.COUNTER)
    if metric.kind == Kind.HISTOGRAM:
        assert metric.name.endswith("_seconds")
    assert metric.help.endswith(".") and metric.meaning.endswith(".")


def test_labels_hold_every_value_that_can_be_given():
    known = {
        ("kvd_evicted_strips_total", "class"): lower(PlaneClass),
        ("kvd_fetch_shortfalls_total", "reason"): lower(Shortfall) - {"none"},
        ("kvd_not_admitted_chunks_total", "reason"): lower(NotAdmitted) - {"none"},
        ("kvd_reserved_chunks_total", "state"): lower(ReserveState) - {"not_admitted"},
        ("kvd_ssd_shed_chunks_total", "reason"): set(Shed),
        ("kvd_ssd_read_faults_total", "kind"): lower(FaultKind),
        ("kvd_requests_total", "outcome"): {"ok", *lower(ErrorKind)},
        ("kvd_dram_bytes", "state"): set(StripState),
        ("kvd_slabs", "state"): set(SlabState) - {SlabState.GONE},
        ("kvd_ssd_segments", "life"): set(SegmentLife) - {SegmentLife.GONE},
        ("kvd_step_seconds", "event"): {
            each.__name__ for each in (*get_args(events.Event), *get_args(DiskEvent))
        },
    }
    for (name, label), expected in known.items():
        assert values_of(name, label) == expected, name
    gone = {Why.ROOM, Why.RECLAIMED, Why.CLEARED, Why.EVICTED}
    assert set(metrics.GONE) == {REPLACED, *lower(gone)}
    said = [each for each in get_args(events.Event) if each.__module__ == events.__name__]
    wishes = {each.__name__ for each in said} - {"CancelWanted"}  # And without operators' wishes.
    calls = {name.removesuffix("Wanted").lower() for name in wishes if name.endswith("Wanted")}
    assert set(metrics.CALLS) == calls


def test_a_fresh_core_tells_every_series_with_zero():
    observer = Observer(("red", "blue"), ("/data",), "1.2")
    series = observer.expand(observer.read())
    assert {sample.name for sample in series} == set(BY_NAME)
    constant = ("kvd_build_info", "kvd_start_time_seconds")
    assert not any(sample.value for sample in series if sample.name not in constant)
    evicted = [s for s in series if s.name == "kvd_evicted_strips_total"]
    assert len(evicted) == 2 * 2 * 3 * len(metrics.GONE)
    assert len({(s.name, s.labels) for s in series}) == len(series)


def test_a_used_core_tells_no_series_that_a_fresh_one_does_not():
    scene = DiskScene()
    session = scene.join("red")
    from kvd.testing.scene import chain_of

    chain = chain_of(3)
    scene.put(session, chain)
    scene.save()
    scene.fetch(session, chain)
    scene.look_up(session, chain)
    observer = Observer(("red",), ("/data",))
    reading = {
        **observer.read(), **read_counts(scene.state.counts), **read_gauges(scene.state),
    }  # fmt: skip
    fresh = {(s.name, s.labels) for s in observer.expand(observer.read())}
    told = {(s.name, s.labels): s for s in observer.expand(reading)}
    assert told.keys() == fresh
    assert reading.keys() <= set(BY_NAME), "read, and not in the table"

    def value(name: str, **labels: str) -> float:
        return told[name, tuple(labels.items())].value

    assert value("kvd_fetch_hit_strips_total", tenant="red", tier="dram", **{"class": "exact"}) == 3
    assert value("kvd_ssd_durable_strips_total", **{"class": "anchor"}) == 3
    assert value("kvd_ssd_class_bytes", **{"class": "anchor"}) == 3 * 4096
    assert value("kvd_ssd_tenant_bytes", tenant="red") == 9 * 4096
    assert value("kvd_dram_class_bytes", **{"class": "residual"}) == 3 * 4096
    assert value("kvd_dram_bytes", tenant="red", state="ready") == 9 * 4096
    assert value("kvd_leases", tenant="red") == 1
    assert value("kvd_chunks", tenant="red") == 3


def test_tenants_that_are_not_configured_are_told_together():
    reading = {"kvd_lookups_total": {("red",): 1, ("old",): 2, ("older",): 4}}
    table = [BY_NAME["kvd_lookups_total"]]
    told = {s.labels: s.value for s in samples_of(table, reading, {"tenant": ("red",)})}
    assert told == {(("tenant", "red"),): 1, (("tenant", OTHER),): 6}
