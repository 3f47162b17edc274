"""Learning curves as numbers: means over seeds, how soon one model reaches another's end, and what nobody waits for."""

from collections.abc import Sequence

import numpy as np

from lstlm.bench.records import Column, Record, table
from lstlm.errors import ConfigError

SCORES = ("simlex", "wordsim", "top10", "perplexity")
REACHED = {"simlex": "SimLex", "wordsim": "WordSim", "perplexity": "perplexity"}
Curve = tuple[list[float], list[float]]


def seed_curves(records: Sequence[Record], label: str, key: str) -> list[Curve]:
    """Return (times, scores) of each seed's run."""
    found = [r for r in records if r["label"] == label and r.get(key) is not None]
    curves = []
    for seed in dict.fromkeys(r["seed"] for r in found):
        run = sorted((r["train_s"], r[key]) for r in found if r["seed"] == seed)
        curves.append(([x for x, _ in run], [y for _, y in run]))
    return curves


def mean_curve(curves: Sequence[Curve]) -> Curve:
    """Return the means of times and scores at equal shares of the seeds' times, those of the fewest evaluations.

    Scores are interpolated: seeds may be evaluated at different times, and differently often.
    """
    fewest, _ = min(curves, key=lambda curve: len(curve[0]))
    shares = np.array(fewest) / fewest[-1]
    xs = np.mean([shares * times[-1] for times, _ in curves], axis=0)
    ys = np.mean([np.interp(shares * times[-1], times, scores) for times, scores in curves], axis=0)
    return xs.tolist(), ys.tolist()


def extrapolated(records: Sequence[Record], label: str, like: str) -> list[Record]:
    """Return what `label` would show if a step of it taught as much as one of `like`: only the time is its own.

    For a model whose steps take so long that few of them were seen. Its seconds a step are those of its last record.
    """
    ends = [r for r in records if r["label"] == label and r["final"] and r["step"]]
    models = [r for r in records if r["label"] == like]
    if not ends or not models:
        known = ", ".join(dict.fromkeys(r["label"] for r in records))
        raise ConfigError(f"--extrapolate {label}={like}: needs steps of both; the records are of {known}")
    step_s = ends[-1]["train_s"] / ends[-1]["step"]
    own = {"label": f"{label} (extrapolated)", "method": ends[-1].get("method"), "extrapolated": True}
    return [{**r, **own, "train_s": step_s * r["step"]} for r in models]


def only(records: Sequence[Record], scores: Sequence[str]) -> list[Record]:
    """Return the records without other scores than these, of either side."""
    gone = {name + side for name in SCORES if name not in scores for side in ("", "_output")}
    return [{key: value for key, value in record.items() if key not in gone} for record in records]


def reach(records: Sequence[Record]) -> list[Record]:
    """Return, for every model, score and other model, when its mean curve first is as good as the other's end.

    The time is one of the mean curve's, not interpolated; it and its share of the other's time are None where the
    curve never gets there.
    """
    records = [record for record in records if not record.get("extrapolated")]
    labels = list(dict.fromkeys(record["label"] for record in records))
    rows: list[Record] = []
    for key in REACHED:
        curves = {label: seed_curves(records, label, key) for label in labels}
        means = {label: mean_curve(found) for label, found in curves.items() if found}
        for label, (xs, ys) in means.items():
            for goal in means.keys() - {label}:
                (*_, whole), (*_, end) = means[goal]
                there = (x for x, y in zip(xs, ys, strict=True) if (y <= end if key == "perplexity" else y >= end))
                seconds = next(there, None)
                share = None if seconds is None else seconds / whole
                rows.append(
                    {"label": label, "score": key, "goal": goal, "end": end, "after_s": seconds, "share": share}
                )
    return sorted(rows, key=lambda row: (row["score"], labels.index(row["goal"]), labels.index(row["label"])))


def markdown(records: Sequence[Record]) -> str:
    """Return `reach` as a table; nothing where there is but one model."""
    rows = reach(records)
    columns: list[Column] = [
        ("score", lambda r: REACHED[r["score"]]),
        ("end of", "goal"),
        ("mean", lambda r: f"{r['end']:.{1 if abs(r['end']) >= 10 else 3}f}"),
        ("reached by", "label"),
        ("after s", lambda r: "not" if r["after_s"] is None else f"{r['after_s']:.1f}"),
        ("share of its time", lambda r: None if r["share"] is None else f"{100 * r['share']:.1f} %"),
    ]
    return table(rows, columns) if rows else ""
