"""Numbers and pictures of `kvd-admin`: sums, rates and quantiles against counts by hand."""

from html.parser import HTMLParser

import pytest

from kvd.cli.figures import Figures, Span, figures_of, quantile
from kvd.cli.messages import as_object, human, human_time
from kvd.cli.numbers import Moment, numbers_of
from kvd.cli.pictures import histogram, stacked
from kvd.cli.report_page import page
from kvd.v1 import admin_pb2 as admin

INFINITY = float("inf")


def sample(name: str, value: float, buckets: tuple = (), **labels: str) -> admin.Sample:
    return admin.Sample(
        name=name,
        value=value,
        labels=[admin.Label(name=k, value=v) for k, v in labels.items()],
        buckets=[admin.Bucket(le=le, count=count) for le, count in buckets],
    )


def reply(at_ms: int, *samples: admin.Sample) -> Figures:
    return figures_of(admin.StatsReply(at_ms=at_ms, samples=samples))


def hits(asked: int, hit: int, tenant: str = "a") -> list[admin.Sample]:
    labels = {"tenant": tenant, "tier": "dram", "class": "anchor"}
    return [
        sample("kvd_fetch_requested_strips_total", asked, **labels),
        sample("kvd_fetch_hit_strips_total", hit, **labels),
    ]


def test_sums_by_labels() -> None:
    figures = reply(0, sample("x", 3, t="a", c="1"), sample("x", 4, t="a", c="2"),
                    sample("x", 5, t="b", c="1"))  # fmt: skip
    assert figures.total("x") == 12 and figures.total("x", t="a") == 7
    assert figures.values("x", "c") == {"1": 8, "2": 4}
    assert figures.names_of("x", "t") == ["a", "b"]
    assert figures.total("of another age") == 0 and figures.buckets("no") == []


def test_rates_are_of_the_time_between() -> None:
    span = Span(reply(1000, sample("n", 10)), reply(3000, sample("n", 16)))
    assert span.seconds == 2 and span.grown("n") == 6 and span.rate("n") == 3


def test_hit_rates_and_questions_that_were_not_asked() -> None:
    span = Span(reply(0, *hits(10, 5)), reply(1000, *hits(30, 20), *hits(0, 0, "b")))
    assert span.hit_rate("dram") == 15 / 20 and span.hit_rate("dram", tenant="a") == 15 / 20
    assert span.hit_rate("dram", tenant="b") is None and span.hit_rate("ssd") is None


@pytest.mark.parametrize(
    ("share", "found"), [(0.5, 0.1), (0.25, 0.05), (0.75, 0.15), (1.0, 0.2)]
)  # fmt: skip
def test_quantiles_lie_straight_within_a_bucket(share: float, found: float) -> None:
    assert quantile([(0.1, 50), (0.2, 100), (INFINITY, 100)], share) == pytest.approx(found)


def test_quantiles_of_nothing_and_beyond_the_last_bound() -> None:
    assert quantile([], 0.5) is None and quantile([(1.0, 0), (INFINITY, 0)], 0.5) is None
    assert quantile([(1.0, 1), (INFINITY, 100)], 0.99) == 1.0
    assert quantile([(1.0, 0), (2.0, 10), (INFINITY, 10)], 0.5) == 1.5


def test_a_histogram_is_joined_over_other_labels_and_taken_between_two_moments() -> None:
    def one(n: int, outcome: str) -> admin.Sample:
        return sample("h", 0, ((1.0, n), (INFINITY, 2 * n)), call="x", outcome=outcome)

    span = Span(reply(0, one(1, "ok")), reply(1000, one(4, "ok"), one(2, "error")))
    assert span.buckets("h", call="x") == [(1.0, 5), (INFINITY, 10)]


def test_json_has_every_field_and_numbers_stay_numbers() -> None:
    found = as_object(admin.TierInfo(name="dram", capacity=1 << 60))
    assert found["capacity"] == 1 << 60 and found["classes"] == [] and found["fault"] == ""
    bucket = as_object(admin.Bucket(le=INFINITY, count=1))
    assert bucket == {"le": None, "count": 1.0}
    assert as_object(admin.MissInfo(chunk=b"\1\xff"))["chunk"] == "01ff"


