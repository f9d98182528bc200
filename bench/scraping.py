"""What a bench reads of a daemon's metrics: how late its loop was meanwhile."""

import socket
import urllib.request
from math import inf

from prometheus_client.parser import text_string_to_metric_families

LAG = "kvd_loop_lag_seconds"
SCRAPE_SECONDS = 10.0

Buckets = dict[float, float]  # Cumulative counts by upper bound.


def free_address() -> str:
    """Return an address that nobody listens at now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def lag_of(address: str) -> Buckets:
    """Return the histogram of the loop's lag so far."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=SCRAPE_SECONDS) as answer:
        families = text_string_to_metric_families(answer.read().decode())
    [lag] = [family for family in families if family.name == LAG]
    return {float(s.labels["le"]): s.value for s in lag.samples if s.name == f"{LAG}_bucket"}


def quantile(before: Buckets, after: Buckets, part: float) -> tuple[float, int]:
    """Return the seconds that a part of what came in between stayed below, and how much came.

    Within a bucket as if it were spread evenly, as Prometheus does.
    """
    counts = {bound: after[bound] - before[bound] for bound in sorted(after)}
    wanted = part * counts[inf]
    low = below = 0.0
    for bound, count in counts.items():
        if count >= wanted:
            if bound == inf:
                return low, int(counts[inf])
            return low + (bound - low) * (wanted - below) / (count - below), int(counts[inf])
        low, below = bound, count
    return low, 0
