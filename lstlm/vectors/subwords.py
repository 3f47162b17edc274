"""Vectors for words that have none, from how they are spelled: a least-squares fit on character n-grams.

A word is the mean of the vectors of its n-grams, `<wat`, `water`, `ater>` … Where fastText learns those together with
the words, here they are fitted to vectors that are there already:

    minimise  Σ_w ‖ Σ_g A_wg x_g − (v_w − v̄) ‖²  +  λ Σ_g ‖x_g‖²        A_wg = how often g is in w / n-grams of w

with v_w scaled to length 1 and v̄ their mean. Conjugate gradients on (AᵀA + λI) X = Aᵀ(V − v̄), all columns of X (G,d)
at once: each step costs two products with the sparse A. An unknown word u then gets v̄ + Σ_g A_ug x_g. Every n-gram has
a vector of its own: fastText's buckets of a hash would only mix n-grams that have nothing in common.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

SHORTEST, LONGEST = 3, 6  # characters of an n-gram, the marks of a word's ends included
RIDGE = 0.003
STEPS = 20

Array = np.ndarray[Any, np.dtype[Any]]


def ngrams(word: str) -> list[str]:
    """The n-grams of <word>, short ones first, without the whole; the whole where it has no others."""
    marked = f"<{word}>"
    lengths = range(SHORTEST, min(LONGEST, len(marked) - 1) + 1)
    found = [marked[at : at + length] for length in lengths for at in range(len(marked) - length + 1)]
    return found or [marked]


class Subwords:
    """Vectors of n-grams, fitted to words and their vectors: `subwords.vector("unheard-of")`."""

    def __init__(self, words: Sequence[str], units: Array) -> None:
        """Fit to words (n) and their vectors of length 1, (n,d) float32."""
        spelled = [ngrams(word) for word in words]
        self._place = {gram: at for at, gram in enumerate(dict.fromkeys(gram for grams in spelled for gram in grams))}
        self._mean = units.mean(axis=0)
        A = _averages(spelled, self._place)
        self._vectors = solve_ridge(A, torch.from_numpy(units - self._mean), RIDGE, STEPS).numpy()

    def vector(self, word: str) -> Array | None:
        """The vector of a word by its spelling, (d,); None where no n-gram of it was in any word of the fit."""
        grams = ngrams(word)
        known = [self._place[gram] for gram in grams if gram in self._place]
        return self._mean + self._vectors[known].sum(axis=0) / len(grams) if known else None


def _averages(spelled: Sequence[Sequence[str]], place: dict[str, int]) -> Tensor:
    """The sparse A (words, n-grams) that averages over the n-grams of each word."""
    lengths = np.array([len(grams) for grams in spelled])
    starts = torch.from_numpy(np.concatenate(([0], np.cumsum(lengths))))
    columns = torch.tensor([place[gram] for grams in spelled for gram in grams])
    shares = torch.from_numpy(np.repeat(1.0 / lengths, lengths).astype(np.float32))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
        return torch.sparse_csr_tensor(starts, columns, shares, (len(spelled), len(place)), check_invariants=False)


def solve_ridge(A: Tensor, Y: Tensor, ridge: float, steps: int) -> Tensor:
    """The X (G,d) that minimises ‖A X − Y‖² + ridge·‖X‖², by at most so many steps of conjugate gradients.

    A (n,G), sparse by rows; Y (n,d). Every column has its own step lengths; it stops once the residuals are 10⁻⁴ of
    their start.
    """
    At = A.t().to_sparse_csr()
    residual = At @ Y
    X, direction = torch.zeros_like(residual), residual.clone()
    squares = residual.square().sum(0)
    enough = 1e-8 * float(squares.sum())
    for _ in range(steps):
        if float(squares.sum()) <= enough:
            break
        product = (At @ (A @ direction)).add_(direction, alpha=ridge)
        length = squares / (direction * product).sum(0).clamp_min(1e-30)
        X.addcmul_(direction, length)
        residual.addcmul_(product, -length)
        before, squares = squares, residual.square().sum(0)
        direction.mul_(squares / before.clamp_min(1e-30)).add_(residual)
    return X
