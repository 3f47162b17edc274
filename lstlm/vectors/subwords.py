"""Vectors for words that have none, from how they are spelled: a least-squares fit on character n-grams.

A word is the mean of the vectors of its n-grams, `<wat`, `water`, `ater>` … Where fastText learns those together with
the words, here they are fitted to vectors that are there already:

    minimise  ‖A X − Y‖² + λ‖X‖²        A_wg = how often g is in w / n-grams of w,   Y_w = v_w − v̄

with v_w scaled to length 1 and v̄ their mean; unknown words, whose n-grams are B, get v̄ + B X. As X = Aᵀ(AAᵀ + λI)⁻¹Y,

    B X = (B Aᵀ)(AAᵀ + λI)⁻¹ Y

can be had from either end: for a few words by solving for (AAᵀ + λI)⁻¹ A Bᵀ, a column a word, for many by solving for
a column a dimension. Every n-gram counts for itself: fastText's buckets of a hash would only mix n-grams that have
nothing in common.
"""

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

SHORTEST, LONGEST = 3, 6  # characters of an n-gram, the marks of a word's ends included
RIDGE = 0.003
STEPS = 100  # of conjugate gradients, at most
TOLERANCE = 1e-2  # of the residual
BLOCK = 256  # words guessed at a time

Array = np.ndarray[Any, np.dtype[Any]]


def ngrams(word: str) -> list[str]:
    """The n-grams of <word>, short ones first, without the whole; the whole where it has no others."""
    marked = f"<{word}>"
    lengths = range(SHORTEST, min(LONGEST, len(marked) - 1) + 1)
    found = [marked[at : at + length] for length in lengths for at in range(len(marked) - length + 1)]
    return found or [marked]


class Subwords:
    """What spellings tell, from words and their vectors: `subwords.vectors(["unheard-of"])`."""

    def __init__(self, words: Sequence[str], units: Array) -> None:
        """Take words (n) and their vectors of length 1, (n,d) float32."""
        spelled = [ngrams(word) for word in words]
        self._place = {gram: at for at, gram in enumerate(dict.fromkeys(gram for grams in spelled for gram in grams))}
        self._A = _averages(spelled, self._place)
        self._At = self._A.t().to_sparse_csr()
        self._mean = torch.from_numpy(units.mean(axis=0))
        self._Y = torch.from_numpy(units) - self._mean

    def vectors(self, words: Sequence[str]) -> tuple[Array, Array]:
        """Vectors of words by their spelling (q,d), and which of them (q,) share an n-gram with a word of the fit."""
        spelled = [ngrams(word) for word in words]
        told = np.array([any(gram in self._place for gram in grams) for grams in spelled], dtype=bool)
        few = len(words) <= self._Y.shape[1]
        X = None if few else self._At @ self._solve(self._Y)
        found = []
        for at in range(0, len(words), BLOCK):
            B = _averages(spelled[at : at + BLOCK], self._place)
            found.append(self._solve(self._A @ B.t().to_dense()).T @ self._Y if X is None else B @ X)
        return (torch.cat(found) + self._mean).numpy(), told

    def _solve(self, Y: Tensor) -> Tensor:
        return solve_ridge(self._A, self._At, Y, RIDGE)


def _averages(spelled: Sequence[Sequence[str]], place: dict[str, int]) -> Tensor:
    """The sparse (words, n-grams) that averages over the n-grams of each word; one without a place counts as zero."""
    known = [[place[gram] for gram in grams if gram in place] for grams in spelled]
    lengths = np.array([len(row) for row in known])
    starts = torch.from_numpy(np.concatenate(([0], np.cumsum(lengths))))
    columns = torch.tensor([at for row in known for at in row], dtype=torch.int64)
    shares = torch.from_numpy(np.repeat([1.0 / len(grams) for grams in spelled], lengths).astype(np.float32))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
        return torch.sparse_csr_tensor(starts, columns, shares, (len(spelled), len(place)), check_invariants=False)


def solve_ridge(A: Tensor, At: Tensor, Y: Tensor, ridge: float) -> Tensor:
    """The Z (n,q) with (A Aᵀ + ridge·I) Z = Y, by conjugate gradients; every column has its own step lengths.

    A (n,G) and its transpose, sparse by rows; Y (n,q). O(q · entries of A) a step.
    """
    Z, residual, direction = torch.zeros_like(Y), Y.clone(), Y.clone()
    squares = residual.square().sum(0)
    enough = TOLERANCE**2 * float(squares.sum())
    for _ in range(STEPS):
        if float(squares.sum()) <= enough:
            break
        product = (A @ (At @ direction)).add_(direction, alpha=ridge)
        length = squares / (direction * product).sum(0).clamp_min(1e-30)
        Z.addcmul_(direction, length)
        residual.addcmul_(product, -length)
        before, squares = squares, residual.square().sum(0)
        direction.mul_(squares / before.clamp_min(1e-30)).add_(residual)
    return Z
