"""A clear while many read and write: nobody gets a wrong byte, and what is cleared is gone."""

import time

from kvd.client import Client, Reason
from kvd.limits import MIB
from tests.e2e.process import DEADLINE_S, in_process
from tests.e2e.test_client_pressure import CALM, KEYSPACE, PREFIXES, Reader, Writer, prefix

SECONDS, ACTORS = 2.0, 8


def test_eight_readers_and_eight_writers_survive_it(short_directory):
    with in_process(short_directory, CALM, 4 * MIB) as tenant:
        clients = [Client(tenant, f"client {index}", DEADLINE_S) for index in range(4)]
        assert all(client.wait_connected(DEADLINE_S) for client in clients)
        spaces = [client.keyspace(KEYSPACE) for client in clients]
        until_s = time.monotonic() + SECONDS
        makers = ACTORS * [Writer] + ACTORS * [Reader]
        actors = [make(spaces[at % 4], at, until_s) for at, make in enumerate(makers)]
        for actor in actors:
            actor.start()
        cleared = turns = 0
        while time.monotonic() < until_s:
            answer = spaces[0].clear()
            assert answer.reason in (Reason.NONE, Reason.OVERLOADED), answer
            cleared, turns = cleared + answer.chunks + answer.held, turns + 1
            actors[turns % len(actors)].pause.wait(0.02)
        for actor in actors:
            actor.join(2 * DEADLINE_S)
            assert not actor.is_alive() and not actor.failure, actor.failure
        assert cleared > 100 and turns > 3
        assert sum(actor.good_chunks for actor in actors[ACTORS:]) > 8, "readers found something"
        for client in clients:
            assert client.status().counters.checksum_failures == 0
        assert spaces[0].clear().reason == Reason.NONE
        for number in range(PREFIXES):
            chain = spaces[1].chain(prefix(number)[0])
            assert spaces[1].lookup(chain).counts == (0, 0, 0)
        for client in clients:
            client.close()
