"""Whether the simulated world finds a bug that is planted in the core."""

import re

from kvd.testing import run


def assert_found(pattern: str, seeds: int, *, tiered: bool) -> None:
    """Run seeds until one fails, which it must do in the way the pattern says."""
    for seed in range(seeds):
        try:
            run(seed, tiered=tiered)
        except AssertionError as error:
            assert re.search(pattern, str(error)), f"seed {seed}: {error!r}"
            return
    raise AssertionError(f"not found within {seeds} seeds")
