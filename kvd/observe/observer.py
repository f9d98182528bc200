"""What the loop sees of itself, and who is known by name: one object, used on the loop's thread.

Decides nothing and is asked nothing: those who work tell it how long it took.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from kvd.clock import NS_PER_MS, NS_PER_S
from kvd.errors import ErrorKind, KvdError
from kvd.limits import PROTOCOL_MAX
from kvd.observe.histogram import Histogram
from kvd.observe.metrics import CALLS, EVENTS, OUTCOMES_IN_SHORT, TABLE
from kvd.observe.samples import Reading, Sample, samples_of
from kvd.observe.traces import Traces

_US = NS_PER_MS // 1000
STEP_BOUNDS_NS = tuple(_US * n for n in (25, 100, 250, 1000, 2500, 10_000, 100_000, 1_000_000))
LAG_BOUNDS_NS = tuple(
    _US * n for n in (100, 250, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000, 1_000_000)
)
CALL_BOUNDS_NS = tuple(
    _US * n for n in (100, 250, 500, 1000, 2500, 5000, 10_000, 50_000, 250_000, 1_000_000)
) + (10 * NS_PER_S,)


class Observer:
    def __init__(
        self,
        tenants: Iterable[str] = ("default",),
        directories: Iterable[str] = (),
        version: str = "",
        started_s: float = 0.0,
    ) -> None:
        self._known = {
            "tenant": tuple(tenants),
            "directory": tuple(directories),
            "version": (version,),
            "protocol": (str(PROTOCOL_MAX),),
        }
        self._started_s = started_s
        self.traces: Traces | None = None
        self.lag = Histogram(LAG_BOUNDS_NS)
        self._effects = Histogram(STEP_BOUNDS_NS)
        self._steps = {event: Histogram(STEP_BOUNDS_NS) for event in EVENTS}
        keys = [(call, outcome) for call in CALLS for outcome in OUTCOMES_IN_SHORT]
        self._calls = {key: Histogram(CALL_BOUNDS_NS) for key in keys}
        self._requests: Counter[tuple[str, str]] = Counter()
        self._refused: Counter[tuple[str, ErrorKind]] = Counter()
        self._rate_refused: Counter[tuple[str]] = Counter()
        self._denied: Counter[tuple[str]] = Counter()

    def stepped(self, event: str, core_ns: int, hands_ns: int) -> None:
        """The core took one event in, and the hands carried out what followed."""
        self._steps[event].observe(core_ns)
        self._effects.observe(hands_ns)

    @contextmanager
    def refusing(self, tenant: str) -> Iterator[None]:
        """Note a refusal that is raised inside: the core does not hear of that request."""
        try:
            yield
        except KvdError as refusal:
            self._refused[tenant, refusal.kind] += 1
            raise

    def answered(self, call: str, outcome: str, duration_ns: int) -> None:
        """A request has its final answer; `outcome` is ok, or the kind of error."""
        self._requests[call, outcome] += 1
        self._calls[call, "ok" if outcome == "ok" else "error"].observe(duration_ns)

    def rate_refused(self, tenant: str) -> None:
        """A request came beyond its tenant's rate."""
        self._rate_refused[tenant,] += 1

    def denied(self, what: str) -> None:
        """Somebody showed no credential that is good, or is no user of the tenant."""
        self._denied[what,] += 1

    def read(self) -> Reading:
        """Return what was told so far."""
        return {
            "kvd_loop_lag_seconds": {(): self.lag.read()},
            "kvd_carry_out_seconds": {(): self._effects.read()},
            "kvd_step_seconds": {(event,): h.read() for event, h in self._steps.items()},
            "kvd_request_seconds": {key: h.read() for key, h in self._calls.items()},
            "kvd_requests_total": dict(self._requests),
            "kvd_refused_requests_total": dict(self._refused),
            "kvd_rate_refused_total": dict(self._rate_refused),
            "kvd_denied_total": dict(self._denied),
            "kvd_build_info": {(self._known["version"][0], self._known["protocol"][0]): 1.0},
            "kvd_start_time_seconds": {(): self._started_s},
        }

    def expand(self, reading: Reading) -> list[Sample]:
        """Return every series of the table. It takes a while, and may be done on any thread."""
        return list(samples_of(TABLE, reading, self._known))
