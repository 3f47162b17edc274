"""Vectors by spelling: the ridge solution, and words that were never seen."""

from itertools import product

import numpy as np
import pytest

from lstlm.errors import UnknownWord
from lstlm.vectors import Vectors
from lstlm.vectors.subwords import RIDGE, Subwords, _averages, ngrams

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


def test_few_words_and_many_get_the_ridge_solution() -> None:
    """One system from either end: a column an asked word, or a column a dimension."""
    draw = np.random.default_rng(1)
    Y = draw.standard_normal((40, 5)).astype(np.float32)
    place = {gram: at for at, gram in enumerate(dict.fromkeys(gram for word in STEMS[:40] for gram in ngrams(word)))}
    A, B = (
        _averages([ngrams(word) for word in words], place).to_dense().double().numpy()
        for words in (STEMS[:40], STEMS[40:])
    )
    assert A.sum(axis=1) == pytest.approx(1.0) and A[0, place["<ba"]] == pytest.approx(1 / len(ngrams("bal")))
    X = np.linalg.solve(A.T @ A + RIDGE * np.eye(A.shape[1]), A.T @ (Y - Y.mean(axis=0)))
    exact = Y.mean(axis=0) + B @ X
    subwords = Subwords(STEMS[:40], Y)
    many, told = subwords.vectors([*STEMS[40:], "xyz"])
    few = np.concatenate([subwords.vectors(STEMS[at : at + 5])[0] for at in range(40, len(STEMS), 5)])
    assert told[:-1].all() and not told[-1]
    for found in (many[:-1], few):
        np.testing.assert_allclose(found, exact, atol=0.02 * np.abs(exact).max())


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
