"""A number of faults of all kinds, one after the other, and a table of what came of them."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from lstlm.selftest.bench import Workbench
from lstlm.selftest.trials import TRIALS


@dataclass
class Outcome:
    """What came of one kind of fault."""

    kind: str
    faults: int = 0
    failures: list[str] = field(default_factory=list)
    seconds: float = 0.0


def selftest(folder: Path, faults: int, seed: int, say: Callable[[str], None]) -> list[Outcome]:
    """Commit about so many faults in `folder`, of every kind at least one. The same seed chooses the same ones."""
    outcomes, bench = [], Workbench(folder)
    for kind, (trial, share) in TRIALS.items():
        outcome, began = Outcome(kind), time.monotonic()
        bench.chance.seed(f"{kind} {seed}")
        verdicts = trial(bench)
        for _ in range(max(1, round(faults * share / 100))):
            outcome.faults += 1
            if (failure := next(verdicts)) is not None:
                outcome.failures.append(failure)
                say(f"{kind}: {failure}")
        outcome.seconds = time.monotonic() - began
        outcomes.append(outcome)
        say(f"{kind}: {outcome.faults} faults, {len(outcome.failures)} failures, {outcome.seconds:.0f} s")
    return outcomes


def table(outcomes: list[Outcome]) -> list[list[str]]:
    """Return kind, faults and failures in columns, with a sum."""
    rows = {one.kind: [one.faults, len(one.failures), one.seconds] for one in outcomes}
    rows["all"] = [sum(column) for column in zip(*rows.values(), strict=True)]
    shown = [[name, *(f"{figure:.0f}" for figure in row)] for name, row in rows.items()]
    return [["fault", "count", "failures", "seconds"], *shown]
