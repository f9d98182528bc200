"""The goals of the figures, as data. A figure without a line here is reported without judgement."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Goal:
    """A comparison with a number, or with a number times another figure of the same run."""

    comparison: str
    number: float
    times: str | None = None

    def __str__(self) -> str:
        factor = f" x {self.times}" if self.times else ""
        return f"{self.comparison} {self.number:g}{factor}"


GOALS = {
    "ttft.draft_over_int8": Goal("<=", 0.70),
    "ttft.draft_over_int4": Goal("<=", 1.10),
    "ttft.committed_over_bf16": Goal("<=", 0.80),
    "ttft.tokens_identical": Goal("==", 1),
    "size.bits_per_element": Goal("<=", 11.6),
    "path.fetch_over_memcpy": Goal("<=", 0.05),
    "path.read_over_memcpy": Goal(">=", 0.8),
    "path.put_over_memcpy": Goal(">=", 0.5),
    "daemon.start_seconds": Goal("<=", 2),
    "ssd.fetch_over_fio": Goal(">=", 0.7),
    "ssd.put_over_fio": Goal(">=", 0.6),
    "ssd.bits_per_element": Goal("<=", 11.7),
    "ssd.load_p99_over_alone": Goal("<=", 2),
    "recover.seconds": Goal("<=", 5),
    "recover.bytes": Goal("<=", 1 << 30),
    "crash.points": Goal(">=", 200),
    "crash.wrong": Goal("==", 0),
    "crash.lost": Goal("==", 0),
    "soak.minutes": Goal(">=", 30),
    "soak.leaks": Goal("==", 0),
    "soak.wrong": Goal("==", 0),
    "soak.checksum_failures": Goal("==", 0),
    "soak.raised": Goal("==", 0),
    "lookup.hit_us_p50": Goal("<=", 500),
    "lookup.hit_over_redis": Goal("<=", 0.5),
    "codec.encode_over_memcpy": Goal(">=", 0.15),
    "codec.anchor_decode_over_memcpy": Goal(">=", 0.5),
    "codec.exact_decode_over_memcpy": Goal(">=", 0.20),
    "codec.two_core_scaling": Goal(">=", 1.7),
    "codec.checksum_over_memcpy": Goal(">=", 1.3),
    "quality.kl_planes_4": Goal("<=", 1.05, "quality.kl_plain4"),
    "quality.kl_planes_3": Goal("<=", 1, "quality.kl_plain3"),
    "sim.seeds": Goal(">=", 200),
    "sim.violations": Goal("==", 0),
    "planted.caught": Goal("==", 1, "planted.total"),
    "planted.total": Goal(">=", 15),
}


def reached(name: str, values: dict[str, float]) -> bool | None:
    """Return whether a figure's goal is reached, or None when it cannot be judged."""
    goal = GOALS.get(name)
    if goal is None or name not in values or (goal.times and goal.times not in values):
        return None
    number = goal.number * (values[goal.times] if goal.times else 1)
    match goal.comparison:
        case "<=":
            return values[name] <= number
        case ">=":
            return values[name] >= number
        case "==":
            return values[name] == number
        case other:
            raise ValueError(f"unknown comparison {other}")
