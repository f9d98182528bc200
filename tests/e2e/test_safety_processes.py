"""Processes that fork, stop and run out of descriptors, with a client open."""

import signal
from dataclasses import replace

import numpy as np
import pytest

from kvd.clock import NS_PER_MS
from kvd.config import ServeConfig, TenantSettings
from kvd.limits import MIB, Limits
from tests.e2e import client_story as story
from tests.e2e.process import DEADLINE_S, playing, running, served
from tests.e2e.ssd_node import until

STORY = "tests.e2e.safety_story"
HASTY = replace(
    Limits(),
    reservation_ttl_ns=300 * NS_PER_MS,
    lease_ttl_ns=300 * NS_PER_MS,
    quarantine_ns=100 * NS_PER_MS,
    tick_ns=20 * NS_PER_MS,
    slab_bytes=4 * MIB,
)


@pytest.fixture(scope="module")
def daemon(tmp_path_factory):
    directory = tmp_path_factory.mktemp("p")
    file = directory / "kvd.toml"
    file.write_text('[limits]\nslab_bytes = "4MiB"\n')  # More slabs than there are writers.
    with running(directory / "run", "--config", str(file)) as made:
        yield made


def played(name: str, directory) -> str:
    with playing(STORY, name, directory) as process:
        out, errors = process.communicate(timeout=2 * DEADLINE_S)
        assert (process.returncode, errors) == (0, ""), errors
        return out


def test_a_process_that_had_too_few_descriptors_maps_what_it_missed_later(daemon):
    with story.connected(daemon.tenant) as client:
        story.store(client)
        said = played("lacks_descriptors_for_a_while", daemon.tenant).splitlines()
    assert said[:3] == ["UNAVAILABLE"] * 3
    assert said[3:] == ["UNAVAILABLE while something is held", "reads True lost 0"]


def test_children_forked_in_the_middle_of_everything_harm_nobody(daemon):
    assert played("forks_while_it_works", daemon.tenant) == "connects 1 lost 0 0\n"


def test_a_child_outlives_its_parent_with_a_session_of_its_own(daemon):
    with playing(STORY, "dies_before_its_child", daemon.tenant) as process:
        assert process.stdout.readline() == "reads True\n", process.stderr.read()


def test_a_writer_stopped_beyond_its_reservation_writes_into_nobodys_strips(short_directory):
    """Its places were set aside meanwhile, and its session goes on when it does."""
    config = ServeConfig(
        short_directory, (TenantSettings("default"),), 16 * MIB, frozenset({0}), HASTY
    )
    with served(config) as here, story.connected(short_directory / "default") as client:
        space = client.keyspace(story.KEYSPACE)

        def lost() -> int:
            counted = here.daemon.read_metrics()["kvd_reservations_ended_total"]
            return sum(count for (_, how), count in counted.items() if how == "lost")

        def chain(number: int) -> bytes:
            return space.chain(np.arange(story.TOKENS) + 10_000 * number)

        with playing(STORY, "stops_in_its_put", short_directory / "default") as process:
            assert process.stdout.readline() == "laid\n"
            until(lambda: lost() == 1, "its reservation is lost")
            assert space.lookup(story.chain_of(client)).counts == (0, 0, 0)
            for number in range(1, 60):
                assert space.put(chain(number), story.tensors(number)).stored == story.CHUNKS
            process.send_signal(signal.SIGCONT)
            line = process.stdout.readline()
            assert line == f"stored 0 had 0 refused {story.CHUNKS} LOST\n", line
            assert process.stdout.readline() == "reads True\n"
        good = 0
        for number in range(1, 60):
            targets = story.blanks()
            with space.fetch(chain(number)) as fetch:
                if fetch.counts[2] == story.CHUNKS:
                    assert fetch.decode(story.ALL, story.EXACT, targets) == story.CHUNKS
                    assert story.equal(targets, story.tensors(number))
                    good += 1
        assert good > 10 and client.status().counters.checksum_failures == 0
