"""Pictures come from records alone; records are made here."""

import builtins
import math
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.text import Text

from lstlm.bench import figures, model
from lstlm.bench.labels import spread
from lstlm.bench.learning_figure import draw_learning
from lstlm.bench.records import Record
from lstlm.errors import ConfigError

SIZES = (1000, 10_000, 100_000)


def output_records() -> list[Record]:
    records = []
    kinds = [
        ("factored", "z", "lazy"),
        ("factored", "taylor", "lazy"),
        ("factored", "z", "svd"),
        ("naive", "z", "none"),
    ]
    kinds += [("naive", "taylor", "none"), ("naive-blocked", "z", "none"), ("sampled", "softmax", "none")]
    kinds += [("log_prob", "taylor", "lazy")]
    for D in SIZES:
        for method, loss, stabilise in kinds:
            ms = 2.0 if method != "naive" else D / 300
            sizes = {"D": D, "d": 300, "m": 128, "threads": 1, "dtype": "float32", "steps": 9}
            times = {"step_ms": ms, "step_ms_p10": 0.9 * ms, "step_ms_p90": 1.1 * ms, "step_ms_mean": ms}
            more = {"stabilise": stabilise, "stabilise_ms": 0.0, "gemm_floor_ms": 1.0}
            records.append({"method": method, "loss": loss, **sizes, **times, **more})
    return records


def model_records() -> list[Record]:
    rows = [("naive", 2000.0, 2100.0), ("hierarchical", 12.0, 15.0), ("factored", 2.0, 5.0)]
    sizes = {"D": 793_471, "d": 301, "m": 128, "hidden_layers": 2}
    return [
        {"method": name, "loss": "z", "output_ms": output, "step_ms": whole, "step_ms_mean": whole, **sizes}
        for name, output, whole in rows
    ]


def learning_records() -> list[Record]:
    return [
        {"label": label, "seed": seed, "train_s": float(t), "simlex": 0.1 * math.log(t) + 0.01 * seed, "final": t == 4}
        | ({"perplexity": 900.0 / t} if label == "lm" else {})
        for label in ("lm", "gensim-sg")
        for seed in (1, 2)
        for t in (1, 2, 4)
    ]


def data_records() -> list[Record]:
    files = {"words_per_s": 1e6, "workers": 2}
    return [
        {"what": "prepare", "method": "lstlm", **files},
        {"what": "count", "method": "gensim", **files},
        {"what": "minibatches", "method": "lstlm", "kind": "window", "examples_per_s": 2e6},
    ]


def distributed_records() -> list[Record]:
    rate = {1: 1e4, 2: 1.8e4}
    sizes = {"d": 301, "threads": 1, "dtype": "float32"}
    return [
        {"world": world, "D": D, "m": m, "words_per_s": rate[world] * m**0.5, **sizes}
        for world in rate
        for D in (10_000, 1_000_000)
        for m in (1024, 128)
    ]


DOCUMENTS: dict[str, list[Record]] = {
    "output": output_records(),
    "model": model.with_paper(model_records()),
    "learning": learning_records(),
    "data": data_records(),
    "distributed": distributed_records(),
}


@pytest.mark.parametrize(
    ("kind", "ending"),
    [("output", ".png"), ("model", ".png"), ("learning", ".svg"), ("data", ".pdf"), ("distributed", ".png")],
)
def test_every_benchmark_has_its_figure(kind: str, ending: str, tmp_path: Path) -> None:
    path = tmp_path / "new" / f"figure{ending}"
    written = figures.draw({"benchmark": kind, "records": DOCUMENTS[kind]}, path)
    assert written[0] == path and len(written) == (2 if kind == "output" else 1)
    magic = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}[ending]
    assert all(file.read_bytes().startswith(magic) for file in written)


def test_lines_are_named_and_axes_have_units(tmp_path: Path) -> None:
    timing, speedup = figures.draw({"benchmark": "output", "records": output_records()}, tmp_path / "f.svg")
    text = timing.read_text(encoding="utf-8")
    for name in ("factored, z", "factored, taylor", "naive-blocked", "sampled", "GEMM floor"):
        assert f">{name}<" in text
    assert "log_prob" not in text and "time of a step (ms)" in text and "vocabulary size D (words)" in text
    text = speedup.read_text(encoding="utf-8")
    assert ">theory, 3D/(5d)<" in text and ">naive, taylor<" in text and ">naive-blocked, z<" in text


