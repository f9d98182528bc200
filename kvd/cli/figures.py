"""Numbers out of a daemon's samples: sums over labels, rates between two moments, quantiles.

A metric that a daemon does not know is 0, so that views work with older and newer ones.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from kvd.v1 import admin_pb2 as admin

Labels = dict[str, str]
Buckets = list[tuple[float, float]]  # (upper bound, cumulative count).

TIERS, CLASSES = ("dram", "ssd"), ("anchor", "residual", "exact")


@dataclass(frozen=True, slots=True)
class Figures:
    """The samples of one moment, by metric."""

    at_ms: int = 0
    series: dict[str, list[tuple[Labels, admin.Sample]]] = field(default_factory=dict)

    def values(self, name: str, by: str, **labels: str) -> dict[str, float]:
        """Return sums by one label's values, of series that have the given labels."""
        found: dict[str, float] = {}
        for own, sample in self._chosen(name, labels):
            key = own.get(by, "")
            found[key] = found.get(key, 0.0) + sample.value
        return found

    def total(self, name: str, **labels: str) -> float:
        return sum(sample.value for _, sample in self._chosen(name, labels))

    def buckets(self, name: str, **labels: str) -> Buckets:
        """Return one cumulative histogram over all series that have the labels."""
        found: dict[float, float] = {}
        for _, sample in self._chosen(name, labels):
            for bucket in sample.buckets:
                found[bucket.le] = found.get(bucket.le, 0.0) + bucket.count
        return sorted(found.items())

    def names_of(self, name: str, label: str) -> list[str]:
        return sorted({own[label] for own, _ in self.series.get(name, ()) if label in own})

    def _chosen(self, name: str, labels: Labels) -> Iterable[tuple[Labels, admin.Sample]]:
        for own, sample in self.series.get(name, ()):
            if all(own.get(key) == value for key, value in labels.items()):
                yield own, sample


def figures_of(reply: admin.StatsReply) -> Figures:
    found = Figures(reply.at_ms)
    for sample in reply.samples:
        labels = {label.name: label.value for label in sample.labels}
        found.series.setdefault(sample.name, []).append((labels, sample))
    return found


@dataclass(frozen=True, slots=True)
class Span:
    """Two moments of one daemon; of the first one only, it is all since its start."""

    before: Figures
    now: Figures

    @property
    def seconds(self) -> float:
        return max(1e-3, (self.now.at_ms - self.before.at_ms) / 1000)

    def grown(self, name: str, **labels: str) -> float:
        """Return by how much a counter grew."""
        return self.now.total(name, **labels) - self.before.total(name, **labels)

    def rate(self, name: str, **labels: str) -> float:
        """Return a counter's growth a second."""
        return self.grown(name, **labels) / self.seconds

    def hit_rate(self, tier: str, **labels: str) -> float | None:
        """Return the share of strips asked of a tier that it had, or None when nothing was."""
        asked = self.grown("kvd_fetch_requested_strips_total", tier=tier, **labels)
        hit = self.grown("kvd_fetch_hit_strips_total", tier=tier, **labels)
        return hit / asked if asked else None

    def buckets(self, name: str, **labels: str) -> Buckets:
        before = dict(self.before.buckets(name, **labels))
        return [(le, n - before.get(le, 0.0)) for le, n in self.now.buckets(name, **labels)]

    def quantile(self, name: str, share: float, **labels: str) -> float | None:
        return quantile(self.buckets(name, **labels), share)


def quantile(buckets: Buckets, share: float) -> float | None:
    """Return where a share of a cumulative histogram lies, straight within a bucket.

    None of an empty one; of what is beyond the last bound, that bound: it is at least that.
    """
    total = buckets[-1][1] if buckets else 0.0
    if not total:
        return None
    wanted, below, start = share * total, 0.0, 0.0
    for le, count in buckets:
        if count >= wanted:
            if le == float("inf"):
                return start
            inside = count - below
            return start + (le - start) * ((wanted - below) / inside if inside else 1.0)
        below, start = count, le
    return start
