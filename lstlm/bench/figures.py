"""Pictures, drawn from records alone. matplotlib is needed here and nowhere else."""

import statistics
from collections.abc import Callable, Sequence
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

from lstlm.bench.colours import BLACK, BLUE, COLOURS, CYCLE, DASHES, GREY, ORANGE
from lstlm.bench.labels import caption, place
from lstlm.bench.learning_figure import draw_learning
from lstlm.bench.records import Document, Record, mean_ms
from lstlm.errors import ConfigError
from lstlm.vectors.writers import whole_file

ENDINGS = (".png", ".pdf", ".svg")
STYLE: Any = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.6,
    "lines.markersize": 4,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "svg.fonttype": "none",
    "pdf.fonttype": 42,
}


def check_drawing(path: Path) -> None:
    """Raise where a picture could not be drawn: another ending, or no matplotlib."""
    if path.suffix.lower() not in ENDINGS:
        raise ConfigError(f"--plot {path}: the ending says the format; use one of {', '.join(ENDINGS)}")
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise ConfigError("--plot: matplotlib is not installed; `pip install 'lstlm[plot]'` brings it") from None


def draw(document: Document, path: Path) -> list[Path]:
    """Draw what the records of a document show; return the files written: `path`, and others beside it."""
    check_drawing(path)
    import matplotlib

    makers: dict[str, dict[str, Callable[[Any, list[Record]], None]]] = {
        "output": {"": _timing, "-speedup": _speedup},
        "model": {"": _model},
        "learning": {"": partial(draw_learning, environment=document.get("environment"))},
        "data": {"": _data},
        "distributed": {"": _distributed},
    }
    kind, records = document["benchmark"], document["records"]
    if kind not in makers or not records:
        raise ConfigError(f"--plot {path}: no figure for {len(records)} records of benchmark {kind!r}")
    written = []
    with matplotlib.rc_context(STYLE):
        from matplotlib.figure import Figure

        for suffix, make in makers[kind].items():
            figure = Figure(figsize=(9.0, 3.9), layout="constrained")
            make(figure, records)
            target = path.with_stem(path.stem + suffix)
            with whole_file(target) as file:
                figure.savefig(file, dpi=200, format=target.suffix[1:].lower())
            written.append(target)
    return written


def series(records: Sequence[Record]) -> dict[str, list[Record]]:
    """Group records of `bench output` into the lines of a figure: one a method, the factored one a line a loss.

    Of the naive ones one loss suffices, for they differ little: z, else the first. Of the stabilisers the first that
    occurs is drawn; the table has them all.
    """
    lines: dict[str, list[Record]] = {}
    losses = list(dict.fromkeys(r["loss"] for r in records if r["method"].startswith("naive")))
    naive_loss = "z" if "z" in losses else losses[0] if losses else None
    kept = next((r["stabilise"] for r in records if r["method"] == "factored"), None)
    for record in records:
        method = record["method"]
        if method == "log_prob" or (method.startswith("naive") and record["loss"] != naive_loss):
            continue
        if method == "factored":
            if record["stabilise"] != kept:
                continue
            lines.setdefault(f"factored, {record['loss']}", []).append(record)
        else:
            lines.setdefault(method, []).append(record)
    return {name: sorted(found, key=lambda r: r["D"]) for name, found in lines.items()}


def _look(name: str, lines: Sequence[str]) -> dict[str, Any]:
    method = name.partition(",")[0]
    same = [line for line in lines if line.partition(",")[0] == method]
    dash = DASHES[same.index(name) % len(DASHES)]
    return {"color": COLOURS.get(method, GREY), "linestyle": dash, "marker": "o" if dash == "-" else None}


