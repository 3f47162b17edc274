"""Look-up, cosines, nearest neighbours and near spellings."""

import numpy as np
import pytest

from lstlm.errors import DataError
from lstlm.vectors import Vectors, nearest
from lstlm.vectors.spelling import near_spellings


def random_matrix(rows: int, dim: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, dim)).astype(np.float32)


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("cached", [1, 48 * 7, 1 << 20])
def test_nearest_equals_the_plain_product(monkeypatch: pytest.MonkeyPatch, seed: int, cached: int) -> None:
    matrix, query = random_matrix(1000, 12), random_matrix(1, 12, seed)[0]
    scores, ids = nearest(matrix, query, 10, cached)
    exact = matrix.astype(np.float64) @ query.astype(np.float64)
    exact /= np.linalg.norm(query) * np.linalg.norm(matrix, axis=1)
    order = np.argsort(-exact)[:10]
    np.testing.assert_array_equal(ids, order)
    np.testing.assert_allclose(scores, exact[order], atol=1e-6)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("order", ["C", "F"])
def test_nearest_takes_any_float_layout(dtype: type, order: str) -> None:
    matrix = np.asarray(random_matrix(50, 6).astype(dtype), order=order)
    _, ids = nearest(matrix, np.asarray(matrix[3]), 1)
    assert ids.tolist() == [3]


def test_k_beyond_the_vocabulary_and_zero_vectors() -> None:
    vectors = Vectors(["a", "b", "zero"], np.array([[1, 0], [1, 1], [0, 0]], dtype=np.float32))
    assert [word for word, _ in vectors.most_similar("a", k=99)] == ["b", "zero"]
    assert vectors.most_similar("zero", k=2) == [("a", 0.0), ("b", 0.0)]
    assert vectors.cosines([0, 0], [1, 2]).tolist() == [pytest.approx(0.5**0.5), 0.0]


def test_a_word_is_not_its_own_neighbour_even_among_equals() -> None:
    vectors = Vectors(list("abcd"), np.ones((4, 3), dtype=np.float32))
    assert sorted(word for word, _ in vectors.most_similar("c", k=3)) == ["a", "b", "d"]


def test_values_that_are_not_finite_are_named() -> None:
    matrix = random_matrix(20, 3)
    matrix[7, 1] = np.nan
    with pytest.raises(DataError, match="row 8 of the vectors"):
        nearest(matrix, random_matrix(1, 3)[0], 2)


def test_case_rules() -> None:
    vectors = Vectors(["March", "march", "MAY"], np.eye(3, dtype=np.float32))
    assert [vectors.row("march", case) for case in ("fold", "prefer", "exact")] == [0, 1, 1]
    assert [vectors.row("may", case) for case in ("fold", "prefer", "exact")] == [2, 2, None]
    assert vectors.row("june") is None


def test_words_and_matrix_must_fit() -> None:
    with pytest.raises(DataError, match="2 words do not fit"):
        Vectors(["a", "b"], np.eye(3))


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("kng", "king"), ("kingg", "king"), ("kign", "king"), ("kong", "king"), ("KING", "king"),
     ("presdent", "president"), ("presdnet", "president"), ("london", "London")],
)  # fmt: skip
def test_near_spellings(typed: str, meant: str) -> None:
    index = {word: row for row, word in enumerate(["the", "king", "London", "president"])}
    assert near_spellings(typed, index)[0] == meant


def test_near_spellings_prefer_few_slips_then_frequent_words() -> None:
    index = {"cut": 0, "cart": 1, "cat": 2, "dog": 3}
    assert near_spellings("cxt", index) == ["cut", "cat"]
    assert near_spellings("zzzzzz", index) == []
    assert near_spellings("x" * 500, index) == []
