"""A clear while many read and write: nobody gets a wrong byte, and what is cleared is gone."""

import threading

from kvd.client import Client, Reason
from kvd.limits import MIB
from tests.e2e.process import DEADLINE_S, in_process
from tests.e2e.test_client_pressure import (
    CALM,
    KEYSPACE,
    PREFIXES,
    Reader,
    Writer,
    acting,
    good_of,
    prefix,
)

SECONDS, ACTORS = 2.0, 8


def test_eight_readers_and_eight_writers_survive_it(short_directory):
    with in_process(short_directory, CALM, 4 * MIB) as tenant:
        clients = [Client(tenant, f"client {index}", DEADLINE_S) for index in range(4)]
        assert all(client.wait_connected(DEADLINE_S) for client in clients)
        spaces = [client.keyspace(KEYSPACE) for client in clients]
        over = threading.Event()
        writers = [Writer(spaces[at % 4], at, over) for at in range(ACTORS)]
        readers = [Reader(spaces[at % 4], ACTORS + at, over) for at in range(ACTORS)]
        cleared = turns = 0

        def enough() -> bool:
            return cleared > 100 and turns > 3 and good_of(readers) > 8

        for _ in acting(writers + readers, over, SECONDS, enough):
            answer = spaces[0].clear()
            assert answer.reason in (Reason.NONE, Reason.OVERLOADED), answer
            cleared, turns = cleared + answer.chunks + answer.held, turns + 1
        for client in clients:
            assert client.status().counters.checksum_failures == 0
        assert spaces[0].clear().reason == Reason.NONE
        for number in range(PREFIXES):
            chain = spaces[1].chain(prefix(number)[0])
            assert spaces[1].lookup(chain).counts == (0, 0, 0)
        for client in clients:
            client.close()
