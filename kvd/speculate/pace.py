"""How long an engine's steps take, as measured, and whether a further one still fits."""

from dataclasses import dataclass


@dataclass(slots=True)
class Pace:
    """Latest durations in nanoseconds, waiting for bytes not included; 0 is not known yet.

    Kept from one generation to the next, so that the first step of the next is judged too.
    """

    tail_ns: int = 0  # One forward of 64 prompt tokens.
    step_ns: int = 0  # One drafted token.
    window_ns: int = 0  # One verifying window.

    def stepping_pays(self) -> bool:
        """Return whether one-token drafts are enough cheaper than the windows they save."""
        known = self.step_ns and self.window_ns
        return not known or self.step_ns < 0.8 * self.window_ns
