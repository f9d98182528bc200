"""What all lives of a run together have met, for the line at its end."""

from collections import Counter
from dataclasses import dataclass, field

from tests.crash.model import Model
from tests.crash.seam import Kill
from tests.crash.sites import Point


@dataclass(slots=True)
class Tally:
    """`points`: where a daemon ended, as it wrote down itself; `cuts`: those where power failed.

    `tried` and `missed` are by site and when. `unsound`: what `kvd check` found afterwards.
    """

    points: set[Point] = field(default_factory=set)
    cuts: set[Point] = field(default_factory=set)
    moments: int = 0
    tried: Counter[tuple[str, str]] = field(default_factory=Counter)
    missed: Counter[str] = field(default_factory=Counter)
    steps: int = 0
    compared: int = 0
    wrong: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    unsound: list[str] = field(default_factory=list)

    @property
    def faults(self) -> list[str]:
        return [*self.wrong, *self.lost, *self.unsound]

    def met(self, kill: Kill | None, ended_at: Point | None) -> None:
        """Count the end of a life: at the point it was to end at, or at any moment."""
        if kill is None:
            self.moments += 1
        elif ended_at is None:
            self.missed[f"{kill.site} {kill.when}"] += 1
        else:
            assert ended_at == kill.point, (ended_at, kill)
            self.points.add(ended_at)
            if kill.power:
                self.cuts.add(ended_at)

    def add(self, model: Model, steps: int = 0) -> None:
        """Count what was done to one set of directories, and found in it."""
        self.steps += steps
        self.compared += model.chunks_compared
        self.wrong += model.wrong
        self.lost += model.lost

    def lines(self) -> list[str]:
        if not self.points:
            return []
        missed = ", ".join(f"{name} {count}" for name, count in sorted(self.missed.items()))
        return [
            f"crash: {len(self.points)} distinct points (site, when, occurrence), {len(self.cuts)} "
            f"of them with a power cut, {self.moments} ends at any moment; {self.steps} steps, "
            f"{self.compared} chunks compared, {len(self.wrong)} wrong, {len(self.lost)} lost",
            f"crash: not met in its life: {missed or 'none'}",
        ]
