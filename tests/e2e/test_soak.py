"""A soak of some seconds: a client and a daemon are killed, and nothing is left at the end."""

import json
from pathlib import Path

from bench.soak_blows import Blow, Kind
from bench.soak_run import Setting, soaking
from bench.soak_trace import read_traces, replay_of
from kvd.limits import MIB

SECONDS, REQUESTS = 6.0, 60
SLAB_BYTES = 4 * MIB


def conversations(path: Path) -> Path:
    """Write a trace of a few talks that go on from each other, and share what they begin with."""
    talks: list[list[int]] = [[0, 100 * number] for number in range(1, 6)]
    lines = []
    for turn in range(REQUESTS):
        talk = talks[turn % len(talks)]
        talk.append(talk[-1] + 1)
        row = {"timestamp": 40 * turn, "output_length": 30, "hash_ids": list(talk)}
        lines.append(json.dumps(row))
    path.write_text("\n".join(lines))
    return path


def test_a_short_soak_loses_nothing_and_holds_nothing(tmp_path):
    replay = replay_of(read_traces([conversations(tmp_path / "talks.jsonl")]), REQUESTS, SECONDS)
    blows = (
        Blow(2.0, Kind.KILL, 1),
        Blow(2.5, Kind.STOP, 0),
        Blow(3.0, Kind.RESUME, 0),
        Blow(4.0, Kind.DAEMON_KILL),
    )
    setting = Setting(
        tmp_path, replay, blows, SECONDS, 2, 4 * SLAB_BYTES, 24 * MIB, SLAB_BYTES, sample_s=0.5
    )
    seconds = []
    with soaking(setting) as soak:
        outcome = soak.run(seconds.append)
    tally = outcome.tally
    assert outcome.problems == [] and tally.wrong == [] and tally.raised == []
    assert outcome.corrupt == 0 and outcome.done == dict.fromkeys((b.kind for b in blows), 1)
    assert seconds == sorted(seconds) and outcome.seconds >= SECONDS
    assert tally.counts["good"] > tally.counts["fetched"] > 0 < tally.counts["stored"]
    assert len(outcome.stats) == 2 and len(soak.sampler.series["daemon", 1]["threads"]) > 2


def test_a_client_that_ends_by_itself_is_seen(tmp_path):
    """A replay that no client can read ends each of them with an error, as a call that raises."""
    replay = replay_of(read_traces([conversations(tmp_path / "talks.jsonl")]), 4, 1.0)
    setting = Setting(tmp_path, replay, (), 1.0, 1, 2 * SLAB_BYTES, 24 * MIB, SLAB_BYTES)
    with soaking(setting) as soak:
        soak.fleet.replay.write_text("no replay")
        outcome = soak.run(lambda _: None)
    assert "client 0 ended with 1" in outcome.tally.raised[0] and outcome.tally.requests == 0
