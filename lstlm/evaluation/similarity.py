"""Word similarity: how well cosines of word vectors follow human judgements (SimLex-999, WordSim-353, …)."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from lstlm.evaluation.datasets import Pair
from lstlm.sealed import finite_or_none
from lstlm.vectors import Vectors

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class SimilarityResult:
    """Correlations (nan if undefined), pairs used of all, words without a vector, and a 95 % interval of spearman."""

    spearman: float
    pearson: float
    pairs_used: int
    pairs_total: int
    oov: tuple[str, ...]
    interval: tuple[float, float] | None = None

    def to_dict(self) -> dict[str, Any]:
        """As JSON: null stands for an undefined correlation."""
        found: dict[str, Any] = finite_or_none(asdict(self))
        return found


def average_ranks(values: Array) -> Array:
    """Ranks 1…n, (n,); equal values share the mean of their ranks. O(n log n)."""
    _, group, sizes = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(sizes)
    ranks: Array = (last - (sizes - 1) / 2.0)[group]
    return ranks


def pearson(x: Array, y: Array) -> float:
    """Σ(x−x̄)(y−ȳ) / √(Σ(x−x̄)² Σ(y−ȳ)²) in float64; nan for fewer than two values or a constant side."""
    if len(x) < 2:
        return math.nan
    dx = np.asarray(x, dtype=np.float64) - np.mean(x, dtype=np.float64)
    dy = np.asarray(y, dtype=np.float64) - np.mean(y, dtype=np.float64)
    scale = float(np.linalg.norm(dx) * np.linalg.norm(dy))
    return float(np.clip(dx @ dy / scale, -1.0, 1.0)) if scale > 0 else math.nan


def spearman(x: Array, y: Array) -> float:
    """Pearson's correlation of the average ranks."""
    return pearson(average_ranks(x), average_ranks(y))


def bootstrap_interval(x: Array, y: Array, resamples: int = 1000, seed: int = 1) -> tuple[float, float]:
    """The central 95 % of spearman over `resamples` draws of n pairs with replacement; seeded, so it can be repeated.

    A draw is a vector of counts over the pairs, and the ranks in it follow from cumulative counts over the sorted
    distinct values: O(resamples·n) with no sort.
    """
    n = len(x)
    if n < 3:
        return math.nan, math.nan
    counts = np.random.default_rng(seed).multinomial(n, np.full(n, 1.0 / n), size=resamples).astype(np.float64)
    dx, dy = (_weighted_ranks(values, counts) for values in (x, y))
    with np.errstate(invalid="ignore", divide="ignore"):
        draws = (counts * dx * dy).sum(1) / np.sqrt((counts * dx**2).sum(1) * (counts * dy**2).sum(1))
    draws = draws[np.isfinite(draws)]
    if not draws.size:
        return math.nan, math.nan
    low, high = np.quantile(draws, [0.025, 0.975])
    return float(low), float(high)


def _weighted_ranks(values: Array, counts: Array) -> Array:
    """Average ranks of every value within each draw, less their mean (n+1)/2. counts (r,n) → (r,n)."""
    _, group = np.unique(values, return_inverse=True)
    sizes = np.zeros((len(counts), int(group.max()) + 1))
    np.add.at(sizes.T, group, counts.T)
    last = np.cumsum(sizes, axis=1)
    ranks: Array = (last - (sizes - 1) / 2.0)[:, group] - (len(values) + 1) / 2.0
    return ranks


def evaluate_pairs(
    vectors: Vectors, pairs: Sequence[Pair], *, case: str = "fold", resamples: int = 0, seed: int = 1
) -> SimilarityResult:
    """Correlate cosines with the human scores over the pairs whose words both have a vector.

    Case rule `fold` (the default, gensim's too): a word takes the first row, so the most frequent one, that equals it
    but for case; `exact` takes the very spelling; `prefer` takes the very spelling, else folds.
    """
    rows = [(vectors.row(p.first, case), vectors.row(p.second, case)) for p in pairs]
    missing = {word for p in pairs for word in (p.first, p.second) if vectors.row(word, case) is None}
    used = [(a, b, p.score) for p, (a, b) in zip(pairs, rows, strict=True) if a is not None and b is not None]
    human = np.array([score for _, _, score in used], dtype=np.float64)
    model = vectors.cosines([a for a, _, _ in used], [b for _, b, _ in used])
    return SimilarityResult(
        spearman=spearman(model, human),
        pearson=pearson(model, human),
        pairs_used=len(used),
        pairs_total=len(pairs),
        oov=tuple(sorted(missing)),
        interval=bootstrap_interval(model, human, resamples, seed) if resamples else None,
    )


def evaluate_by_pos(vectors: Vectors, pairs: Sequence[Pair], **options: Any) -> dict[str, SimilarityResult]:
    """`evaluate_pairs` for each part of speech, in alphabetical order; empty if the file does not tell it."""
    names = sorted({pair.pos for pair in pairs if pair.pos is not None})
    return {name: evaluate_pairs(vectors, [p for p in pairs if p.pos == name], **options) for name in names}
