"""Learning-rate schedules and the budget of a run, as functions of numbers alone."""

import math
from dataclasses import dataclass


def warmup_factor(step: int, warmup_steps: int) -> float:
    """Return min(1, (step+1)/warmup_steps): the first of `warmup_steps` steps already moves."""
    return min(1.0, (step + 1) / warmup_steps) if warmup_steps else 1.0


def decay_factor(kind: str, progress: float) -> float:
    """Return the factor at `progress` in [0, 1]: constant 1; linear 1−p; cosine (1 + cos πp)/2."""
    progress = min(max(progress, 0.0), 1.0)
    if kind == "linear":
        return 1.0 - progress
    if kind == "cosine":
        return 0.5 * (1.0 + math.cos(math.pi * progress))
    return 1.0


@dataclass(frozen=True)
class Budget:
    """How long to train: whichever of the limits comes first. None means no such limit."""

    steps: int | None
    seconds: float | None

    @classmethod
    def of(
        cls, max_steps: int | None, max_epochs: float | None, max_minutes: float | None, batches_per_epoch: int
    ) -> "Budget":
        """Turn the three settings into a number of steps and of seconds."""
        limits = [] if max_steps is None else [max_steps]
        if max_epochs is not None:
            limits.append(math.ceil(max_epochs * batches_per_epoch))
        return cls(min(limits, default=None), None if max_minutes is None else max_minutes * 60.0)

    def spent(self, step: int, elapsed: float) -> bool:
        """Say whether `step` steps in `elapsed` seconds use up the budget."""
        return (self.steps is not None and step >= self.steps) or (self.seconds is not None and elapsed >= self.seconds)

    def progress(self, step: int, elapsed: float) -> float:
        """Return the used share of the budget, for the schedule.

        Steps decide wherever they are known: a clock would make two equal runs differ. Only a run that is bounded by
        minutes alone follows the clock.
        """
        if self.steps is not None:
            return step / max(self.steps, 1)
        return elapsed / self.seconds if self.seconds else 0.0

    def seconds_left(self, step: int, elapsed: float, steps_per_second: float) -> float | None:
        """Estimate the time that remains, or None where nothing bounds the run or no rate is known."""
        left = [] if self.seconds is None else [self.seconds - elapsed]
        if self.steps is not None and steps_per_second > 0:
            left.append((self.steps - step) / steps_per_second)
        return max(min(left), 0.0) if left else None
