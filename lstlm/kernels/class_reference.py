"""The torch form of the softmax within a class, of `class_ops`: a product for each class that occurs."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lstlm.kernels import reference

if TYPE_CHECKING:
    from lstlm.kernels.class_ops import ClassEntropy, ClassTable, Runs


def class_entropy(
    h: Tensor, table: ClassTable, runs: Runs, rows: Tensor, t: Tensor, upstream: Tensor
) -> ClassEntropy:
    from lstlm.kernels.class_ops import ClassEntropy

    losses, grad_h = h.new_empty(len(h)), torch.empty_like(h)
    grad_rows, grad_bias = h.new_empty(len(runs.rows), h.shape[1]), h.new_empty(len(runs.rows))
    bounds = zip(pairwise(runs.runs.tolist()), runs.begins.tolist(), pairwise(runs.offsets.tolist()), strict=True)
    for (first, last), begin, (start, stop) in bounds:
        own, out = slice(first, last), slice(start, stop)
        part = slice(begin, begin + stop - start)
        W, bias = table.matrix[part], None if table.bias is None else table.bias[part]
        G, target = h[own] @ W.T * table.scale, (rows[own] - begin)[:, None]
        losses[own] = reference.cross_entropy(G, target, t[own, None], bias, table.scale, upstream[own])
        grad_h[own] = G @ W * table.scale
        grad_rows[out], grad_bias[out] = G.T @ h[own], G.sum(0)
    return ClassEntropy(losses, grad_h, runs.rows, grad_rows, grad_bias)
