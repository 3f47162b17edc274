"""Correlations equal scipy's; the bootstrap is the bootstrap; missing words are counted."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lstlm.evaluation.datasets import Pair
from lstlm.evaluation.similarity import (
    average_ranks,
    bootstrap_interval,
    evaluate_by_pos,
    evaluate_pairs,
    pearson,
    spearman,
)
from lstlm.vectors import Vectors

stats = pytest.importorskip("scipy.stats")

tied = st.integers(-4, 4).map(float)
plain = st.floats(-1e6, 1e6, allow_subnormal=False)


@settings(max_examples=200)
@given(st.lists(st.tuples(tied | plain, tied | plain), min_size=2, max_size=60))
def test_spearman_equals_scipy(points: list[tuple[float, float]]) -> None:
    x, y = (np.array(side) for side in zip(*points, strict=True))
    if len(set(x)) < 2 or len(set(y)) < 2:
        assert math.isnan(spearman(x, y))
        return
    assert spearman(x, y) == pytest.approx(stats.spearmanr(x, y).statistic, abs=1e-12)
    np.testing.assert_array_equal(average_ranks(x), stats.rankdata(x))


def test_pearson_equals_scipy() -> None:
    x, y = np.random.default_rng(0).standard_normal((2, 999)) + 5
    assert pearson(x, y + x) == pytest.approx(stats.pearsonr(x, y + x).statistic, abs=1e-12)


def test_too_few_or_constant_values_have_no_correlation() -> None:
    assert math.isnan(pearson(np.array([1.0]), np.array([1.0])))
    assert math.isnan(spearman(np.ones(5), np.arange(5.0)))


def test_bootstrap_draws_are_spearmans_of_resampled_pairs() -> None:
    """The same multinomial counts, expanded into pairs and given to scipy, have the same quantiles."""
    generator = np.random.default_rng(3)
    x = generator.integers(0, 12, 40).astype(float)
    y = x + generator.standard_normal(40) * 4
    counts = np.random.default_rng(7).multinomial(40, np.full(40, 1 / 40), size=50)
    draws = [stats.spearmanr(np.repeat(x, c), np.repeat(y, c)).statistic for c in counts]
    low, high = np.quantile(draws, [0.025, 0.975])
    assert bootstrap_interval(x, y, resamples=50, seed=7) == pytest.approx((low, high), abs=1e-12)
    assert bootstrap_interval(x, y, 50, 7) != bootstrap_interval(x, y, 50, 8)


PAIRS = [
    Pair("a", "b", 9.0, "nouns"),
    Pair("a", "c", 1.0, "nouns"),
    Pair("b", "c", 4.0, "verbs"),
    Pair("a", "missing", 5.0, "verbs"),
    Pair("gone", "missing", 5.0, "verbs"),
]
VECTORS = Vectors(["A", "b", "c"], np.array([[1, 0], [0.9, 0.1], [0.5, 0.8]]))


def test_missing_words_are_named_once_and_their_pairs_left_out() -> None:
    result = evaluate_pairs(VECTORS, PAIRS, resamples=100)
    assert (result.pairs_used, result.pairs_total, result.oov) == (3, 5, ("gone", "missing"))
    assert result.spearman == pytest.approx(1.0, abs=1e-12)
    assert result.interval is not None
    assert evaluate_pairs(VECTORS, PAIRS, case="exact").pairs_used == 1


def test_by_part_of_speech() -> None:
    parts = evaluate_by_pos(VECTORS, PAIRS)
    assert [(name, part.pairs_used, part.pairs_total) for name, part in parts.items()] == [
        ("nouns", 2, 2),
        ("verbs", 1, 3),
    ]


def test_no_usable_pair_is_null_in_json() -> None:
    result = evaluate_pairs(Vectors(["x"], np.ones((1, 2))), PAIRS, resamples=10)
    document = result.to_dict()
    assert (document["spearman"], document["pearson"], document["interval"]) == (None, None, [None, None])
    assert document["pairs_used"] == 0