def _timing(figure: Any, records: list[Record]) -> None:
    """Time of a step against D, linear and log-log."""
    lines = series(records)
    left, right = figure.subplots(1, 2)
    for axes in (left, right):
        for name, found in lines.items():
            look = _look(name, list(lines))
            sizes = [r["D"] for r in found]
            axes.plot(sizes, [mean_ms(r) for r in found], **look)
            if axes is right and look["marker"]:
                low, high = [r["step_ms_p10"] for r in found], [r["step_ms_p90"] for r in found]
                axes.fill_between(sizes, low, high, color=look["color"], alpha=0.15, linewidth=0)
        axes.set_xlabel("vocabulary size D (words)")
        axes.set_ylabel("time of a step (ms)")
    floor = statistics.median(r["gemm_floor_ms"] for r in records)
    right.axhline(floor, color=GREY, linewidth=0.8, linestyle=(0, (1, 2)))
    right.set(xscale="log", yscale="log", title="log-log; bands: p10 to p90")
    _plain_numbers(right)
    left.set(title="linear", ylim=(0, None), xlim=(0, None))
    left.xaxis.set_major_formatter(lambda x, _: f"{x / 1000:,.0f}k" if x else "0")
    ends = {name: (found[-1]["D"], mean_ms(found[-1])) for name, found in lines.items()}
    colours = {name: _look(name, list(lines))["color"] for name in lines}
    largest = max(y for _, y in ends.values())
    dear = {name: end for name, end in ends.items() if end[1] > 0.05 * largest}
    if cheap := [name for name in ends if name not in dear]:
        text = "the others, near 0" if len(cheap) > 2 else " and ".join(cheap)
        dear[text] = max((ends[name] for name in cheap), key=lambda end: end[1])
        colours[text] = GREY if len(cheap) > 2 else colours[cheap[0]]
    place(left, dear, colours)
    biggest = max(x for x, _ in ends.values())
    place(right, ends | {"GEMM floor": (biggest, floor)}, colours | {"GEMM floor": GREY})
    caption(figure, _setting(records))


def _speedup(figure: Any, records: list[Record]) -> None:
    """Speed-up of the factored layer over both naive ones against D, with the theoretical curve 3D/(5d)."""
    axes = figure.subplots(1, 1)
    figure.set_size_inches(6.2, 4.2)
    lines = series(records)
    ends: dict[str, tuple[float, float]] = {}
    colours: dict[str, str] = {}
    factored = {name: found for name, found in lines.items() if name.startswith("factored")}
    for base, colour in (("naive", BLUE), ("naive-blocked", ORANGE)):
        slow = {(r["D"], r["loss"]): mean_ms(r) for r in records if r["method"] == base}
        for number, (name, found) in enumerate(factored.items()):
            loss = name.partition(", ")[2]
            points = [(r["D"], slow[r["D"], loss] / mean_ms(r)) for r in found if (r["D"], loss) in slow]
            if points:
                axes.plot(*zip(*points, strict=True), color=colour, linestyle=DASHES[number % 4], marker="o")
                label = f"{base}, {loss}"
                ends[label], colours[label] = points[-1], colour
    d = records[0]["d"]
    sizes = sorted({r["D"] for r in records})
    axes.plot(sizes, [3 * D / (5 * d) for D in sizes], color=BLACK, linewidth=1.0, linestyle=(0, (4, 2)))
    ends["theory, 3D/(5d)"], colours["theory, 3D/(5d)"] = (sizes[-1], 3 * sizes[-1] / (5 * d)), BLACK
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="vocabulary size D (words)",
        ylabel="speed-up of the factored layer over … (×)",
    )
    _plain_numbers(axes)
    axes.axhline(1, color=GREY, linewidth=0.8)
    place(axes, ends, colours)
    caption(figure, _setting(records))


def _plain_numbers(axes: Any, *, y: bool = True) -> None:
    """Write 10,000 rather than 10⁴ at the decades."""
    for axis in (axes.xaxis, axes.yaxis) if y else (axes.xaxis,):
        axis.set_major_formatter(lambda value, _: f"{value:,.0f}" if value >= 1 else f"{value:g}")


def _setting(records: Sequence[Record]) -> str:
    first = records[0]
    threads = f"{first['threads']} thread{'s' if first['threads'] != 1 else ''}"
    clock = ", CPU time" if first.get("clock") == "cpu" else ""
    return f"d = {first['d']}, m = {first['m']}, {first['dtype']}, {threads}; mean step{clock}, stabilisation included"


def _times(value: float) -> str:
    return f"{value:,.0f}×" if value >= 10 else f"{value:.1f}×"


