"""Milliseconds a step for every phase of training, for two calls of perf_counter a phase."""

from collections import defaultdict
from collections.abc import Callable
from time import perf_counter


class PhaseClock:
    """Adds up the time of named phases.

        clock.start();  batch = …;  clock.lap("data");  h = …;  clock.lap("hidden_forward")

    `synchronise` (on CUDA) is called at the laps of measured steps only: without it a lap there would time the launch
    of the kernels, and with it on every step the device would wait for the host.
    """

    def __init__(self, synchronise: Callable[[], None] | None = None) -> None:
        self._synchronise = synchronise
        self._measured = True
        self._last = 0.0
        self.seconds: dict[str, float] = defaultdict(float)
        self.steps = 0

    def start(self, *, measured: bool = True) -> None:
        """Begin a step; on a device that runs behind the host only `measured` steps are counted."""
        self._measured = measured or self._synchronise is None
        if self._measured:
            self.steps += 1
            if self._synchronise is not None:
                self._synchronise()
        self._last = perf_counter()

    def lap(self, phase: str) -> None:
        """End `phase`."""
        if self._measured:
            if self._synchronise is not None:
                self._synchronise()
            now = perf_counter()
            self.seconds[phase] += now - self._last
            self._last = now

    def move(self, seconds: float, phase: str, other: str) -> None:
        """Count so many of the last seconds of a phase for another one, which lay within it."""
        if self._measured:
            self.seconds[phase] -= seconds
            self.seconds[other] += seconds

    def milliseconds(self) -> dict[str, float]:
        """Return the mean milliseconds a step of every phase since the last call, and begin again."""
        means = {phase: 1e3 * total / max(self.steps, 1) for phase, total in self.seconds.items()}
        self.seconds = defaultdict(float, dict.fromkeys(self.seconds, 0.0))
        self.steps = 0
        return means
