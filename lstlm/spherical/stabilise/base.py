"""What every stabiliser has: a range for the singular values of U, a period, and a tally."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from lstlm.errors import ConfigError
from lstlm.protocol.saved import insist

if TYPE_CHECKING:
    from lstlm.spherical.shrink import Shrink
    from lstlm.spherical.state import FactoredState

PAPER_PERIOD = 100
READ_EVERY = 16  # updates: how often the host looks at a number of another device than the CPU


class Tally:
    """Numbers that change with every update: kept apart, because a module's own attributes are slow to set."""

    def __init__(self, countdown: int) -> None:
        self.countdown = countdown
        self.sigma_low: float | Tensor = 1.0  # bounds on the singular values of U, which `lazy` keeps
        self.sigma_high: float | Tensor = 1.0
        self.milliseconds = 0.0  # that the last call took


class Stabiliser(nn.Module):
    """Looks at U every `every` updates and brings singular values outside [low, high] back to 1."""

    usual_range = (1e-3, 1e2)  # the paper's

    def __init__(self, d: int, low_high: tuple[float, float] | None = None, every: int | None = None) -> None:
        """Watch U (d,d); a range or a period that is None is the usual one."""
        super().__init__()
        (low, high), every = low_high or self.usual_range, PAPER_PERIOD if every is None else every
        if not (0 < low < 1 < high < math.inf):
            raise ConfigError(f"stabilise_range [{low}, {high}]: needs 0 < low < 1 < high")
        if every < 1:
            raise ConfigError(f"stabilise_every {every}: must be at least 1")
        self.low, self.high, self.every = low, high, every
        self.total = 0  # singular values repaired so far
        self.tally = Tally(every)

    def get_extra_state(self) -> Tensor:
        """The counters and bounds: a resumed run must look at the same steps."""
        tally = self.tally
        return torch.tensor([self.total, tally.countdown, tally.sigma_low, tally.sigma_high], dtype=torch.float64)

    def set_extra_state(self, state: Tensor) -> None:
        self.total, self.tally.countdown = (int(counter) for counter in state[:2])
        low, high = self.tally.sigma_low, self.tally.sigma_high = state[2:].tolist()
        insist(self.total >= 0 and 0 <= self.tally.countdown <= self.every, "counters of the stabiliser")
        insist(0 < low <= high < math.inf, f"singular values between {low:g} and {high:g}")

    def after_update(self, state: FactoredState, shrink: Shrink) -> None:
        """Called after each update with the bounds on what it did to U."""
        self.tally.countdown -= 1
        if self.tally.countdown <= 0:
            self.tally.countdown = self.every
            self.total += self.repair(state)

    def repair(self, state: FactoredState) -> int:
        """Bring U back into range now; return how many singular values were repaired."""
        return 0
