"""The softmax within a class: as `ops`, one function with a torch form and a compiled one."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, get_num_threads
from torch.nn.functional import pad

from lstlm.kernels import class_reference as reference
from lstlm.kernels.choice import Impl, native_for
from lstlm.kernels.ops import aligned


class ClassTable(NamedTuple):
    """Rows that lie class by class: scale·matrix (D,d) and scale·bias (D,); class c has bounds[c] … bounds[c+1] − 1."""

    matrix: Tensor
    bias: Tensor | None
    bounds: Tensor
    scale: float = 1.0


class Runs(NamedTuple):
    """The classes that occur among examples sorted by their targets' rows, u of them.

    Class r has the examples runs[r] … runs[r+1] − 1, the rows of the table from begins[r] on, and the rows
    offsets[r] … offsets[r+1] − 1 of a gradient, which belong to the rows `rows` (r,) of the table.
    """

    runs: Tensor
    begins: Tensor
    offsets: Tensor
    rows: Tensor
    widest: int


class ClassEntropy(NamedTuple):
    """Losses (n,), their gradient to h (n,d), and that to the rows (r,) of the classes that occur: (r,d) and (r,)."""

    losses: Tensor
    grad_h: Tensor
    rows: Tensor
    grad_rows: Tensor
    grad_bias: Tensor


def runs_of(bounds: Tensor, rows: Tensor) -> Runs:
    """Return the classes of the targets' rows (n,), which are in increasing order."""
    found, examples = torch.unique_consecutive(  # type: ignore[no-untyped-call]
        torch.bucketize(rows, bounds, right=True) - 1, return_counts=True
    )
    begins = bounds[found]
    sizes = bounds[found + 1] - begins
    offsets = pad(sizes.cumsum(0), (1, 0))
    listed = (begins - offsets[:-1]).repeat_interleave(sizes)
    listed += torch.arange(len(listed), device=rows.device)
    widest = int(sizes.max()) if len(sizes) else 0
    return Runs(pad(examples.cumsum(0), (1, 0)), begins, offsets, listed, widest)


def class_entropy(
    h: Tensor, table: ClassTable, rows: Tensor, t: Tensor, upstream: Tensor, *, impl: Impl = "auto"
) -> ClassEntropy:
    """Return −tᵢ log p(rowᵢ | hᵢ), p = softmax(W_c hᵢ + b_c) over the rows of rowᵢ's class, and the gradients.

    h (n,d), t and upstream (n,), rows (n,) in increasing order, so that the examples of a class lie side by side.
    O(n·d·size of a class). The gradients are those of Σ upstream · losses.
    """
    runs = runs_of(table.bounds, rows)
    if (code := native_for(impl, h)) is None or not len(rows):
        return reference.class_entropy(h, table, runs, rows, t, upstream)
    (n, d), r = h.shape, len(runs.rows)
    losses, grad_bias = h.new_empty(n), h.new_empty(r)
    grad_h, grad_rows, scores = aligned(h, n, d), aligned(h, r, d), aligned(h, n, runs.widest)
    h = h if h.stride(1) == 1 else h.contiguous()
    given = table.matrix, table.bias, table.scale, runs.runs, runs.begins, runs.offsets, rows, t, upstream
    code.class_entropy(h, *given, losses, grad_h, grad_rows, grad_bias, scores, get_num_threads())
    return ClassEntropy(losses, grad_h, runs.rows, grad_rows, grad_bias)
