"""The softmax within a class: as `ops`, one function each, with a torch form and a compiled one."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, get_num_threads
from torch.nn.functional import pad

from lstlm.kernels import class_reference as reference
from lstlm.kernels.choice import Impl, native_for
from lstlm.kernels.ops import ADAGRAD_EPSILON, aligned


class ClassTable(NamedTuple):
    """Rows that lie class by class: scale·matrix (D,d) and scale·bias (D,); class c has bounds[c] … bounds[c+1] − 1.

    group[i] is the class of row i.
    """

    matrix: Tensor
    bias: Tensor | None
    bounds: Tensor
    group: Tensor
    scale: float = 1.0


class Runs(NamedTuple):
    """The classes that occur among examples sorted by their targets' rows, u of them.

    Class r has the examples runs[r] … runs[r+1] − 1, and sizes[r] rows of the table from begins[r] on.
    """

    runs: Tensor
    begins: Tensor
    sizes: Tensor

    def rows(self) -> Tensor:
        """Return the rows of the table that belong to these classes, one class after the other."""
        ends = self.sizes.cumsum(0)
        shift = (self.begins - ends + self.sizes).repeat_interleave(self.sizes)
        return shift + torch.arange(len(shift), device=shift.device)


class ClassEntropy(NamedTuple):
    """Losses (n,), their gradient to h (n,d), and G (n,·), that to the scores of each example's class.

    Gᵀh is the gradient of a class's rows. G has room for the largest class; beyond an example's own it says nothing.
    """

    losses: Tensor
    grad_h: Tensor
    runs: Runs
    h: Tensor
    G: Tensor

    def gradient(self) -> tuple[Tensor, Tensor]:
        """Return the gradient of `runs.rows()` (r,d) and of their biases (r,)."""
        return reference.class_gradient(self.runs, self.h, self.G)


def runs_of(table: ClassTable, rows: Tensor) -> Runs:
    """Return the classes of the targets' rows (n,), which are in increasing order."""
    found, examples = torch.unique_consecutive(table.group[rows], return_counts=True)
    begins = table.bounds[found]
    return Runs(pad(examples.cumsum(0), (1, 0)), begins, table.bounds[found + 1] - begins)


def class_entropy(
    h: Tensor, table: ClassTable, rows: Tensor, t: Tensor, upstream: Tensor, *, impl: Impl = "auto"
) -> ClassEntropy:
    """Return −tᵢ log p(rowᵢ | hᵢ), p = softmax(W_c hᵢ + b_c) over the rows of rowᵢ's class, and the gradients.

    h (n,d), t and upstream (n,), rows (n,) in increasing order, so that the examples of a class lie side by side.
    O(n·d·size of a class). The gradients are those of Σ upstream · losses.
    """
    runs, h = runs_of(table, rows), h.contiguous()
    widest = int(runs.sizes.max()) if len(rows) else 1
    losses, grad_h, G = h.new_empty(len(h)), torch.empty_like(h), aligned(h, len(h), widest)
    if (code := native_for(impl, h)) is None:
        reference.class_entropy(h, table, runs, rows, (t, upstream), (losses, grad_h, G))
    else:
        given = h, table.matrix, table.bias, table.scale, *runs, rows, t, upstream
        code.class_entropy(*given, losses, grad_h, G, get_num_threads())
    return ClassEntropy(losses, grad_h, runs, h, G)


def adagrad_classes(table: ClassTable, squares: Tensor, found: ClassEntropy, lr: float, *, impl: Impl = "auto") -> None:
    """Take a step of row-wise Adagrad for the rows of the classes that occur; squares (D,). As `adagrad_table`."""
    lr /= table.scale
    if (code := native_for(impl, found.h)) is None:
        reference.adagrad_classes(table, squares, found, lr, ADAGRAD_EPSILON)
    else:
        sums = aligned(found.h, len(found.runs.begins), found.h.shape[1])
        given = table.matrix, table.bias, squares, *found.runs, found.h, found.G
        code.adagrad_classes(*given, lr, ADAGRAD_EPSILON, sums, get_num_threads())
