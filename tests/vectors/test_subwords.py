"""Vectors by spelling: the ridge solution, and words that were never seen."""

from itertools import product

import numpy as np
import pytest
import torch

from lstlm.errors import UnknownWord
from lstlm.vectors import Vectors
from lstlm.vectors.subwords import Subwords, _averages, ngrams, solve_ridge

STEMS = [a + b + c for a, b, c in product("bdgkmp", "aeiou", "lnrst")]
ENDINGS = ["", "ing", "ness", "ly"]


def planted(seed: int = 0) -> dict[str, np.ndarray]:
    """Words of a stem and an ending, each with a vector that is the sum of the two's."""
    draw = np.random.default_rng(seed)
    stems, endings = draw.standard_normal((len(STEMS), 12)), draw.standard_normal((len(ENDINGS), 12))
    pairs = product(enumerate(STEMS), enumerate(ENDINGS))
    return {a + b: (stems[i] + endings[k]).astype(np.float32) for (i, a), (k, b) in pairs}


def test_ngrams_of_a_word() -> None:
    assert ngrams("cat") == ["<ca", "cat", "at>", "<cat", "cat>"]
    assert ngrams("a") == ["<a>"] and ngrams("") == ["<>"]
    assert {len(gram) for gram in ngrams("watering")} == {3, 4, 5, 6}


def test_conjugate_gradients_find_the_ridge_solution() -> None:
    draw = np.random.default_rng(1)
    spelled = [ngrams(word) for word in STEMS[:40]]
    place = {gram: at for at, gram in enumerate(dict.fromkeys(gram for grams in spelled for gram in grams))}
    A = _averages(spelled, place)
    dense = A.to_dense().double().numpy()
    for row, grams in zip(dense, spelled, strict=True):
        assert row.sum() == pytest.approx(1.0) and row[place[grams[0]]] == pytest.approx(1 / len(grams))
    Y = draw.standard_normal((40, 5))
    exact = np.linalg.solve(dense.T @ dense + 0.1 * np.eye(dense.shape[1]), dense.T @ Y)
    found = solve_ridge(A, torch.from_numpy(Y.astype(np.float32)), 0.1, 200).double().numpy()
    np.testing.assert_allclose(found, exact, atol=1e-4 * np.abs(exact).max())


def test_words_that_were_never_seen_come_near_their_own_vectors() -> None:
    words = planted()
    held = list(words)[::7]
    known = {word: vector for word, vector in words.items() if word not in held}
    vectors = Vectors(list(known), np.stack(list(known.values())))
    cosines = [float(vectors.guess(word) @ words[word] / np.linalg.norm(words[word])) for word in held]
    strangers = [float(vectors.guess(word) @ words[held[0]] / np.linalg.norm(words[held[0]])) for word in held[1:]]
    assert np.mean(cosines) > 0.8 > 0.3 > np.mean(strangers)
    units = vectors.matrix / np.linalg.norm(vectors.matrix, axis=1, keepdims=True)
    exact = units @ vectors.guess(held[5])
    best = vectors.most_similar(held[5], k=3, oov=True)
    assert [word for word, _ in best] == [vectors.words[row] for row in np.argsort(-exact)[:3]]
    with pytest.raises(UnknownWord):
        vectors.most_similar(held[5])


def test_a_spelling_that_tells_nothing_is_an_unknown_word() -> None:
    vectors = Vectors(["water", "waters"], np.eye(2, dtype=np.float32))
    with pytest.raises(UnknownWord, match="no part of it is in any word that has one"):
        vectors.guess("Шо")
    assert Subwords(["water"], np.ones((1, 2), dtype=np.float32)).vector("xyz") is None
    assert vectors.with_words(["Шо"]) is vectors


def test_with_words_appends_guesses_and_changes_nothing_else() -> None:
    words = {word: 3 * vector for word, vector in planted().items()}
    matrix = np.stack([*words.values(), np.zeros(12, dtype=np.float32)])
    vectors = Vectors([*words, "<s>"], matrix, list(range(len(words) + 1)))
    more = vectors.with_words(["balness", "balings", "BALNESS", "balings", "Dalings"])
    assert list(more.words[len(vectors) :]) == ["balings", "Dalings"]
    np.testing.assert_array_equal(more.matrix[: len(vectors)], vectors.matrix)
    lengths = np.linalg.norm(more.matrix, axis=1)
    assert lengths[-2:] == pytest.approx(lengths[: len(words)].mean(), rel=1e-5)
    assert more.counts is not None and list(more.counts[-2:]) == [0, 0]
    # no word has a capital, so a capital tells nothing
    np.testing.assert_array_equal(vectors.guess("Dalings"), vectors.guess("dalings"))
