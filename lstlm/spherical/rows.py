"""Rows of a large table by id: the few that a minibatch names are read, summed and changed; the table is (D,size).

Each is one pass of compiled code where that was built, which asks memory for the next rows while it works on this one;
else a few operations of torch. An id (n,) that is no row raises IndexError with nothing changed.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from lstlm.spherical.native import Kernel, kernel_for, kernel_of_ids, plain

ADAGRAD_EPSILON = 1e-10


class RowValues(NamedTuple):
    """What belongs to rows of a table, such as a gradient: scale · values[i // each] to the row ids[i].

    ids (n,), values (n/each,size): where the rows of an example were summed, they share its values.
    """

    ids: Tensor
    values: Tensor
    each: int = 1
    scale: float = 1.0

    def spread(self) -> Tensor:
        """Return the values (n,size), one for each id, without the scale."""
        return self.values if self.each == 1 else self.values.repeat_interleave(self.each, 0)


def outside(ids: Tensor, rows: int) -> int | None:
    """Return one of the ids, of any shape, that is not one of a table of so many rows; None where all are."""
    if ids.numel() == 0:
        return None
    if (kernel := kernel_of_ids(ids)) is not None:
        flat = listed(ids).view(-1)
        wrong = kernel.outside(flat.data_ptr(), flat.shape[0], rows)
        return None if wrong < 0 else int(flat[wrong])
    low, high = (int(extreme) for extreme in ids.aminmax())
    return low if low < 0 else high if high >= rows else None


def read_rows(table: Tensor, ids: Tensor, each: int = 1, scale: float = 1.0) -> Tensor:
    """Return (n/each,size): scale times the sum of every `each` rows."""
    kernel, (D, size) = _kernel_for(table, ids), table.shape
    if kernel is None:
        rows = table.index_select(0, ids)
        return rows if each == 1 and scale == 1 else rows.view(-1, each, size).sum(1).mul_(scale)
    ids = listed(ids)
    rows = table.new_empty(ids.shape[0] // each, size)
    place = table.data_ptr(), D, size, ids.data_ptr()
    check_rows(kernel.sum_rows(*place, rows.shape[0], each, scale, rows.data_ptr()), ids, D)
    return rows


def write_rows(table: Tensor, ids: Tensor, values: Tensor) -> None:
    """table[ids] ← values (n,size); those of a repeated id must be the same."""
    kernel, (D, size) = _kernel_for(table, ids, values), table.shape
    if kernel is None:
        table.index_copy_(0, ids, values)
        return
    ids, values = listed(ids), values.contiguous()
    check_rows(kernel.write_rows(table.data_ptr(), D, size, ids.data_ptr(), len(ids), values.data_ptr()), ids, D)


def add_rows(table: Tensor, change: RowValues, times: float = 1.0) -> None:
    """Add `times` what belongs to each row to it; what belongs to a repeated id adds up."""
    (D, size), (ids, values, each, scale) = table.shape, change
    kernel = _kernel_for(table, ids, values, each)
    if kernel is None:
        # index_add_, not table[ids] += …: a word that is the target twice must count twice
        table.index_add_(0, ids, change.spread(), alpha=times * scale)
        return
    ids, values = listed(ids), values.contiguous()
    place = table.data_ptr(), D, size, ids.data_ptr(), len(ids)
    check_rows(kernel.add_rows(*place, values.data_ptr(), each, times * scale), ids, D)


def adagrad_rows(table: Tensor, squares: Tensor, gradient: RowValues, lr: float) -> None:
    """Take a step of row-wise Adagrad, which keeps one number a row, squares (D,).

    For g_w the sum of all that belongs to row w: s_w += mean(g_w²), then row_w −= lr · g_w / (√s_w + 1e-10).
    """
    (D, size), (ids, values, each, scale) = table.shape, gradient
    kernel = _kernel_for(table, ids, values, each) if plain(squares) else None
    if kernel is None or squares.dtype != table.dtype or squares.shape != (D,) or not squares.is_contiguous():
        words, where = torch.unique(ids.to(torch.int64), return_inverse=True)
        summed = values.new_zeros(len(words), size).index_add_(0, where, gradient.spread(), alpha=scale)
        grown = squares.index_select(0, words).add_(summed.square().mean(1))
        squares.index_copy_(0, words, grown)
        table.index_add_(0, words, summed.div_(grown.sqrt_().add_(ADAGRAD_EPSILON)[:, None]).to(table.dtype), alpha=-lr)
        return
    ids, values, n = listed(ids), values.contiguous(), ids.shape[0]
    slots = 1 << (2 * n).bit_length()
    links, sums = ids.new_empty(2 * n + slots), values.new_empty(2, size)
    place = table.data_ptr(), D, size, ids.data_ptr(), n
    numbers = values.data_ptr(), each, scale, squares.data_ptr(), lr, ADAGRAD_EPSILON
    check_rows(kernel.adagrad_rows(*place, *numbers, links.data_ptr(), slots, sums.data_ptr()), ids, D)


def _kernel_for(table: Tensor, ids: Tensor, values: Tensor | None = None, each: int = 1) -> Kernel | None:
    """Return the compiled code if it can do it: one dtype, shapes that fit, the table in one piece."""
    if not (table.is_contiguous() and plain(ids)):
        return None
    if values is not None:
        alike = plain(values) and values.dtype == table.dtype
        if not alike or values.shape != (ids.shape[0] // each, table.shape[1]):
            return None
    return kernel_for(table)


def listed(ids: Tensor) -> Tensor:
    """Return ids as compiled code reads them: int64, one after the other in memory."""
    return ids.to(torch.int64).contiguous()


def check_rows(wrong: int, ids: Tensor, D: int) -> None:
    """Raise for the place in ids that compiled code found to be no row; it says −1 where all are."""
    if wrong >= 0:
        raise IndexError(f"row {int(ids[wrong])} of a table that has {D}")