def _model(figure: Any, records: list[Record]) -> None:
    """Phases of a whole step as bars, logarithmic, one row a method."""
    left, right = figure.subplots(1, 2, sharey=True)
    rows = list(range(len(records)))
    names = [r["method"] if r["loss"] in ("softmax", "z") else f"{r['method']}, {r['loss']}" for r in records]
    several = len({r["D"] for r in records}) > 1
    if several:
        names = [f"{name}, D = {r['D']:,}" for name, r in zip(names, records, strict=True)]
    for axes, key, title in ((left, "speedup_output", "output layer only"), (right, "speedup_model", "whole model")):
        values = [float(r.get(key) or 0.0) for r in records]
        paper = [r.get(key.replace("speedup", "paper_cpu")) for r in records]
        axes.barh(rows, values, color=[COLOURS.get(r["method"], GREY) for r in records], height=0.6)
        for row, value, theirs in zip(rows, values, paper, strict=True):
            text = _times(value)
            if theirs is not None and theirs != 1:  # naive is 1 by definition
                axes.plot([theirs], [row], marker="D", markersize=6, color="white", markeredgecolor=BLACK)
                text += f" (paper {_times(theirs)})"
            end = max(value, theirs or 0.0, 0.5)
            axes.annotate(text, (end, row), xytext=(8, 0), textcoords="offset points", va="center", fontsize=8)
        axes.set(xscale="log", title=title, xlabel="speed-up over the naive step (×)")
        axes.set_xlim(0.5, 12 * max(*values, *(v or 1.0 for v in paper)))
        _plain_numbers(axes, y=False)
        axes.grid(visible=False, axis="y")
    left.set_yticks(rows, names)
    left.invert_yaxis()
    first = records[0]
    layers = f"{first['hidden_layers']} hidden layers of {first['d'] - 1}"
    text = f"m = {first['m']}, {layers}"
    if any(r.get("paper_cpu_model") for r in records):
        text += "; ◇ is the paper, on its CPU"
    if not several:
        text = f"D = {first['D']:,}, {text}"
    caption(figure, text)


def _data(figure: Any, records: list[Record]) -> None:
    """Rates as bars: words of text, and examples of minibatches."""
    left, right = figure.subplots(1, 2)
    files = [r for r in records if r["what"] != "minibatches"]
    draws = [r for r in records if r["what"] == "minibatches"]
    names = [f"{r['what']}, {r['method']}" + (f" × {r['workers']}" if r["workers"] > 1 else "") for r in files]
    colours = [BLUE if "lstlm" in name else GREY for name in names]
    examples = [r["examples_per_s"] / 1e6 for r in draws]
    _bars(left, names, [r["words_per_s"] / 1e6 for r in files], color=colours, title="text (million words/s)")
    _bars(right, [r["kind"] for r in draws], examples, color=BLUE, title="minibatches (million examples/s)")


def _bars(axes: Any, names: Sequence[str], values: Sequence[float], *, color: Any, title: str) -> None:
    bars = axes.barh(names, values, color=color, height=0.6)
    axes.bar_label(bars, [f"{v:.2f}" for v in values], padding=3, fontsize=8)
    axes.set(title=title)
    axes.invert_yaxis()
    axes.margins(x=0.15)
    axes.grid(visible=False, axis="y")


def _distributed(figure: Any, records: list[Record]) -> None:
    """Words a second against the examples of a rank: a panel a vocabulary, a line a number of ranks."""
    sizes = sorted({r["D"] for r in records})
    worlds = sorted({r["world"] for r in records})
    figure.set_size_inches(max(4.6 * len(sizes), 6.2), 3.9)
    ticks = sorted({r["m"] for r in records})
    for axes, D in zip(figure.subplots(1, len(sizes), squeeze=False, sharey=True).flat, sizes, strict=True):
        ends, colours = {}, {}
        for world, colour in zip(worlds, cycle(CYCLE), strict=False):
            points = sorted((r["m"], r["words_per_s"]) for r in records if (r["D"], r["world"]) == (D, world))
            label = f"{world} rank{'s' if world > 1 else ''}"
            ends[label], colours[label] = points[-1], colour
            axes.plot(*zip(*points, strict=True), color=colour, marker="o")
        axes.set(title=f"D = {D:,}", xscale="log", ylim=(0, None), xlabel="examples a rank and step, m")
        axes.set_xticks(ticks, [f"{m:,}" for m in ticks])
        axes.minorticks_off()
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        place(axes, ends, colours)
    figure.axes[0].set_ylabel("words/s, all ranks together")
    first = records[0]
    threads = f"{first['threads']} thread{'s' if first['threads'] != 1 else ''} a rank"
    text = f"d = {first['d']}, {first['dtype']}, {threads}; median step, all ranks on one machine"
    caption(figure, text)
