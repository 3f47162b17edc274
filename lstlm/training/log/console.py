"""What a person sees while it trains: a bar on a terminal, else one dense line an interval. All of it on stderr."""

import sys
from collections.abc import Mapping
from typing import Any, TextIO

from lstlm.bar import Bar
from lstlm.streams import forgiving
from lstlm.training.loop.schedule import Budget


def clock_text(seconds: float | None) -> str:
    """Return 1:02:03 for 3723 seconds, or ? for None."""
    if seconds is None:
        return "?"
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


def bytes_text(count: int) -> str:
    """Return 1.5 MiB for 1572864."""
    value, units = float(count), ["bytes", "KiB", "MiB", "GiB"]
    while value >= 1024 and len(units) > 1:
        value /= 1024
        del units[0]
    return f"{value:,.0f} bytes" if units[0] == "bytes" else f"{value:,.1f} {units[0]}"


class Console:
    """A tqdm bar in words (so that its rate is words/s) or plain lines, whichever fits the stream."""

    def __init__(self, budget: Budget, words_per_step: int, *, step: int = 0, quiet: bool = False) -> None:
        self._stream: TextIO = forgiving(sys.stderr)
        self._quiet = quiet
        self._budget = budget
        self._words_per_step = words_per_step
        self._bar: Bar | None = None
        if self._stream.isatty() and not quiet:
            total = None if budget.steps is None else budget.steps * words_per_step
            self._bar = Bar(
                total=total,
                initial=step * words_per_step,
                unit="word",
                unit_scale=True,
                dynamic_ncols=True,
                mininterval=0.2,
                file=self._stream,
            )

    def advance(self) -> None:
        """Count one step."""
        if self._bar is not None:
            self._bar.update(self._words_per_step)

    def rewind(self, step: int) -> None:
        """Go back to `step`, after a roll-back."""
        if self._bar is not None:
            self._bar.n = step * self._words_per_step
            self._bar.refresh()

    def train_line(self, step: int, values: Mapping[str, float], elapsed: float) -> None:
        """Show an interval of training."""
        rate = values["throughput/words_per_s"]
        left = self._budget.seconds_left(step, elapsed, rate / self._words_per_step)
        if self._bar is not None:
            left_text = {} if self._budget.seconds is None else {"left": clock_text(left)}
            self._bar.set_postfix({"step": step, "loss": f"{values['loss/train']:.4f}", **left_text}, refresh=False)
            return
        goal = "" if self._budget.steps is None else f"/{self._budget.steps}"
        scale = values["optim/lr_scale"]
        parts = [f"step {step}{goal}", f"epoch {values['progress/epoch']:.2f}", f"loss {values['loss/train']:.4f}"]
        parts += [] if scale == 1 else [f"lr ×{scale:.3g}"]
        self.say(" | ".join([*parts, f"{rate:,.0f} words/s", f"left {clock_text(left)}"]))

    def eval_line(self, step: int, values: Mapping[str, Any], *, best: bool) -> None:
        """Show the outcome of an evaluation, within 80 columns: the perplexity says what the loss does."""
        shown = ["eval/loss" if values.get("eval/perplexity") is None else "eval/perplexity"]
        shown += ["eval/top1", "eval/top10", "eval/simlex_spearman"]
        names = {"eval/simlex_spearman": "SimLex"}
        figures = [
            f"{names.get(key, key.removeprefix('eval/'))} {values[key]:.{2 if values[key] >= 100 else 4}f}"
            for key in shown
            if values.get(key) is not None
        ]
        found = f"validation {', '.join(figures)}" if "eval/loss" in values else "no validation text"
        self.say(f"step {step} | {found}" + (" | best" if best else ""))

    def say(self, line: str) -> None:
        """Write a line without breaking the bar."""
        if self._bar is not None:
            self._bar.write(line, file=self._stream)
        elif not self._quiet:
            print(line, file=self._stream, flush=True)

    def close(self) -> None:
        """Leave the bar as it is."""
        if self._bar is not None:
            self._bar.close()
