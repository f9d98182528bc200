"""What is shipped to watch a daemon names metrics, labels and values that there are."""

import json
import re
from pathlib import Path

import pytest
import yaml

from kvd.observe.metrics import TABLE
from kvd.observe.samples import Kind

HERE = Path(__file__).parents[2] / "deploy/observability"
BY_NAME = {metric.name: metric for metric in TABLE}
NAME = re.compile(r"\bkvd_[a-z0-9_]+")
SELECTED = re.compile(r"\b(\w+)\{([^}]*)\}")
MATCHER = re.compile(r'(\w+)(=|!=|=~|!~)"([^"]*)"')
GROUPED = re.compile(r"by \(([^)]*)\)")
OUTSIDE = {"instance", "job", "le"}  # Prometheus's own.
SUFFIXES = ("_bucket", "_sum", "_count")


def dashboard() -> dict:
    return json.loads((HERE / "dashboard.json").read_text())


def rules() -> list[dict]:
    groups = yaml.safe_load((HERE / "alerts.yaml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def queries() -> list[str]:
    panels = [panel for panel in dashboard()["panels"] if panel["type"] != "row"]
    found = [target["expr"] for panel in panels for target in panel["targets"]]
    found += [each["query"]["query"] for each in dashboard()["templating"]["list"][1:]]
    return found + [rule["expr"] for rule in rules()]


def metric_of(name: str):
    """Return the metric of a series' name, that of a histogram with a suffix; None without one."""
    base = next((name.removesuffix(s) for s in SUFFIXES if name.endswith(s)), "")
    if base in BY_NAME and BY_NAME[base].kind == Kind.HISTOGRAM:
        return BY_NAME[base]
    found = BY_NAME.get(name)
    return None if found is None or found.kind == Kind.HISTOGRAM else found


def problems_of(query: str) -> list[str]:
    found = [f"no metric {name}" for name in NAME.findall(query) if metric_of(name) is None]
    known = [m for m in map(metric_of, NAME.findall(query)) if m is not None]
    labels = {label.name for metric in known for label in metric.labels} | OUTSIDE
    grouped = [word.strip() for group in GROUPED.findall(query) for word in group.split(",")]
    found += [f"no label {word}" for word in grouped if word not in labels]
    for name, selector in SELECTED.findall(query):
        metric = metric_of(name)
        values = {label.name: label.values for label in metric.labels} if metric else {}
        for label, operator, wanted in MATCHER.findall(selector):
            if label not in values and label not in OUTSIDE:
                found.append(f"{name} has no label {label}")
            elif values.get(label) and "$" not in wanted:
                parts = wanted.split("|") if "~" in operator else [wanted]
                found += [f"{name}: {label} is never {p}" for p in parts if p not in values[label]]
    return found


@pytest.mark.parametrize("query", queries())
def test_queries_name_what_there_is(query):
    assert not problems_of(query)
    assert query.count("(") == query.count(")") and query.count("{") == query.count("}")


@pytest.mark.parametrize(
    "query",
    [
        "rate(kvd_lookup_total[5m])",
        "kvd_loop_lag_seconds",
        "kvd_sessions_bucket",
        "sum by (reason) (kvd_sessions)",
        'kvd_dram_bytes{state="full"}',
        'kvd_sessions{tier="dram"}',
        'kvd_requests_total{outcome=~"ok|good"}',
    ],
)
def test_a_wrong_query_is_found(query):
    assert problems_of(query)


def test_rules_say_what_is_the_matter():
    named = [rule["alert"] for rule in rules()]
    assert len(named) == len(set(named)) > 8
    for rule in rules():
        assert rule["labels"]["severity"] in ("page", "ticket")
        assert rule["annotations"].keys() == {"summary", "description"}


def test_panels_are_whole():
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] >= 0 and place["x"] + place["w"] <= 24, panel["title"]
        assert panel["type"] == "row" or panel["description"].endswith(".")
    taken = [
        (place["x"], place["y"], place["x"] + place["w"], place["y"] + place["h"])
        for place in (panel["gridPos"] for panel in panels)
    ]
    for at, one in enumerate(taken):
        for other in taken[:at]:
            apart = one[0] >= other[2] or other[0] >= one[2]
            assert apart or one[1] >= other[3] or other[1] >= one[3], (one, other)


def test_the_dashboard_shows_every_kind_of_trouble_and_the_scrape_loads():
    text = json.dumps(dashboard())
    shown = {metric_of(name).name for name in NAME.findall(text)}
    assert {rule for rule in shown} >= {
        metric_of(name).name for rule in rules() for name in NAME.findall(rule["expr"])
    } - {"kvd_ssd_budget_shrinks_total"}
    scrape = yaml.safe_load((HERE / "prometheus.yaml").read_text())
    [job] = scrape["scrape_configs"]
    assert job["job_name"] == "kvd" and job["static_configs"] == [{"targets": ["127.0.0.1:9470"]}]
    assert all((HERE / name).is_file() for name in scrape["rule_files"])
