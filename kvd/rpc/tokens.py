"""The tokens of one tenant, in a file: one a line, read again when it has changed.

Keeps digests only. What is in a file that cannot be used admits nobody.
"""

import logging
import os
import stat
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

from kvd.clock import NS_PER_S
from kvd.errors import ErrorKind, KvdError
from kvd.limits import KIB

TOKEN_CHARACTERS_MIN = 32
TOKEN_CHARACTERS_MAX = 512
TOKENS_MAX = 64
FILE_BYTES_MAX = 64 * KIB
LOOK_EVERY_NS = NS_PER_S  # However many ask: what is denied costs no look at the disk.

_Stamp = tuple[int, ...]

_log = logging.getLogger("kvd.tokens")


def digest_of(token: str) -> bytes:
    """Return what tokens are compared by: it is of one length, whatever came."""
    return sha256(token.encode()).digest()


class TokenFile:
    def __init__(self, path: Path, now_ns: Callable[[], int]) -> None:
        """Read the file; raise KvdError for one that cannot be used."""
        self._path, self._now_ns = path, now_ns
        self._stamp, self._digests = _read(path)
        self._looked_ns = now_ns()
        self._complaint = ""

    def digests(self) -> tuple[bytes, ...]:
        """Return the digests of the tokens that are good now."""
        now_ns = self._now_ns()
        if now_ns - self._looked_ns >= LOOK_EVERY_NS:
            self._looked_ns = now_ns
            self._look()
        return self._digests

    def _look(self) -> None:
        try:
            if not self._complaint and _stamp_of(os.stat(self._path)) == self._stamp:
                return
            self._stamp, self._digests = _read(self._path)
        except (KvdError, OSError) as error:
            self._complain(error.message if isinstance(error, KvdError) else str(error))
            return
        self._complaint = ""
        _log.info("%s was read again: %d tokens", self._path, len(self._digests))

    def _complain(self, what: str) -> None:
        self._digests = ()
        if what != self._complaint:
            _log.error("no token of %s is good: %s", self._path, what)
        self._complaint = what


def check_private(path: Path, found: os.stat_result) -> None:
    """Raise INVALID for a file that others may read, or that others than its owner may write."""
    if not stat.S_ISREG(found.st_mode):
        raise KvdError(ErrorKind.INVALID, f"{path} is not a file")
    if found.st_mode & 0o027:
        mode = stat.S_IMODE(found.st_mode)
        raise KvdError(
            ErrorKind.INVALID,
            f"{path} has mode {mode:04o}; nobody but its owner may write it, and others may not "
            f"read it: chmod 0600 {path}",
        )


def _read(path: Path) -> tuple[_Stamp, tuple[bytes, ...]]:
    try:
        with open(path, "rb") as file:
            found = os.fstat(file.fileno())
            check_private(path, found)
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise KvdError(ErrorKind.INVALID, f"token_file {path}: {error.strerror}") from None
    if len(data) > FILE_BYTES_MAX:
        raise KvdError(ErrorKind.INVALID, f"{path} has more than {FILE_BYTES_MAX} bytes")
    return _stamp_of(found), _digests_in(path, data)


def _digests_in(path: Path, data: bytes) -> tuple[bytes, ...]:
    tokens: list[str] = []
    for number, line in enumerate(data.decode("utf-8", "replace").splitlines(), 1):
        token = line.strip()
        if not token or token.startswith("#"):
            continue
        allowed = TOKEN_CHARACTERS_MIN <= len(token) <= TOKEN_CHARACTERS_MAX
        # The text of a token is told nobody, not even that of a bad one.
        if not allowed or not all("!" <= character <= "~" for character in token):
            raise KvdError(
                ErrorKind.INVALID,
                f"{path} line {number} has {len(token)} characters; a token has "
                f"{TOKEN_CHARACTERS_MIN} to {TOKEN_CHARACTERS_MAX}, of printable ASCII without "
                "spaces: openssl rand -hex 32",
            )
        tokens.append(token)
    if not 1 <= len(tokens) <= TOKENS_MAX:
        raise KvdError(
            ErrorKind.INVALID,
            f"{path} has {len(tokens)} tokens, allowed are 1 to {TOKENS_MAX}: "
            f"openssl rand -hex 32 >> {path}",
        )
    return tuple(digest_of(token) for token in tokens)


def _stamp_of(found: os.stat_result) -> _Stamp:
    return found.st_dev, found.st_ino, found.st_mode, found.st_size, found.st_mtime_ns
