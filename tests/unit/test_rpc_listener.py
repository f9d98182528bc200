"""What accepts does not spin, whatever its socket says."""

import asyncio
import errno

import pytest

from kvd.rpc import listener


class Listening:
    """In place of the loop: a socket that fails as it is told, and then has one connection."""

    def __init__(self, codes: list[int]) -> None:
        self.codes = codes

    async def sock_accept(self, listening: object) -> tuple[object, object]:
        if self.codes:
            raise OSError(self.codes.pop(0), "no")
        return self, None


@pytest.mark.parametrize(
    ("code", "waits"),
    [(errno.EINVAL, True), (errno.EBADF, True), (errno.EMFILE, True), (errno.ECONNABORTED, False)],
)
def test_a_socket_that_cannot_accept_is_asked_again_after_a_while(monkeypatch, caplog, code, waits):
    loop, pauses = Listening([code] * 3), []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    async def take(connection: object) -> None:
        assert connection is loop
        raise asyncio.CancelledError

    monkeypatch.setattr(listener.asyncio, "get_running_loop", lambda: loop)
    monkeypatch.setattr(listener.asyncio, "sleep", pause)
    with pytest.raises(asyncio.CancelledError):
        listener.accept_forever(None, "here", take).send(None)
    assert pauses == [listener.RETRY_SECONDS] * 3 * waits
    assert len([r for r in caplog.records if "waits" in r.message]) == waits, "it is said once"
