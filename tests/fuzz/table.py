"""The table of parsers: everything that reads bytes from outside, and what is not tried here.

`test_complete` compares it with the code, so that a new parser cannot be forgotten.
"""

from tests.fuzz import (
    data_sets,
    messages,
    on_disk,
    operators,
    recovery,
    said,
    sessions,
    sockets,
    stored,
)
from tests.fuzz.parser import Parser

PARSERS: tuple[Parser, ...] = (
    *on_disk.PARSERS, *recovery.PARSERS, *stored.PARSERS, *messages.PARSERS, *sessions.PARSERS,
    *operators.PARSERS, *sockets.PARSERS, *said.PARSERS, *data_sets.PARSERS,
)  # fmt: skip
BY_NAME = {parser.name: parser for parser in PARSERS}
assert len(BY_NAME) == len(PARSERS), "two parsers have one name"
