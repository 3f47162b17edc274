"""The torch forms of `class_ops`: a product for each class that occurs."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

from torch import Tensor

from lstlm.kernels import reference

if TYPE_CHECKING:
    from lstlm.kernels.class_ops import ClassEntropy, ClassTable, Runs


def class_entropy(
    h: Tensor,
    table: ClassTable,
    runs: Runs,
    rows: Tensor,
    weights: tuple[Tensor, Tensor],
    results: tuple[Tensor, Tensor, Tensor],
) -> None:
    (t, upstream), (losses, grad_h, G) = weights, results
    for own, part in _each(runs):
        W, bias = table.matrix[part], None if table.bias is None else table.bias[part]
        scores, target = h[own] @ W.T * table.scale, rows[own, None] - part.start
        losses[own] = reference.cross_entropy(scores, target, t[own, None], bias, table.scale, upstream[own])
        grad_h[own] = scores @ W * table.scale
        G[own, : len(W)] = scores


def class_gradient(runs: Runs, h: Tensor, G: Tensor) -> tuple[Tensor, Tensor]:
    total = int(runs.sizes.sum())
    rows, biases, start = h.new_empty(total, h.shape[1]), h.new_empty(total), 0
    for own, part in _each(runs):
        size = part.stop - part.start
        out, scores = slice(start, start + size), G[own, :size]
        rows[out], biases[out], start = scores.T @ h[own], scores.sum(0), start + size
    return rows, biases


def adagrad_classes(table: ClassTable, squares: Tensor, found: ClassEntropy, lr: float, epsilon: float) -> None:
    gradient = class_gradient(found.runs, found.h, found.G)
    reference.adagrad_table((table.matrix, table.bias, squares), gradient, found.runs.rows(), lr, epsilon)


def _each(runs: Runs) -> Iterator[tuple[slice, slice]]:
    """Yield the examples of a class and its rows in the table, for all classes that occur."""
    for (first, last), begin, size in zip(
        pairwise(runs.runs.tolist()), runs.begins.tolist(), runs.sizes.tolist(), strict=True
    ):
        yield slice(first, last), slice(begin, begin + size)
