"""Says in the log what the ssd tier cannot do, and that it can again: each once."""

import logging
from collections.abc import Sequence
from pathlib import Path

from kvd.core.disk_events import Committed, DiskEvent
from kvd.core.ssd import Ssd
from kvd.errors import Fault

_log = logging.getLogger("kvd.ssd")


class Health:
    def __init__(self, directories: Sequence[Path], catalog: Path) -> None:
        self._what = [*(f"data directory {path}" for path in directories), f"catalog {catalog}"]
        self._paths = [*directories, catalog]
        self._ill = [False] * len(self._what)

    def look(self, ssd: Ssd, event: DiskEvent | None) -> None:
        """Compare what the core knows, after an event, with what was said."""
        for place, directory in enumerate(ssd.directories):
            self._compare(place, directory.fault)
        fault = ssd.catalog_fault or ssd.map_full
        # Of a full one the core forgets the fault to try it again: that says nothing yet.
        if fault is not None or (isinstance(event, Committed) and event.fault is None):
            self._compare(len(ssd.directories), fault)

    def _compare(self, place: int, fault: Fault | None) -> None:
        if (fault is not None) != self._ill[place]:
            self._ill[place] = fault is not None
            self._say(place, fault)

    def _say(self, place: int, fault: Fault | None) -> None:
        what, about = self._what[place], {"directory": self._paths[place]}
        if fault is None:
            _log.info("%s works again", what, extra=about)
        else:
            told = "%s is degraded, nothing is written to it: %s"
            _log.warning(told, what, fault.message, extra=about)
