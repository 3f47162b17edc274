"""Classes of words that are used alike, from the words that stand beside them: k-means over a corpus."""

import numpy as np
from numpy.typing import NDArray

I64 = NDArray[np.int64]
F32 = NDArray[np.float32]

NEIGHBOURS = 300  # frequent words that a word is described by; all others are one more
POSITIONS = 12_000_000  # of the text: of the rarest word of the middle that leaves dozens of places
ROUNDS = 10
CHOICES = 16  # nearest classes that a word may go to
LARGEST = 2.0  # the size of the largest class, in mean ones


def find_classes(ids: NDArray[np.uint32], rank: I64, first: int, words: int, classes: int) -> I64:
    """Return the class (words,) of each of the `words` words from rank `first` on, given the rank (D,) of every word.

    None of the `classes` is empty, none larger than twice the mean. The same text has the same classes.
    """
    X = _neighbours(ids, rank, first, words)
    weight = np.linalg.norm(X, axis=1, keepdims=True)  # √count
    X /= np.maximum(weight, 1.0)
    centres = X[:classes].copy()  # the most frequent words
    for _ in range(ROUNDS):
        nearest = _closeness(X, centres).argmax(1)
        for c in range(classes):
            if len(own := np.flatnonzero(nearest == c)):
                centres[c] = (weight[own] * X[own]).sum(0) / weight[own].sum()
    return _seated(_closeness(X, centres))


def _neighbours(ids: NDArray[np.uint32], rank: I64, first: int, words: int) -> F32:
    """Return the roots of how often each frequent word stands before and after each of the words, (words, 2·(n+1))."""
    text, n = rank[ids[:POSITIONS]], min(NEIGHBOURS, len(rank))
    known = np.minimum(text, n)
    sides = []
    for word, beside in ((text[1:], known[:-1]), (text[:-1], known[1:])):
        here = np.flatnonzero((word >= first) & (word < first + words))
        pairs = (word[here] - first) * (n + 1) + beside[here]
        sides.append(np.bincount(pairs, minlength=words * (n + 1)).reshape(words, n + 1).astype(np.float32))
    return np.sqrt(np.concatenate(sides, 1))


def _closeness(X: F32, centres: F32) -> F32:
    """Return 2x·c − c·c, which is largest for the nearest centre, (words, classes)."""
    found: F32 = 2 * (X @ centres.T) - np.square(centres).sum(1)
    return found


def _seated(closeness: F32) -> I64:
    """Give every word its nearest class that has room, those first whose choice is clearest; leave no class empty."""
    words, classes = closeness.shape
    room = int(np.ceil(LARGEST * words / classes))
    choices = np.argsort(-closeness, axis=1, kind="stable")[:, :CHOICES]
    best = np.take_along_axis(closeness, choices[:, :2], 1)
    seat, size = np.zeros(words, dtype=np.int64), np.zeros(classes, dtype=np.int64)
    for word in np.argsort(best[:, -1] - best[:, 0], kind="stable"):
        free = choices[word][size[choices[word]] < room]
        seat[word] = free[0] if len(free) else size.argmin()
        size[seat[word]] += 1
    for empty in np.flatnonzero(size == 0):
        seat[np.flatnonzero(seat == size.argmax())[-1]] = empty
        size = np.bincount(seat, minlength=classes)
    return seat
