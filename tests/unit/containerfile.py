"""A Containerfile as data: stages, and the instructions of each in their order."""

import json
import shlex
from dataclasses import dataclass, field
from pathlib import Path

KNOWN = {"ADD", "ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "EXPOSE", "FROM", "HEALTHCHECK", "LABEL",
         "RUN", "SHELL", "STOPSIGNAL", "USER", "VOLUME", "WORKDIR"}  # fmt: skip


@dataclass
class Stage:
    image: str
    name: str
    instructions: list[tuple[str, str]] = field(default_factory=list)

    def of(self, name: str) -> list[str]:
        return [value for each, value in self.instructions if each == name]

    def last(self, name: str) -> str:
        """Return the one that counts."""
        values = self.of(name)
        assert values, f"no {name}"
        return values[-1]

    def words(self, name: str) -> list[str]:
        """Return the last of an instruction in its exec form."""
        words = json.loads(self.last(name))
        assert isinstance(words, list) and all(isinstance(word, str) for word in words), words
        return words

    def environment(self) -> dict[str, str]:
        pairs = (word.split("=", 1) for line in self.of("ENV") for word in shlex.split(line))
        return dict(pairs)


def parse(path: Path) -> list[Stage]:
    stages: list[Stage] = []
    for line in _logical_lines(path.read_text()):
        name, _, value = line.partition(" ")
        assert name in KNOWN, line
        if name == "FROM":
            words = value.split()
            assert len(words) == 1 or (len(words) == 3 and words[1] == "AS"), line
            stages.append(Stage(words[0], words[2] if len(words) == 3 else ""))
        else:
            assert stages, f"before any FROM: {line}"
            stages[-1].instructions.append((name, value.strip()))
    return stages


def _logical_lines(text: str) -> list[str]:
    lines, held = [], ""
    for line in text.splitlines():
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        held += line.strip().removesuffix("\\")
        if not line.endswith("\\"):
            lines.append(" ".join(held.split()))
            held = ""
    assert not held, "ends within an instruction"
    return lines
