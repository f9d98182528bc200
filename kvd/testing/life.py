"""What everybody in the simulated world does, and when: chance and nothing else decides.

Time passes and jumps, clients come, put, fetch, clear and die.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from kvd.clock import NS_PER_MS
from kvd.core.events import Delivery, Ticked
from kvd.testing.clearing import clear
from kvd.testing.client import Client
from kvd.testing.putting import Put
from kvd.testing.reading import Fetch
from kvd.testing.situations import TENANTS

if TYPE_CHECKING:
    from kvd.testing.world import World

CLIENTS = 3  # Open at a time, more or less.


def tick(world: "World") -> None:
    """Tell the time, again and again; now and then much of it passed unseen."""
    if world.rng.random() < 0.02 and not world.stopped:
        world.now_ns += world.rng.choice((900, 3000, 30_000)) * NS_PER_MS
    world.tell(Ticked())
    world.wishes.check_deadlines(world.now_ns)
    seldom = 4 if world.stopped else 1  # At the end nothing is left to see but that it is quiet.
    world.after(seldom * world.limits.tick_ns, lambda: tick(world))


def populate(world: "World") -> None:
    """Have clients come, again and again."""
    if world.stopped:
        return
    if sum(client.open for client in world.clients.values()) < CLIENTS:
        act(world.join(world.rng.choice(TENANTS)))
    world.after(world.rng.choice((20, 400)) * NS_PER_MS, lambda: populate(world))


def act(client: Client) -> None:
    """Do one thing, and see to the next."""
    if not client.open or client.world.stopped:
        return
    rng = client.world.rng
    if client.handles:
        rng.choices(tuple(DEEDS), tuple(DEEDS.values()))[0](client)
    client.pacer.after(rng.choice((2, 10, 50, 250)) * NS_PER_MS, lambda: act(client))


def _put(client: Client) -> None:
    Put(client)


def _fetch_mapped(client: Client) -> None:
    Fetch(client, Delivery.MAP).start()


def _fetch_bytes(client: Client) -> None:
    Fetch(client, Delivery.BYTES).start()


def _fetch_many(client: Client) -> None:
    for _ in range(6):
        Fetch(client, Delivery.BYTES).start()


def _look_up(client: Client) -> None:
    Fetch(client, client.world.rng.choice(tuple(Delivery))).look_up()


def _prefetch(client: Client) -> None:
    Fetch(client, client.world.rng.choice(tuple(Delivery))).prefetch()


def _clear(client: Client) -> None:
    clear(client, client.world.rng.choice(sorted(client.handles)))


def _register_more(client: Client) -> None:
    client.register(client.world.rng.randrange(len(client.world.keyspaces)))


def _detach_one(client: Client) -> None:
    """Give a slab back unasked, perhaps with a put under way in it."""
    if client.writable:
        client.detach(client.world.rng.choice(sorted(client.writable)))


def _stop(client: Client) -> None:
    client.pacer.stop()


DEEDS: dict[Callable[[Client], None], float] = {
    _put: 34,
    _fetch_mapped: 24,
    _fetch_bytes: 14,
    _fetch_many: 3,
    _look_up: 10,
    _prefetch: 5,
    _clear: 0.4,
    _register_more: 1,
    _detach_one: 1,
    _stop: 1,
    Client.end_session: 1,
    Client.die: 1,
}
