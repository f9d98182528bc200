"""The words of metrics: what a metric is, and the numbers read of it at one moment.

A reading is what the loop hands out, cheap to make; samples are what is told, every series of the
table with 0 where nothing happened.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from itertools import product

from kvd.observe.histogram import Distribution

OTHER = "_other"  # In place of a tenant that is not configured; no tenant has such a name.


class Kind(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Label:
    """`values`: all there are; none where the daemon's configuration names them."""

    name: str
    values: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Metric:
    """`meaning`: what to make of it when it moves, or is high."""

    name: str
    kind: Kind
    labels: tuple[Label, ...]
    help: str
    meaning: str


@dataclass(frozen=True, slots=True)
class Sample:
    """One series at one moment. Of a histogram `value` is the sum, and `buckets` are cumulative
    (upper bound, count), the last one infinite."""

    name: str
    labels: tuple[tuple[str, str], ...]
    value: float
    buckets: tuple[tuple[float, int], ...] = ()


Series = Mapping[tuple, float | Distribution]
Reading = Mapping[str, Series]  # By name of the metric; keys are the labels' values, in order.


def samples_of(
    table: Iterable[Metric], reading: Reading, known: Mapping[str, tuple[str, ...]]
) -> Iterator[Sample]:
    """Yield every series of the table; `known`: values of those labels that have none of their
    own."""
    for metric in table:
        values = [label.values or known.get(label.name, ()) for label in metric.labels]
        series: dict[tuple[str, ...], float | Distribution] = dict.fromkeys(product(*values), 0.0)
        for key, number in reading.get(metric.name, {}).items():
            named = tuple(map(_named, key, metric.labels, values))
            if metric.kind == Kind.HISTOGRAM:
                series[named] = number
            else:
                series[named] = series.get(named, 0.0) + number  # type: ignore[operator]
        names = [label.name for label in metric.labels]
        for key, number in series.items():
            labels = tuple(zip(names, key, strict=True))
            yield _sample(metric.name, labels, number)


def _named(part: object, label: Label, values: tuple[str, ...]) -> str:
    """Return what a label's value is called; numbers of closed sets are by their place in it."""
    if isinstance(part, IntEnum):
        return part.name.lower()
    if isinstance(part, int):
        return values[part]
    name = str(part)
    return name if name in values or label.name != "tenant" else OTHER


def _sample(name: str, labels: tuple[tuple[str, str], ...], number: object) -> Sample:
    if isinstance(number, Distribution):
        return Sample(name, labels, number.sum, number.buckets)
    return Sample(name, labels, float(number))  # type: ignore[arg-type]
