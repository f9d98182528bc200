"""The way from any thread onto the loop's: for what arena, disk and catalog report."""

import asyncio
from collections.abc import Callable


class Crossing:
    """Once closed, nobody waits for what comes: it is dropped."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop, self._closed = loop, False

    def call(self, action: Callable[..., None], *arguments: object) -> None:
        """Have `action` called on the loop's thread, in the order of calls; from any thread."""
        try:
            self._loop.call_soon_threadsafe(self._act, action, arguments)
        except RuntimeError:
            # A thread that hung may come back when the loop is long gone.
            if not self._loop.is_closed():
                raise

    def close(self) -> None:
        """Called on the loop's thread."""
        self._closed = True

    def _act(self, action: Callable[..., None], arguments: tuple[object, ...]) -> None:
        if not self._closed:
            action(*arguments)
