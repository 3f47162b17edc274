"""Progress bars of commands that take a while."""

from typing import Any

from lstlm.cli.common import is_quiet


class Bars:
    """A progress bar for each phase, with rate and time left; none with --quiet or without a terminal.

    `phases` gives each phase's unit and label. Called with (phase, units done since the last call, total or None).
    """

    def __init__(self, phases: dict[str, tuple[str, str]], totals: dict[str, int] | None = None) -> None:
        self._phases, self._totals = phases, totals or {}
        self._phase: str | None = None
        self._bar: Any = None

    def __call__(self, phase: str, done: int, total: int | None) -> None:
        from lstlm.bar import Bar

        if phase != self._phase:
            self.close()
            unit, label = self._phases[phase]
            hidden = True if is_quiet() else None  # None: hidden unless stderr is a terminal
            total = self._totals.get(phase, total)
            self._phase = phase
            self._bar = Bar(total=total, unit=unit, unit_scale=True, desc=label, disable=hidden, leave=False)
        self._bar.update(done)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()

    def __enter__(self) -> "Bars":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