def test_models_of_several_sizes_are_told_apart(tmp_path: Path) -> None:
    records = model.with_paper(model_records() + [{**record, "D": 1000} for record in model_records()])
    (path,) = figures.draw({"benchmark": "model", "records": records}, tmp_path / "f.svg")
    text = path.read_text(encoding="utf-8")
    assert ">naive, D = 1,000<" in text and ">naive, D = 793,471<" in text and ">m = 128, 2 hidden" in text
    assert "◇ is the paper, on its CPU" in text
    records = model.with_paper([{**record, "D": 1000} for record in model_records()])
    (path,) = figures.draw({"benchmark": "model", "records": records}, tmp_path / "f.svg")
    assert "◇" not in path.read_text(encoding="utf-8")


def test_ranks_are_lines_over_the_examples_of_a_rank(tmp_path: Path) -> None:
    (path,) = figures.draw({"benchmark": "distributed", "records": distributed_records()}, tmp_path / "f.svg")
    text = path.read_text(encoding="utf-8")
    for name in ("1 rank", "2 ranks", "D = 10,000", "D = 1,000,000"):
        assert f">{name}<" in text
    assert "examples a rank and step, m" in text and "words/s, all ranks together" in text


def crossed_labels(figure: Any) -> list[str]:
    """Return the names in a drawn figure that a line of data runs through, or that overlap another name."""
    figure.canvas.draw()
    texts = [text for axes in figure.axes for text in axes.texts if text.get_text()]
    boxes = [Text.get_window_extent(text) for text in texts]  # the words, without the leader to the line
    points = []  # of all lines, close enough that none jumps over a letter
    for axes in figure.axes:
        for line in axes.lines:
            path = line.get_path().transformed(line.get_transform()).interpolated(400).vertices
            points.append(path[((path >= axes.bbox.p0) & (path <= axes.bbox.p1)).all(axis=1)])
    lines = np.concatenate(points)
    crossed = []
    for text, box in zip(texts, boxes, strict=True):
        inside = ((lines > [box.x0, box.y0]) & (lines < [box.x1, box.y1])).all(axis=1)
        if inside.any() or any(box.overlaps(other) for other in boxes if other is not box):
            crossed.append(text.get_text())
    return crossed


@pytest.mark.parametrize("kind", ["output", "speedup", "model", "learning", "distributed"])
def test_no_line_runs_through_a_name(kind: str) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    makers = {
        "output": figures._timing,
        "speedup": figures._speedup,
        "model": figures._model,
        "learning": draw_learning,
        "distributed": figures._distributed,
    }
    records = list(DOCUMENTS.get(kind, output_records()))
    if kind == "output":  # a line that rises slowly over all that is near 0
        low = [r for r in output_records() if r["method"] == "sampled"]
        records += [{**r, "method": "adaptive", "step_ms_mean": r["D"] / 4000} for r in low]
    figure = Figure(figsize=(9.0, 3.9), layout="constrained")
    FigureCanvasAgg(figure)
    makers[kind](figure, records)
    assert crossed_labels(figure) == []


def test_the_check_of_names_finds_a_crossing() -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure()
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.plot([0, 1], [0, 1])
    axes.annotate("crossed", (0.5, 0.5), ha="center", va="center")
    axes.annotate("free", (0.1, 0.8))
    assert crossed_labels(figure) == ["crossed"]


