"""Milliseconds a step for every phase of training, for two calls of perf_counter a phase."""

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
        self.seconds: dict[str, float] = {}
        self.steps = 0

    def start(self, *, measured: bool = True) -> None:
        """Begin a step; on a device that runs behind the host only `measured` steps are counted."""
        self._measured = measured or self._synchronise is None
        if self._measured:
            self.steps += 1
            self._sync()
        self._last = perf_counter()

    def lap(self, phase: str, *, of_which: dict[str, float] | None = None) -> None:
        """End `phase`; `of_which` names seconds inside it that belong to other phases."""
        if not self._measured:
            return
        self._sync()
        now = perf_counter()
        spent = now - self._last
        self._last = now
        for name, seconds in (of_which or {}).items():
            self.seconds[name] = self.seconds.get(name, 0.0) + seconds
            spent -= seconds
        self.seconds[phase] = self.seconds.get(phase, 0.0) + spent

    def milliseconds(self) -> dict[str, float]:
        """Return the mean milliseconds a step of every phase since the last call, and begin again."""
        means = {phase: 1e3 * total / max(self.steps, 1) for phase, total in self.seconds.items()}
        self.seconds = dict.fromkeys(self.seconds, 0.0)
        self.steps = 0
        return means

    def _sync(self) -> None:
        if self._synchronise is not None:
            self._synchronise()
