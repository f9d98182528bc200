"""Reads what the kernel says of a host, below a root that tests replace. Changes nothing."""

import os
from dataclasses import dataclass
from pathlib import Path

# What `ulimit` calls unlimited, and more than any host has.
UNLIMITED = (1 << 63) - 1


class Unseen(Exception):
    """Something could not be looked at: its path, and why."""


@dataclass(frozen=True, slots=True)
class Host:
    """`process`: whose limits, mounts and control groups count, as a name under /proc."""

    root: Path = Path("/")
    process: str = "self"

    def path(self, name: str | Path) -> Path:
        """Return where a path of the host lies, `name` with or without its leading slash."""
        return self.root / str(name).lstrip("/")

    def text(self, name: str | Path) -> str:
        """Return a file's text; raise Unseen."""
        try:
            return self.path(name).read_text(errors="replace")
        except OSError as error:
            raise Unseen(f"/{str(name).lstrip('/')}: {error.strerror}") from None

    def number(self, name: str | Path) -> int:
        """Return the one number in a file; raise Unseen."""
        text = self.text(name).strip()
        if not text.lstrip("-").isdigit():
            raise Unseen(f"/{str(name).lstrip('/')}: {text[:40]!r} is no number")
        return int(text)

    def names(self, name: str | Path) -> list[str]:
        """Return the names in a directory, sorted; raise Unseen."""
        try:
            return sorted(os.listdir(self.path(name)))
        except OSError as error:
            raise Unseen(f"/{str(name).lstrip('/')}: {error.strerror}") from None

    def has(self, name: str | Path) -> bool:
        return self.path(name).exists()

    def of_process(self, name: str) -> str:
        """Return the text of a file of the process that counts; raise Unseen."""
        return self.text(f"proc/{self.process}/{name}")

    def fields(self, name: str) -> dict[str, int]:
        """Return the numbers of a file like /proc/meminfo, sizes in bytes; raise Unseen."""
        found = {}
        for line in self.text(name).splitlines():
            key, _, rest = line.partition(":")
            words = rest.split()
            if words and words[0].isdigit():
                found[key.split()[-1]] = int(words[0]) * (1024 if words[-1] == "kB" else 1)
        return found

    def limit(self, title: str) -> tuple[int, int]:
        """Return the soft and the hard limit of the process, titled as in its `limits`."""
        for line in self.of_process("limits").splitlines():
            if line.startswith(title):
                soft, hard = line[len(title) :].split()[:2]
                return _limit_of(soft), _limit_of(hard)
        raise Unseen(f"/proc/{self.process}/limits: no line {title!r}")


def _limit_of(word: str) -> int:
    return int(word) if word.isdigit() else UNLIMITED


def field(fields: dict[str, int], key: str, name: str) -> int:
    """Return one field of a file that was read; raise Unseen."""
    if key not in fields:
        raise Unseen(f"/{name}: no line {key}")
    return fields[key]