def test_the_learning_figure_explains_itself(tmp_path: Path) -> None:
    facts = {"corpus": "shard", "words": 7_000_000, "D": 39_932, "wordsim": 0.03, "simlex_output": 0.2}
    records = [{**record, **facts} for record in learning_records()]
    document = {"benchmark": "learning", "records": records, "environment": {"processor": "Abacus 9"}}
    (path,) = figures.draw(document, tmp_path / "f.svg")
    drawn = path.read_text(encoding="utf-8")
    text = " ".join(re.sub(r"<[^>]*>", " ", drawn).split())
    assert "shard: 7,000,000 words of text, vocabulary 39,932; 1 thread of Abacus 9;" in text
    assert "mean of 2 seeds, thin: each of them; dashed: vectors of the output side" in text
    # within two standard errors of 0 there is nothing to see
    assert "WordSim-353 within two standard errors of 0, not drawn" in text and "WordSim-353, Spearman" not in text
    assert "SimLex-999, Spearman" in text


def test_what_was_not_run_is_dotted_and_said_so() -> None:
    from matplotlib.figure import Figure

    slow = [r | {"label": "slow", "extrapolated": True, "train_s": 100 * r["train_s"]} for r in learning_records()]
    figure = Figure()
    draw_learning(figure, learning_records() + [r for r in slow if r["seed"] == 1])
    dotted = [line for line in figure.axes[0].lines if line.get_linestyle() == ":"]
    assert len(dotted) == 1 and max(dotted[0].get_xdata()) == 400.0  # type: ignore[arg-type]
    assert "dotted: not run so long" in figure.get_suptitle().replace("\n", " ")
    assert {axes.get_xscale() for axes in figure.axes} == {"log"}


@pytest.mark.parametrize(
    ("clock", "factor", "title"), [("cpu", 900, "training time (CPU minutes)"), ("wall", 1, "training time (s)")]
)
def test_long_runs_are_shown_in_minutes(clock: str, factor: float, title: str) -> None:
    from matplotlib.figure import Figure

    records = [r | {"clock": clock, "train_s": factor * r["train_s"]} for r in learning_records()]
    figure = Figure()
    draw_learning(figure, records)
    assert {axes.get_xlabel() for axes in figure.axes} == {title}
    longest = max(max(line.get_xdata()) for line in figure.axes[0].lines)  # type: ignore[arg-type]
    assert longest == max(r["train_s"] for r in records) / (60 if clock == "cpu" else 1)


def test_the_speedup_is_that_of_the_same_loss() -> None:
    from matplotlib.figure import Figure

    records = output_records()
    for record in records:
        if record["method"] == "naive" and record["loss"] == "taylor":
            record["step_ms_mean"] = 7 * record["D"]
    figure = Figure()
    figures._speedup(figure, records)
    lines = {tuple(line.get_xdata()): list(line.get_ydata()) for line in figure.axes[0].lines}  # type: ignore[arg-type]
    drawn = [list(line.get_ydata()) for line in figure.axes[0].lines]
    assert [3.5 * D for D in SIZES] in drawn  # 7·D ms over 2 ms
    assert [3 * D / 1500 for D in SIZES] in drawn and lines


@pytest.mark.parametrize(
    ("name", "records", "message"),
    [
        ("figure.bmp", output_records(), r"figure.bmp: the ending says the format; use one of .png, .pdf, .svg"),
        ("figure.png", [], "no figure for 0 records"),
    ],
)
def test_what_cannot_be_drawn_is_said(name: str, records: list[Record], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        figures.draw({"benchmark": "output", "records": records}, tmp_path / name)


def test_without_matplotlib_there_is_one_clear_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    real = builtins.__import__

    def missing(name: str, *rest: Any, **more: Any) -> Any:
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(ConfigError, match=r"matplotlib is not installed; `pip install 'lstlm\[plot\]'`"):
        figures.check_drawing(tmp_path / "figure.png")


def test_names_are_moved_apart_and_keep_their_order() -> None:
    heights = [0.0, 1.0, 1.5, 50.0, 52.0, 100.0]
    placed = spread(heights, 10.0)
    assert all(b - a >= 10 - 1e-9 for a, b in pairwise(placed))
    assert placed[-1] == 100.0 and sum(placed[3:5]) == pytest.approx(102.0)
    shuffled = spread([heights[i] for i in (3, 0, 5, 1, 4, 2)], 10.0)
    assert shuffled == pytest.approx([placed[i] for i in (3, 0, 5, 1, 4, 2)])
    assert spread([], 10.0) == []