def test_words_for_sizes_and_times() -> None:
    assert [human(n) for n in (0, 1023, 1024, 3 << 20, 5 << 29)] == [
        "0 B", "1023 B", "1.0 KiB", "3.0 MiB", "2.5 GiB"
    ]  # fmt: skip
    assert [human_time(n) for n in (10, 61_000, 3_700_000, 90_000_000)] == [
        "0.0 s", "1 min 1 s", "1 h 1 min", "1 d 1 h"
    ]  # fmt: skip


# ---- the page ----


def moment() -> Moment:
    classes = [admin.ClassInfo(name=n, bytes=b) for n, b in (("anchor", 40), ("exact", 10))]
    tier = admin.TierInfo(
        name="dram", capacity=100, limit=100, classes=classes,
        tenants=[admin.TenantShare(tenant="a", classes=classes)],
    )  # fmt: skip
    status = admin.StatusReply(
        version="kvd <1>", state="ready", uptime_ms=5000, tiers=[tier], tenants=["a"],
        problems=["a & b"],
    )  # fmt: skip
    calls = sample(
        "kvd_request_seconds", 1.5, ((0.1, 3), (INFINITY, 4)), call="fetch", outcome="ok"
    )
    counted = sample("kvd_requests_total", 4, call="fetch", outcome="ok")
    sessions = admin.SessionsReply(
        sessions=[admin.SessionInfo(session=i, client="<b>", lease_bytes=i) for i in range(12)]
    )
    return Moment(status, sessions, reply(6000, *hits(8, 6), calls, counted))


def test_numbers_since_the_start() -> None:
    numbers = numbers_of(Figures(), moment())
    assert numbers["seconds"] == 5
    [tier] = numbers["tiers"]
    assert tier["hit_rate"] == 0.75 and tier["hit_rate_by_tenant"] == {"a": 0.75}
    assert tier["classes"] == {"anchor": 40, "exact": 10}
    [call] = numbers["calls"]
    assert (call["per_second"], call["errors"]) == (0.8, 0)
    assert call["histogram"] == [[0.1, 3], [None, 4]]
    assert [s["session"] for s in numbers["sessions"]] == list(range(11, 1, -1))
    assert numbers["sessions_count"] == 12 and numbers["lookup_hit_rate"] is None


class Checker(HTMLParser):
    """Fails on tags that are not closed in their order; keeps the text and what is named."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""
        self.attributes: list[tuple[str, str | None]] = []

    def handle_starttag(self, tag, attrs):
        self.attributes += attrs
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def read_page(text: str) -> Checker:
    checker = Checker()
    checker.feed(text)
    checker.close()
    assert checker.open == []
    return checker


def test_the_page_is_whole_and_needs_nothing_from_elsewhere() -> None:
    numbers = numbers_of(Figures(), moment())
    text = page(numbers, numbers, [("k", "t", "<i>", "1", "2", "3")], [])
    checker = read_page(text)
    for words in ("kvd <1>", "a & b", "dram", "75.0%", "fetch", "<i>", "50 B of 100 B"):
        assert words in checker.text, words
    assert "<b>" not in text and "<i>" not in text
    assert not {"src", "href"} & {name for name, _ in checker.attributes}
    assert "http" not in text and "<script" not in text


def test_pictures_have_the_proportions_of_their_numbers() -> None:
    text = stacked([("dram", [("anchor", 25.0), ("exact", 50.0)], 100.0, "75")], "what")
    widths = [float(part.split('"')[0]) for part in text.split(' width="')[1:]]
    whole, anchor, exact = widths
    assert anchor / whole == pytest.approx(0.25, abs=1e-3)
    assert exact / whole == pytest.approx(0.5, abs=1e-3)
    over = stacked([("dram", [("anchor", 500.0)], 100.0, "")], "what")
    assert float(over.split(' width="')[2].split('"')[0]) <= whole
    heights = [
        float(part.split('"')[0])
        for part in histogram([("1 ms", 10), ("2 ms", 5), ("more", 0)], "w").split(' height="')[1:]
    ]
    assert heights == [130.0, 65.0, 0.0]
