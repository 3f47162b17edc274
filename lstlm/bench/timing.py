"""Measuring: timed steps of several methods in turn, a plain product beside them, and the memory there is."""

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter

import numpy as np
import torch

from lstlm.training.log.console import clock_text

ROUNDS = 5
FEWEST_STEPS = 3
WARM_UP_SHARE = 0.15  # of a method's seconds
_FLOOR_PRODUCTS = 40  # timed products a round


Steps = Callable[[], tuple[float, float]]
"""Takes a step; returns its milliseconds, and how many of them went into stabilisation."""


@dataclass(frozen=True)
class Effort:
    """How long to measure one method: about `seconds`, at most `steps` steps, in `rounds` rounds or more.

    `now` is the clock of the steps: that on the wall, or `process_time` where others use the machine too.
    """

    seconds: float = 4.0
    steps: int = 1000
    rounds: int = ROUNDS
    now: Callable[[], float] = perf_counter

    @property
    def turns(self) -> int:
        """The rounds to take: none longer than a second, since a machine's pace changes within seconds."""
        return max(self.rounds, math.ceil(self.seconds))


@dataclass
class Timed:
    """A method on the clock: its steps so far."""

    step: Steps
    period: int = 1
    milliseconds: list[float] = field(default_factory=list)
    stabilise: list[float] = field(default_factory=list)
    warm_up_steps: int = 0
    estimate_ms: float = 0.0

    def warm_up(self, effort: Effort) -> None:
        """Take untimed steps for a while, at least one, and estimate what a step takes."""
        taken: list[float] = []
        began = effort.now()
        while not taken or (effort.now() - began < WARM_UP_SHARE * effort.seconds and len(taken) < effort.steps):
            taken.append(self.step()[0])
        # The last ones: the first pay for memory that is touched for the first time.
        self.estimate_ms = statistics.median(taken[len(taken) // 2 :])
        self.warm_up_steps = len(taken)

    def burst(self, effort: Effort) -> None:
        """Take this round's share of the steps, in whole periods; none where the time is used up."""
        affordable = 1e3 * effort.seconds / max(self.estimate_ms, 1e-6)
        wanted = min(max(affordable, FEWEST_STEPS), effort.steps)
        share = max(1, math.ceil(wanted / effort.turns / self.period)) * self.period
        for _ in range(0 if self._enough(effort, wanted) else share):
            spent, stabilise = self.step()
            self.milliseconds.append(spent)
            self.stabilise.append(stabilise)

    def _enough(self, effort: Effort, wanted: float) -> bool:
        """Say whether to stop: time used up twice over, or, for a stabiliser that sweeps, enough periods seen."""
        taken = len(self.milliseconds)
        late = sum(self.milliseconds) > 2e3 * effort.seconds and taken >= max(FEWEST_STEPS, self.period)
        return late or (self.period > 1 and taken >= max(wanted, 2 * self.period))

    def summary(self) -> dict[str, float | int]:
        """Return median, 10th and 90th percentile, mean (stabilisation included), maximum and number of steps."""
        times = self.milliseconds
        return {
            **spread(times),
            "step_ms_mean": statistics.fmean(times),
            "step_ms_max": max(times),
            "warm_up_steps": self.warm_up_steps,
            "stabilise_ms": statistics.fmean(self.stabilise),
        }


def spread(milliseconds: Sequence[float]) -> dict[str, float | int]:
    """Return median, 10th and 90th percentile and number of steps, as records name them."""
    low, middle, high = np.quantile(milliseconds, [0.1, 0.5, 0.9]).tolist()
    return {"step_ms": middle, "step_ms_p10": low, "step_ms_p90": high, "steps": len(milliseconds)}


def median_ms(work: Callable[[], object], repeats: int = 30) -> float:
    """Return the median milliseconds of some work."""
    times = []
    for _ in range(repeats):
        began = perf_counter()
        work()
        times.append(1e3 * (perf_counter() - began))
    return statistics.median(times)


class GemmFloor:
    """The time of a step's five products (m,d)×(d,d), from products timed between the methods of the same run."""

    def __init__(self, m: int, d: int, dtype: torch.dtype, now: Callable[[], float] = perf_counter) -> None:
        generator = torch.Generator().manual_seed(3)
        self._left = torch.randn(m, d, generator=generator, dtype=torch.float32).to(dtype)
        self._right = torch.randn(d, d, generator=generator, dtype=torch.float32).to(dtype)
        self._out = torch.empty(m, d, dtype=dtype)
        self._now = now
        self._milliseconds: list[float] = []

    def burst(self) -> None:
        """Time some products."""
        for number in range(_FLOOR_PRODUCTS + 5):
            began = self._now()
            torch.mm(self._left, self._right, out=self._out)
            if number >= 5:  # the caches are warm
                self._milliseconds.append(1e3 * (self._now() - began))

    @property
    def milliseconds(self) -> float:
        """The floor: five times the median product."""
        return 5 * statistics.median(self._milliseconds)


def in_turn(methods: Iterable[Timed], effort: Effort, floor: GemmFloor) -> None:
    """Measure the methods in rounds: each takes its share, then the next, so that noise hits all alike."""
    for _ in range(effort.turns):
        floor.burst()
        for method in methods:
            method.burst(effort)


def available_memory() -> int | None:
    """Return the bytes that could be allocated without swapping, None where the system does not tell."""
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    return None


class TimeLeft:
    """Progress on stderr: what was done, and how long the rest may take if it goes on like this."""

    def __init__(self, say: Callable[[str], None], total: float) -> None:
        self._say, self._total = say, max(total, 1e-9)
        self._done = 0.0
        self._began = perf_counter()

    def done(self, work: float, text: str) -> None:
        """Count `work` as done, and say so."""
        self._done += work
        elapsed = perf_counter() - self._began
        left = elapsed * max(self._total - self._done, 0.0) / max(self._done, 1e-9)
        share = min(1.0, self._done / self._total)
        self._say(f"[{100 * share:3.0f} %] {text}; {clock_text(elapsed)} so far, about {clock_text(left)} left")
