"""What the commands of ``lstlm bench`` share: their options, and what becomes of the records."""

from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from time import perf_counter, process_time
from typing import TYPE_CHECKING, Any, TypeVar

import click

from lstlm.cli.common import ABOVE_0, PATH, Decorator, option, say, suggest, threads_option, together
from lstlm.errors import ConfigError, DataError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from lstlm.bench.output import Outcome
    from lstlm.bench.timing import Effort

_Plan = TypeVar("_Plan", bound="DataclassInstance")
MOST = 2**31


class Counts(click.ParamType[tuple[int, ...]]):
    """Whole numbers with commas: 1,2,4 or 1e3,1e4."""

    name = "N,N,…"

    def __init__(self, least: int = 1) -> None:
        self._range = f"a whole number from {least} to {MOST:,}"
        self._least = least

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        counts = []
        for part in str(value).split(","):
            try:
                count = float(part)
            except ValueError:
                self.fail(f"{part!r} is not a number; give numbers such as 1000,10000", param, ctx)
            if not self._least <= count <= MOST or count != int(count):
                self.fail(f"{part} is not {self._range}", param, ctx)
            counts.append(int(count))
        return tuple(counts)


def sizes_option(default: str) -> Decorator:
    """Return --vocab-sizes."""
    return option("--vocab-sizes", type=Counts(16), help=f"Vocabulary sizes D, with commas.  [{default}]")


def names_option(flag: str, what: str, default: str) -> Decorator:
    """Return an option that takes names with commas, or all."""
    return option(flag, metavar="NAME,…|all", help=f"{what}, with commas.  [{default}]")


def effort_options(seconds: float, steps: int) -> Decorator:
    """Return --budget and --steps, both for one method at one size."""
    return together(
        option("--budget", "seconds", type=ABOVE_0, help=f"Seconds for each method and size, about.  [{seconds:g}]"),
        option("--steps", type=click.IntRange(3), help=f"Most steps timed for each method and size.  [{steps}]"),
    )


cpu_time_option = option(
    "--cpu-time", is_flag=True, help="Count the process's own CPU seconds: for a machine that others use too."
)
plot_option = option("--plot", type=PATH, help="Picture to draw: .png, .pdf or .svg.")


def record_options(threads: str = "torch's") -> Decorator:
    """Return --threads, with the default that it tells, --quick and --json."""
    return together(
        threads_option(threads),
        option("--quick", is_flag=True, help="Small sizes and few steps: to see it work, within a minute."),
        option("--json", type=click.Path(path_type=Path, dir_okay=False, allow_dash=True),
               help="File for the records; - prints them, and only them, on stdout."),
    )  # fmt: skip


def shared_options(threads: str = "torch's") -> Decorator:
    """Return --threads, --quick, --json and --plot."""
    return together(record_options(threads), plot_option)


def names(given: dict[str, Any], key: str, known: Sequence[str], default: Sequence[str]) -> tuple[str, ...]:
    """Return the names in the value of --`key`: its own, all known ones, or the default."""
    value: str | None = given[key]
    if value is None:
        return tuple(default)
    if value == "all":
        return tuple(known)
    chosen = [name.strip() for name in value.split(",") if name.strip()]
    for name in chosen:
        if name not in known:
            raise ConfigError(f"--{key} {name!r}: unknown here; {suggest(name, known)}")
    if not chosen:
        raise ConfigError(f"--{key} {value!r}: names nothing; known: {', '.join(known)}")
    return tuple(dict.fromkeys(chosen))


def plan_of(kind: type[_Plan], given: dict[str, Any], quick: dict[str, Any] | None = None, **chosen: Any) -> _Plan:
    """Return a plan from the options that have the names of its fields, none above `quick` with --quick.

    `chosen` are the fields that follow from options of other names; the rest has the plan's own defaults.
    """
    found = {field.name: given[field.name] for field in fields(kind) if field.name in given} | chosen
    if given["quick"]:
        found |= {name: min(found[name], most) for name, most in (quick or {}).items()}
    return kind(**found)


def measure(kind: str, given: dict[str, Any], run: Callable[[], list[dict[str, Any]]]) -> None:
    """Measure once it is known that the outcome can be written; then write, print and draw it."""
    check_before_work(given)
    deliver(kind, run(), given)


def measure_each(kind: str, given: dict[str, Any], *runs: Callable[[], "Outcome"]) -> None:
    """Measure in several runs that may leave something out; the rest as `measure`."""
    check_before_work(given)
    outcomes = [run() for run in runs]
    records = [record for outcome in outcomes for record in outcome.records]
    deliver(kind, records, given, skipped=[record for outcome in outcomes for record in outcome.skipped])


def effort(given: dict[str, Any], full: tuple[float, int], quick: tuple[float, int]) -> "Effort":
    """Return how long to measure, in seconds and steps: what was asked for, else `full`, or `quick` with --quick."""
    from lstlm.bench.timing import Effort

    seconds, steps = quick if given["quick"] else full
    now = process_time if given.get("cpu_time") else perf_counter
    return Effort(given["seconds"] or seconds, given["steps"] or steps, now=now)


def use_threads(threads: int | None) -> None:
    """Set the number of torch's threads."""
    if threads is not None:
        import torch

        torch.set_num_threads(threads)


def check_before_work(given: dict[str, Any]) -> None:
    """Find out before minutes of measuring whether records can be written and the picture can be drawn."""
    from lstlm.bench.records import check_writable

    if given["json"] is not None and str(given["json"]) != "-":
        check_writable(given["json"])
    if given.get("plot") is not None:
        from lstlm.bench.figures import check_drawing

        check_drawing(given["plot"])
        check_writable(given["plot"], "--plot")


def deliver(kind: str, records: list[dict[str, Any]], given: dict[str, Any], **more: Any) -> None:
    """Write the records where they were wanted, print the table, draw the picture."""
    from lstlm.bench.records import dump, make_document, markdown, write

    document = make_document(kind, records, **more)
    target: Path | None = given["json"]
    if str(target) == "-":
        click.echo(dump(document), nl=False)
    else:
        click.echo(markdown(document))  # first: what was measured is not lost where the file cannot be written
        if target is not None:
            write(document, target)
            say(f"records: {target}")
    draw(document, given.get("plot"))


def draw(document: dict[str, Any], path: Path | None) -> None:
    """Draw the figures of a document, if a place is given, and say where they are."""
    if path is not None:
        from lstlm.bench import figures

        for written in figures.draw(document, path):
            say(f"figure: {written}")


def replay(paths: Sequence[Path], plot: Path | None, given: dict[str, Any]) -> None:
    """Print the table of recorded results, and draw their figure where `plot` says so.

    Of learning curves `extrapolate` names pairs MODEL=OTHER, see `bench.reach.extrapolated`, `scores` those to show.
    """
    from lstlm.bench.reach import SCORES, extrapolated, only
    from lstlm.bench.records import markdown, read

    document = read(paths)
    scores = names(given, "scores", SCORES, SCORES)
    try:
        for option in ("extrapolate", "scores"):
            if given[option] and document["benchmark"] != "learning":
                raise click.UsageError(f"--{option} is for records of `bench learning`, not {document['benchmark']}")
        for pair in given["extrapolate"]:
            label, _, like = pair.partition("=")
            document["records"] += extrapolated(document["records"], label, like)
        if given["scores"]:
            document["records"] = only(document["records"], scores)
        click.echo(markdown(document))
        draw(document, plot)
    except KeyError as error:
        raise DataError(f"{paths[0]}: a record lacks {error}; `lstlm bench … --json` writes them all") from error
