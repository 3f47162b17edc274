"""The picture of `bench learning`: scores against training time, from records alone."""

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from lstlm.bench.colours import CYCLE
from lstlm.bench.labels import caption, place
from lstlm.bench.reach import mean_curve, seed_curves
from lstlm.bench.records import Record
from lstlm.errors import ConfigError

PANELS = (
    ("simlex", "SimLex-999, Spearman's ρ"),
    ("wordsim", "WordSim-353, Spearman's ρ"),
    ("top10", "validation top-10 (share)"),
    ("perplexity", "validation perplexity"),
)
MINUTES_FROM = 600.0  # seconds of the longest run
LONGEST = 8.0  # times the shortest run: beyond, the axis of time is logarithmic
# Two standard errors of a correlation, 2/√pairs: a panel where no model ends beyond shows chance, and is left out.
CHANCE = {"simlex": 2 / 999**0.5, "wordsim": 2 / 353**0.5}


def draw_learning(figure: Any, records: list[Record], environment: Mapping[str, Any] | None = None) -> None:
    """Draw a line a model, the mean over seeds; thin: every seed; dashed: the output side; dotted: extrapolated.

    `environment` is that of the document: it tells the hardware.
    """
    scored = [panel for panel in PANELS if any(r.get(panel[0]) is not None for r in records)]
    if not scored:
        raise ConfigError("--plot: the records hold no score")
    panels = [panel for panel in scored if not _is_chance(records, panel[0])] or scored
    figure.set_size_inches(4.6 * min(2, len(panels)), 3.4 * -(-len(panels) // 2) + 0.3)
    grid = figure.subplots(-(-len(panels) // 2), min(2, len(panels)), squeeze=False)
    labels = _labels(records)
    guessed = {r["label"] for r in records if r.get("extrapolated")}
    durations = [max(r["train_s"] for r in records if r["label"] == label) for label in labels]
    seconds, unit = (60.0, "minutes") if max(durations) >= MINUTES_FROM else (1.0, "s")
    cpu = "CPU " if any(r.get("clock") == "cpu" for r in records) else ""
    records = [{**r, "train_s": r["train_s"] / seconds} for r in records]
    colours = {label: CYCLE[number % len(CYCLE)] for number, label in enumerate(labels)}
    for axes, (key, title) in zip(grid.flat, panels, strict=False):
        ends = {}
        for label in labels:
            curves = seed_curves(records, label, key)
            for xs, ys in curves if len(curves) > 1 else ():
                axes.plot(xs, ys, color=colours[label], linewidth=0.7, alpha=0.45)
            if curves:
                xs, ys = mean_curve(curves)
                look = {"linestyle": ":"} if label in guessed else {"marker": "o", "markersize": 3}
                axes.plot(xs, ys, color=colours[label], **look)
                ends[label] = (xs[-1], ys[-1])
            if (outputs := seed_curves(records, label, f"{key}_output")) and label not in guessed:
                axes.plot(*mean_curve(outputs), color=colours[label], linestyle="--", linewidth=0.9)
        axes.set(xlabel=f"training time ({cpu}{unit})", title=title)
        if max(durations) > LONGEST * min(durations):
            axes.set_xscale("log")
            axes.xaxis.set_major_formatter(lambda x, _: f"{x:,.0f}" if x >= 1 else f"{x:g}")
        if key == "perplexity":
            _logarithmic(axes)
        place(axes, ends, colours)
    for axes in list(grid.flat)[len(panels) :]:
        axes.set_visible(False)
    left_out = [title.partition(",")[0] for key, title in scored if (key, title) not in panels]
    text = textwrap.fill(_caption(records, left_out, environment or {}), 66 * min(2, len(panels)))
    caption(figure, text)


def _labels(records: Sequence[Record]) -> list[str]:
    return list(dict.fromkeys(r["label"] for r in records))


def _is_chance(records: Sequence[Record], key: str) -> bool:
    """Whether no model's mean curve, of input or output vectors, ends beyond what chance alone would give."""
    found = [seed_curves(records, label, name) for label in _labels(records) for name in (key, f"{key}_output")]
    return key in CHANCE and all(abs(mean_curve(curves)[1][-1]) <= CHANCE[key] for curves in found if curves)


def _logarithmic(axes: Any) -> None:
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    labelled = "123456789" if high < 5 * low else "125"  # first digits: more would overlap
    for axis_formatter in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
        axis_formatter(lambda y, _, digits=labelled: f"{y:,.0f}" if f"{y:e}"[0] in digits else "")


def _caption(records: Sequence[Record], left_out: Sequence[str], environment: Mapping[str, Any]) -> str:
    """Say corpus, hardware, number of seeds, what thin and dashed lines are, and which scores are not drawn."""
    first = records[0]
    parts = []
    if "words" in first:
        name = f"{first['corpus']}: " if "corpus" in first else ""
        parts.append(f"{name}{first['words']:,} words of text, vocabulary {first['D']:,}")
    if "processor" in environment:
        threads = first.get("threads", 1)
        parts.append(f"{threads} thread{'s' * (threads > 1)} of {environment['processor']}")
    seeds = {len({r["seed"] for r in records if r["label"] == label}) for label in _labels(records)}
    if max(seeds) > 1:
        count = f"{min(seeds)}" if len(seeds) == 1 else f"{min(seeds)} to {max(seeds)}"
        parts.append(f"mean of {count} seeds, thin: each of them")
    else:
        parts.append("one seed each")
    if any(r.get(f"{key}_output") is not None for r in records for key, _ in PANELS):
        parts.append("dashed: vectors of the output side")
    if any(r.get("extrapolated") for r in records):
        parts.append("dotted: not run so long, its own time a step with another model's scores at equal steps")
    if left_out:
        parts.append(f"{' and '.join(left_out)} within two standard errors of 0, not drawn")
    return "; ".join(parts)
