"""What all tests of the layer together have tried, for the line at their end."""

from collections import Counter
from dataclasses import dataclass, field

from tests.crash.model import Model
from tests.crash.seam import Kill


@dataclass(slots=True)
class Tally:
    """`points`: each different end that a daemon has met; `tried` and `missed` by site and when."""

    points: set[tuple] = field(default_factory=set)
    tried: Counter = field(default_factory=Counter)
    missed: Counter = field(default_factory=Counter)
    compared: int = 0
    wrong: int = 0
    lost: int = 0

    def met(self, kill: Kill | None, where: str) -> None:
        """Count a boundary, or an end at any moment."""
        self.points.add((kill.site, kill.when, kill.count, kill.power) if kill else (where,))

    def add(self, model: Model) -> None:
        self.compared += model.chunks_compared
        self.wrong += len(model.wrong)
        self.lost += len(model.lost)

    def lines(self) -> list[str]:
        if not self.points:
            return []
        missed = ", ".join(f"{name} {count}" for name, count in sorted(self.missed.items()))
        return [
            f"crash: {len(self.points)} distinct points, {self.compared} chunks compared, "
            f"{self.wrong} wrong, {self.lost} lost",
            f"crash: not met in its life: {missed or 'none'}",
        ]
