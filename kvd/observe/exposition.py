"""Samples as Prometheus's own library wants them: the only module that knows its classes."""

from collections.abc import Iterable, Iterator
from itertools import groupby

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.core import Metric as Family
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from kvd.observe.metrics import TABLE
from kvd.observe.samples import Kind, Metric, Sample

_BY_NAME = {metric.name: metric for metric in TABLE}


class Told(Collector):
    """A collector of what was read once."""

    def __init__(self, samples: Iterable[Sample]) -> None:
        self._samples = samples

    def collect(self) -> Iterator[Family]:
        for name, series in groupby(self._samples, key=lambda sample: sample.name):
            yield _family(_BY_NAME[name], series)


def _family(metric: Metric, series: Iterable[Sample]) -> Family:
    names = [label.name for label in metric.labels]
    match metric.kind:
        case Kind.COUNTER:
            family = CounterMetricFamily(metric.name, metric.help, labels=names)
        case Kind.GAUGE:
            family = GaugeMetricFamily(metric.name, metric.help, labels=names)
        case Kind.HISTOGRAM:
            family = HistogramMetricFamily(metric.name, metric.help, labels=names)
    for sample in series:
        values = [value for _, value in sample.labels]
        if metric.kind == Kind.HISTOGRAM:
            buckets = [(floatToGoString(bound), count) for bound, count in sample.buckets]
            family.add_metric(values, buckets, sample.value)
        else:
            family.add_metric(values, sample.value)
    return family
