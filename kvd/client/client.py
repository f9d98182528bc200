"""The SDK's front: one client of one daemon, and the keyspaces opened on it."""

import weakref
from dataclasses import fields
from pathlib import Path

from kvd.client.held import HeldLeases
from kvd.client.link import Link
from kvd.client.mapping import Pool
from kvd.client.messages import lane_message, said
from kvd.client.outcomes import Status
from kvd.client.scope import Scope, check_text, invalid
from kvd.client.space import Space
from kvd.client.thread import watch_forks
from kvd.codec import PROFILE_DEFAULT, PROFILES, CodecProfile
from kvd.identity import Keyspace
from kvd.shape import cell_grid, validate_shape
from kvd.types import Lane

CHUNK_TOKENS_MAX = 4096
LANE_WHOLE = Lane()  # The first kv group, unsharded.


class Client:
    """A connection to the daemon of a tenant's directory, kept up in the background.

    Making one never fails for a daemon that is away: until it is there, every answer is a miss.
    """

    def __init__(self, directory: str | Path, name: str = "", deadline_s: float = 10.0) -> None:
        """`deadline_s` bounds every verb that is given no other."""
        if not deadline_s > 0:
            raise invalid(f"deadline_s is {deadline_s}, it must be above 0")
        check_text(name, "name")
        self._deadline_s = deadline_s
        self._pool = Pool()
        watch_forks(self._pool)
        self._held = HeldLeases()
        watch_forks(self._held)
        self._numbers: dict[Keyspace, int] = {}
        self._link = Link(Path(directory), name or "kvd.client")
        self._closing = weakref.finalize(self, _close, self._link)
        self._closing.atexit = False  # The I/O thread's own end is enough then.

    def keyspace(
        self, keyspace: Keyspace, lane: Lane = LANE_WHOLE, profile: CodecProfile = PROFILE_DEFAULT
    ) -> Space:
        """Return the verbs of one lane of a keyspace; raise INVALID for a shape no daemon takes.

        So is a codec profile that is not the registered one of its id: readers decode by the id.
        The daemon hears of it with the first verb, and again after a reconnect.
        """
        validate_shape(keyspace.shape)
        for field in fields(keyspace):
            if field.type in (str, "str"):
                check_text(getattr(keyspace, field.name), f"keyspace.{field.name}")
        said(lane_message, lane)
        if not 1 <= keyspace.chunk_tokens <= CHUNK_TOKENS_MAX:
            tokens = keyspace.chunk_tokens
            raise invalid(f"chunk_tokens is {tokens}, allowed are 1 to {CHUNK_TOKENS_MAX}")
        if PROFILES.get(profile.id) != profile:
            known = ", ".join(map(str, PROFILES))
            raise invalid(f"codec profile {profile.id} is not as registered; there are {known}")
        grid = cell_grid(keyspace.shape, lane)
        number = self._numbers.setdefault(keyspace, len(self._numbers))
        scope = Scope(
            self._link, self._pool, self._held, keyspace, number, lane, grid, profile,
            self._deadline_s,
        )  # fmt: skip
        return Space(scope)

    def wait_connected(self, timeout_s: float) -> bool:
        """Wait for the daemon; return whether it is connected."""
        link = self._link
        return link.thread().call(link.wait_connected(timeout_s))

    def status(self) -> Status:
        """Return whether it is connected, why not, and what has been counted. Never blocks."""
        link = self._link
        link.thread()
        connected = link.connected
        reason = "" if connected else link.reason or "disconnected"
        session = link.current
        draining = connected and session is not None and session.draining
        slab_failure = session.slabs.failure if session is not None else ""
        return Status(
            connected, reason, link.epoch, link.daemon, draining, slab_failure, link.counters
        )

    @property
    def directory(self) -> Path:
        return self._link.directory

    @property
    def token(self) -> str:
        """The bearer token for gRPC calls of the current session; empty while not connected."""
        session = self._link.current
        return session.welcome.token if session is not None else ""

    def close(self) -> None:
        """Leave the daemon; later verbs are misses."""
        if self._closing.detach() is not None:
            self._link.thread().call(self._link.close())

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _close(link: Link) -> None:
    link.post(link.start_closing)
