"""How a soak judges: what is called a leak, what is wrong bytes, and what befalls whom."""

import json
import random
from dataclasses import replace

import numpy as np
import pytest

from bench import soak_content as content
from bench.soak_blows import LONG_LIVED, Kind, schedule
from bench.soak_leaks import (
    AGE_TO_S,
    CLIENT,
    DAEMON,
    NODE,
    SAMPLES_MIN,
    Gauge,
    Verdict,
    judge,
    judge_lives,
)
from bench.soak_sampler import unjudged
from bench.soak_trace import PASS_BLOCKS, Replay, read_traces, replay_of, trace_files
from kvd.identity import chain_digests

GAUGE = Gauge("memory", "B", least=100, part=0.1)
SECONDS = 600


def sampled(value_at) -> list[tuple[float, float]]:
    return [(float(age), float(value_at(age))) for age in range(SECONDS)]


def test_a_series_that_grows_is_a_leak():
    growing = judge(GAUGE, "daemon 1", sampled(lambda age: 1000 + age))
    assert growing.leaks
    assert (growing.early, growing.late) == (1149.5, 1549.5)


def test_growth_in_steps_is_a_leak_and_within_the_allowance_is_not():
    def steps(size):
        return judge(GAUGE, "daemon 1", sampled(lambda age: 1000 + size * (age // 150)))

    assert steps(100).leaks  # 300 in all, where 200 are allowed.
    assert not steps(60).leaks


def test_noise_and_warm_up_and_what_falls_are_no_leaks():
    chance = random.Random(7)
    noise = sampled(lambda age: 1000 + chance.uniform(-900, 900))
    warm_up = sampled(lambda age: min(10_000, 150 * age))  # Full before the second sixth.
    peaks = sampled(lambda age: 1000 + 50_000 * (age % 40 == 0))
    falling = sampled(lambda age: 5000 - age)
    for series in (noise, warm_up, peaks, falling):
        assert not judge(GAUGE, "daemon 1", series).leaks


def test_what_the_largest_request_took_at_first_may_be_taken_again():
    warmed = replace(GAUGE, warmed=True)
    back = sampled(lambda age: 2000 if age < 60 else 1000 + 2 * age)
    beyond = sampled(lambda age: 2000 if age < 60 else 1000 + 3 * age)
    assert judge(GAUGE, "client 0", back).leaks
    assert not judge(warmed, "client 0", back).leaks
    assert judge(warmed, "client 0", beyond).leaks


def test_a_leak_under_noise_is_seen():
    chance = random.Random(7)
    assert judge(GAUGE, "x", sampled(lambda age: 1000 + age + chance.uniform(-300, 300))).leaks


def test_what_may_not_move_at_all_leaks_by_one():
    fixed = Gauge("files", "", least=0)
    assert judge(fixed, "node", sampled(lambda age: 7 + (age > 300))).leaks
    assert not judge(fixed, "node", sampled(lambda age: 7)).leaks


def test_a_short_series_is_not_judged():
    assert judge(GAUGE, "x", []) is None
    assert judge(GAUGE, "x", [(10.0 * n, 1.0 * n) for n in range(SAMPLES_MIN - 1)]) is None
    assert judge(GAUGE, "x", [(1.0 * n, 1.0 * n) for n in range(SAMPLES_MIN)]) is None


def test_a_series_with_a_hole_where_it_is_compared_is_not_judged():
    assert (
        judge(GAUGE, "x", [pair for pair in sampled(lambda age: age) if pair[0] > 250]) is not None
    )
    holed = [pair for pair in sampled(lambda age: age) if not 90 < pair[0] < 210]
    assert judge(GAUGE, "x", holed) is None


def life(level: float, seconds: int = 90) -> list[tuple[float, float]]:
    return [(float(age), level + age) for age in range(seconds)]


def test_lives_are_compared_at_the_same_age_and_the_first_ones_do_not_count():
    grown = judge_lives(GAUGE, "daemons", [life(0), life(1000), life(1200), life(1400)])
    assert grown.leaks and grown.late - grown.early == 400
    assert not judge_lives(GAUGE, "daemons", [life(0), life(1000), life(9000), life(1050)]).leaks
    young = life(9000, seconds=int(AGE_TO_S) - 5)
    assert not judge_lives(GAUGE, "daemons", [life(0), life(1000), life(1000), young]).leaks
    assert judge_lives(GAUGE, "daemons", [life(0), life(1000)]) is None
    filling = [life(level) for level in (0, 400, 800, 1000, 1000, 1010, 990, 1020, 1000)]
    assert not judge_lives(GAUGE, "daemons", filling).leaks


def test_what_fills_for_longer_is_not_compared_at_that_age():
    filling = Gauge("chunks", "", least=0, life_s=AGE_TO_S + 1)
    lives = [life(level) for level in (0, 1000, 2000, 3000)]
    assert judge_lives(filling, "daemons", lives) is None
    assert judge_lives(GAUGE, "daemons", lives).leaks


def test_gauges_that_no_series_was_long_enough_for_are_named():
    tables = (("daemon 3", DAEMON), ("node", NODE), ("client 0", CLIENT))
    found = [Verdict(gauge, of, 0, 0, ()) for of, table in tables for gauge in table]
    assert unjudged(found) == []
    assert unjudged(found[1:]) == [f"daemon: {DAEMON[0].name}"]
    of_lives = Verdict(DAEMON[0], "daemons at one age", 0, 0, ())
    assert unjudged([of_lives, *found[1:]]) == [f"daemon: {DAEMON[0].name}"]


# ---- wrong bytes ----

CHAIN = chain_digests(np.arange(3 * content.CHUNK_TOKENS, dtype="<u4"), content.CHUNK_TOKENS, b"")


def test_values_follow_from_keyspace_and_digest():
    values = content.values_of(0, CHAIN)
    assert np.array_equal(values, content.values_of(0, CHAIN))
    rest = content.values_of(0, CHAIN, first=1)
    assert np.array_equal(rest, values[:, :, :, content.CHUNK_TOKENS :])
    assert content.wrong_chunks(values, content.values_of(1, CHAIN), None) == [0, 1, 2]


def test_a_single_bit_is_seen_where_all_was_read_exactly():
    values = content.values_of(0, CHAIN)
    read = values.copy()
    assert content.wrong_chunks(values, read, None) == []
    read[3, 1, 1, content.CHUNK_TOKENS, 5] ^= 1
    assert content.wrong_chunks(values, read, None) == [1]


@pytest.mark.parametrize("planes", [4, 8])
def test_other_chunks_are_seen_where_some_planes_were_read(planes):
    values = content.values_of(0, CHAIN)
    swapped = np.concatenate(
        [values[:, :, :, : content.CHUNK_TOKENS], content.values_of(0, CHAIN[32:64] * 2)], axis=3
    )
    assert content.wrong_chunks(values, values, planes) == []
    assert content.wrong_chunks(values, swapped, planes) == [2]
    nothing_finite = np.full_like(values, 0x7FC0)
    assert content.wrong_chunks(values, nothing_finite, planes) == [0, 1, 2]


# ---- load and blows ----


def write_trace(path, rows) -> None:
    lines = [
        json.dumps({"timestamp": at, "output_length": 5, "hash_ids": blocks}) for at, blocks in rows
    ]
    path.write_text("\n".join(lines) + "\n")


def test_a_replay_keeps_distances_sharing_and_traces_apart(tmp_path):
    write_trace(tmp_path / "a.jsonl", [(100, [1, 2]), (150, [1, 3]), (200, [4])])
    write_trace(tmp_path / "b.jsonl", [(0, [1, 2]), (75, []), (1000, [1, 5])])
    (tmp_path / "about.txt").write_text("no trace")
    requests = read_traces(trace_files(tmp_path))
    replay = replay_of(requests, 5, seconds=10)
    assert replay.due_s.tolist() == [0, 0, 5, 10, 10]
    assert [replay.blocks_of(n).tolist() for n in range(5)] == [[1, 2], [1, 2], [1, 3], [4], [1, 5]]
    assert replay.trace.tolist() == [0, 1, 0, 0, 1]
    assert replay.distinct_blocks() == 7
    again = replay_of(requests, 7, seconds=10)
    assert again.blocks_of(5).tolist() == [PASS_BLOCKS + 1, PASS_BLOCKS + 2]
    assert again.due_s.tolist() == [0, 0, 5, 10, 10, 10, 10]
    replay.save(tmp_path / "replay.npz")
    assert Replay.load(tmp_path / "replay.npz").blocks.tolist() == replay.blocks.tolist()


def test_no_traces(tmp_path, monkeypatch):
    monkeypatch.delenv("KVD_TRACES", raising=False)
    assert trace_files(None) == trace_files(tmp_path / "nowhere") == trace_files(tmp_path) == []
    write_trace(tmp_path / "a.jsonl", [(0, [1])])
    monkeypatch.setenv("KVD_TRACES", str(tmp_path))
    assert trace_files(None) == [tmp_path / "a.jsonl"]


@pytest.mark.parametrize("seconds", [60, 120, 1800])
def test_a_schedule_spares_the_long_lived_and_ends_daemons_early(seconds):
    blows = schedule(3, seconds, 8)
    assert blows == schedule(3, seconds, 8) != schedule(4, seconds, 8)
    assert list(blows) == sorted(blows) and 0 <= blows[0].at_s <= blows[-1].at_s <= seconds
    ends = [blow for blow in blows if blow.kind in (Kind.DAEMON_KILL, Kind.DAEMON_RESTART)]
    assert len({blow.kind for blow in ends}) == 2 and ends[-1].at_s <= seconds / 2
    assert all(blow.client >= LONG_LIVED for blow in blows if blow.kind in (Kind.KILL, Kind.LEAVE))
    stops = sum(blow.kind == Kind.STOP for blow in blows)
    assert stops == sum(blow.kind == Kind.RESUME for blow in blows) > 0
