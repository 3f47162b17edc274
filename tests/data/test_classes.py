"""Classes of words used alike: found where they are, of bounded size, the same every time."""

from __future__ import annotations

import numpy as np
import pytest

from lstlm.data.classes import LARGEST, find_classes

FRAME, KINDS, EACH = 8, 4, 10  # frequent words, and words of four kinds, each kind behind frequent words of its own


def text(seed: int = 1, pairs: int = 20_000) -> np.ndarray:
    """Return ids: a frequent word, then a word of the kind that follows it, again and again."""
    draw = np.random.default_rng(seed)
    before = draw.integers(FRAME, size=pairs)
    kind = before % KINDS
    word = FRAME + kind + KINDS * draw.integers(EACH, size=pairs)
    return np.stack([before, word], 1).reshape(-1).astype(np.uint32)


def test_words_that_follow_the_same_words_share_a_class() -> None:
    words = KINDS * EACH
    found = find_classes(text(), np.arange(FRAME + words), FRAME, words, KINDS)
    kinds = np.arange(words) % KINDS
    assert all(len(set(found[kinds == kind])) == 1 for kind in range(KINDS))
    assert sorted(set(found)) == list(range(KINDS))


def test_ids_need_not_be_in_order_of_frequency() -> None:
    words, ids = KINDS * EACH, text()
    turned = (FRAME + words - 1 - ids).astype(np.uint32)
    rank = np.arange(FRAME + words)
    expected = find_classes(ids, rank, FRAME, words, KINDS)
    np.testing.assert_array_equal(find_classes(turned, rank[::-1].copy(), FRAME, words, KINDS), expected)


@pytest.mark.parametrize(("words", "classes"), [(40, 7), (40, 40), (3, 2), (1, 1)])
def test_no_class_is_empty_or_large(words: int, classes: int) -> None:
    ids, rank = text(), np.arange(FRAME + KINDS * EACH)
    found = find_classes(ids, rank, FRAME, words, classes)
    sizes = np.bincount(found, minlength=classes)
    assert len(sizes) == classes and sizes.min() > 0 and sizes.max() <= np.ceil(LARGEST * words / classes)
    np.testing.assert_array_equal(find_classes(ids, rank, FRAME, words, classes), found)


def test_words_that_the_text_lacks_have_a_class_too() -> None:
    ids, words = text(), KINDS * EACH + 20
    found = find_classes(ids, np.arange(FRAME + words), FRAME, words, 6)
    assert found.shape == (words,) and found.min() == 0 and found.max() == 5
