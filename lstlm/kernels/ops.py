"""One function an operation: it makes room for the results and calls the compiled form or the torch form.

`impl` names the form, "native" or "torch"; "auto" takes the compiled one for float32 and float64 on the CPU where it
was built. Sizes, types and strides are checked where compiled code is entered, `native/boundary.h`; an id that is no
row raises IndexError with nothing changed. On devices other than the CPU no function reads a number on the host.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, get_num_threads

from lstlm.kernels import choice, layer_reference, reference
from lstlm.kernels.choice import Impl, native_for
from lstlm.kernels.targets import Targets

ACTIVATIONS = ("identity", "tanh", "relu")
ADAGRAD_EPSILON = 1e-10
LINE_NUMBERS = 16  # float32 in a cache line; float64 has two lines, so that converting a layer keeps its shapes
AT_ONCE = 64  # rows that repair_rows takes at once, as in native/common.h


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
        return reference.spread(self.values, self.each)


def aligned_width(columns: int) -> int:
    """Return how many columns to keep room for, so that every row starts at a cache line."""
    return -(-columns // LINE_NUMBERS) * LINE_NUMBERS


def aligned(like: Tensor, rows: int, columns: int) -> Tensor:
    """Return an empty (rows,columns), of the dtype and on the device of `like`, whose rows start at cache lines.

    A product is written into such memory up to a third faster than into rows of 300 floats: half of those start in the
    middle of a cache line.
    """
    return like.new_empty_strided((rows, columns), (aligned_width(columns), 1))


# ---- ids and rows ----------------------------------------------------------------------------------------------------
def outside(ids: Tensor, rows: int) -> int | None:
    """Return one of the ids, of any shape, that is not one of a table of so many rows; None where all are.

    None at once on devices other than the CPU: they look at ids themselves when they read by them.
    """
    if not ids.is_cpu or ids.numel() == 0:
        return None
    if choice.native is not None and type(ids) is Tensor:
        listed = ids if ids.dtype == torch.int64 and ids.is_contiguous() else _listed(ids)
        wrong = choice.native.outside(listed, rows)
        return None if wrong < 0 else int(ids.reshape(-1)[wrong])
    low, high = (int(extreme) for extreme in ids.aminmax())
    return low if low < 0 else high if high >= rows else None


def read_rows(
    table: Tensor, ids: Tensor, each: int = 1, scale: float = 1.0, *, gaps: bool = False, impl: Impl = "auto"
) -> Tensor:
    """Return (n/each,size): scale times the sum of every `each` rows of table (D,size), ids (n,).

    With `gaps` they may start at cache lines, for products that write into them.
    """
    if (code := _for_rows(impl, table)) is None:
        return reference.read_rows(table, ids, each, scale)
    n, size = ids.shape[0] // each, table.shape[1]
    out = aligned(table, n, size) if gaps else table.new_empty(n, size)
    code.sum_rows(table, _listed(ids), each, scale, out, get_num_threads())
    return out


def write_rows(table: Tensor, ids: Tensor, values: Tensor, *, impl: Impl = "auto") -> None:
    """table[ids] ← values (n,size); no id may occur twice."""
    if (code := _for_rows(impl, table)) is None:
        table.index_copy_(0, ids, values)
    else:
        code.write_rows(table, _listed(ids), _rows(values), get_num_threads())


def add_rows(table: Tensor, change: RowValues, times: float = 1.0, *, impl: Impl = "auto") -> None:
    """Add `times` what belongs to each row to it; what belongs to a repeated id adds up."""
    ids, values, each, scale = change
    if (code := _for_rows(impl, table)) is None or values.dtype != table.dtype:
        reference.add_rows(table, ids, values, each, times * scale)
    else:
        code.add_rows(table, _listed(ids), _rows(values), each, times * scale)


def adagrad_rows(table: Tensor, squares: Tensor, gradient: RowValues, lr: float, *, impl: Impl = "auto") -> None:
    """Take a step of row-wise Adagrad; squares (D,) is its memory, one number a row.

    For g_w the sum of all that belongs to row w: s_w += mean(g_w²), then row_w −= lr · g_w / (√s_w + 1e-10).
    """
    ids, values, each, scale = gradient
    code = _for_rows(impl, table)
    if code is None or values.dtype != table.dtype or squares.dtype != table.dtype:
        reference.adagrad_rows(table, squares, ids, values, each, scale, lr, ADAGRAD_EPSILON)
        return
    n, threads = ids.shape[0], get_num_threads()
    links = ids.new_empty(2 * n + (1 << (2 * n).bit_length()), dtype=torch.int64)
    scratch = links, aligned(values, 2 * threads, table.shape[1])
    code.adagrad_rows(table, _listed(ids), _rows(values), each, scale, squares, lr, ADAGRAD_EPSILON, *scratch, threads)


def adagrad_table(
    table: Tensor,
    bias: Tensor | None,
    squares: Tensor,
    G: Tensor,
    g: Tensor,
    lr: float,
    ids: Tensor | None = None,
    *,
    impl: Impl = "auto",
) -> None:
    """Do the same for rows of a table (D,size) and, unless None, their biases (D,), with gradients G (n,size), g (n,).

    The rows are `ids` (n,), without repetition, or all of them where None.
    """
    if (code := _for_rows(impl, table)) is None:
        rows = slice(None) if ids is None else ids
        reference.adagrad_table((table, bias, squares), (G, g), rows, lr, ADAGRAD_EPSILON)
    else:
        ids = None if ids is None else _listed(ids)
        code.adagrad_table(table, ids, bias, squares, _rows(G), g, lr, ADAGRAD_EPSILON, get_num_threads())


# ---- bags of rows ----------------------------------------------------------------------------------------------------
def dot_bags(rows: Tensor, targets: Targets, X: Tensor, *, impl: Impl = "auto") -> Tensor:
    """Return for every pair its row times its example, rows[place]·X[example] (n,) in float64; rows (u,d), X (m,d)."""
    if (code := native_for(impl, rows)) is None:
        return reference.dot_bags(rows, targets, X)
    out = rows.new_empty(targets.n, dtype=torch.float64)
    code.dot_bags(rows, *targets.bags, X, out)
    return out


def sum_bags(rows: Tensor, targets: Targets, weights: Tensor, *, impl: Impl = "auto") -> Tensor:
    """Return (m,d): for each example the sum of weights · rows[place] over its pairs; rows (u,d), weights (n,)."""
    if (code := native_for(impl, rows)) is None:
        return reference.sum_bags(rows, targets, weights)
    out = aligned(rows, targets.m, rows.shape[1])
    code.sum_bags(rows, *targets.bags, weights, out)
    return out


def add_bags(
    rows: Tensor, targets: Targets, X: Tensor, weights: Tensor, times: float = 1.0, *, impl: Impl = "auto"
) -> None:
    """rows[place] += times · weights ∘ X[example], pair by pair; rows (u,d), X (m,d), weights (n,)."""
    if (code := native_for(impl, rows)) is None:
        reference.add_bags(rows, targets, X, weights, times)
    else:
        code.add_bags(rows, *targets.bags, X, weights, times)


def _for_rows(impl: Impl, table: Tensor) -> Any:
    """Return the compiled functions for a table whose rows lie in one piece."""
    return native_for(impl, table) if table.stride(1) == 1 else None


def _listed(ids: Tensor) -> Tensor:
    """Return ids as compiled code reads them: int64, one after the other in memory."""
    if ids.dtype == torch.int64 and ids.dim() == 1 and ids.is_contiguous():
        return ids
    return ids.to(torch.int64).reshape(-1).contiguous()


def _rows(values: Tensor) -> Tensor:
    return values if values.stride(1) == 1 else values.detach().contiguous()


# ---- products --------------------------------------------------------------------------------------------------------
def gemm(
    A: Tensor, B: Tensor, out: Tensor | None = None, *, alpha: float = 1.0, beta: float = 0.0, impl: Impl = "auto"
) -> Tensor:
    """Return alpha · AB + beta · out, in `out`, or in new memory whose rows start at cache lines."""
    out = aligned(A, A.shape[0], B.shape[1]) if out is None else out
    code = native_for(impl, A) if out.stride(1) == 1 and A.numel() and B.numel() else None
    if code is not None:
        code.gemm(A, B, out, alpha, beta, get_num_threads())
        return out
    return torch.addmm(out, A, B, beta=beta, alpha=alpha, out=out) if beta or alpha != 1 else torch.mm(A, B, out=out)


def cross_entropy(
    scores: Tensor,
    ids: Tensor,
    t: Tensor,
    bias: Tensor | None = None,
    scale: float = 1.0,
    upstream: Tensor | None = None,
    *,
    impl: Impl = "auto",
) -> Tensor:
    """Return −Σₖ tₖ log softmax(scores + scale·bias)[idₖ] (m,), and overwrite scores (m,n) by the gradient of it.

    ids and t (m,K), bias (n,); the gradient is times upstream (m,), 1 where None.
    """
    code = native_for(impl, scores) if scores.stride(1) == 1 and scores.numel() else None
    if code is None:
        return reference.cross_entropy(scores, ids, t, bias, scale, upstream)
    losses = scores.new_empty(len(scores))
    code.cross_entropy(scores, ids.contiguous(), t.contiguous(), bias, scale, upstream, losses, get_num_threads())
    return losses


def sum_all(x: Tensor, *, impl: Impl = "auto") -> float:
    """Return the sum of x (n,) or (n,k), a number on the host; compiled code adds up in float64."""
    if (code := native_for(impl, x)) is None:
        return float(x.sum())
    x = x if x.dim() == 2 else x.view(1, -1)
    x = x if x.stride(1) == 1 else x.T
    return code.sum_all(x) if x.stride(1) == 1 else float(x.sum())


# ---- hidden layers ---------------------------------------------------------------------------------------------------
def hidden_forward(
    x: Tensor, weights: list[Tensor], biases: list[Tensor], activation: str, *, impl: Impl = "auto"
) -> list[Tensor]:
    """Return Y_l = f(A_l Y_(l−1) + a_l 1ᵀ) (units,m) of every layer, Y_0 = xᵀ, A (units,inputs), a (units,)."""
    if (code := native_for(impl, x)) is None:
        return layer_reference.hidden_forward(x, weights, biases, activation)
    results = [x.new_empty(A.shape[0], x.shape[0]) for A in weights]
    code.layers_forward(x, ACTIVATIONS.index(activation), weights, biases, results, get_num_threads())
    return results


def hidden_backward(
    x: Tensor,
    weights: list[Tensor],
    results: list[Tensor],
    dY: Tensor,
    activation: str,
    gradients: list[Tensor],
    dx: Tensor | None,
    *,
    impl: Impl = "auto",
) -> None:
    """Fill the gradients of weights and biases in turn and, unless None, that of x, given dY (units,m) of the last."""
    if (code := native_for(impl, x)) is None:
        layer_reference.hidden_backward(x, weights, results, dY, activation, gradients, dx)
        return
    scratch = x.new_empty(2, max([A.shape[0] for A in weights]), x.shape[0])
    dY = dY if dY.stride(1) == 1 else dY.contiguous()
    number, dA, da = ACTIVATIONS.index(activation), gradients[::2], gradients[1::2]
    code.layers_backward(x, number, weights, results, dY, dA, da, scratch, dx, get_num_threads())


def adagrad(
    parameters: list[Tensor],
    gradients: list[Tensor],
    squares: list[Tensor],
    counts: list[Tensor],
    lr: float,
    epsilon: float,
    *,
    impl: Impl = "auto",
) -> None:
    """Take a step of Adagrad for each parameter: squares += g², x −= lr · g / (√squares + epsilon).

    counts, a number in float32 each, say how many steps were taken.
    """
    if (code := native_for(impl, parameters[0])) is None:
        layer_reference.adagrad(parameters, gradients, squares, counts, lr, epsilon)
    else:
        code.adagrad(parameters, gradients, squares, counts, lr, epsilon, get_num_threads())


def adam(
    parameters: list[Tensor],
    gradients: list[Tensor],
    means: list[Tensor],
    squares: list[Tensor],
    counts: list[Tensor],
    rates: tuple[float, float, float, float],
    *,
    impl: Impl = "auto",
) -> None:
    """Take a step of Adam for each parameter, as torch.optim.Adam does; rates are lr, β₁, β₂ and ε.

    mean ← β₁ mean + (1 − β₁) g, square ← β₂ square + (1 − β₂) g²; x −= lr · mean / (√square + ε), each over 1 − βᵗ,
    where counts, a number in float32 each, become t, from 1.
    """
    if (code := native_for(impl, parameters[0])) is None:
        layer_reference.adam(parameters, gradients, means, squares, counts, *rates)
    else:
        code.adam(parameters, gradients, means, squares, counts, *rates, get_num_threads())


def form_for(*tensors: Tensor) -> Impl:
    """Return "auto" for tensors of one dtype without gaps in memory, which compiled code can read, else "torch"."""
    dtype = tensors[0].dtype
    fits = [x.dtype == dtype and x.is_contiguous() and x.numel() > 0 for x in tensors]
    return "auto" if all(fits) else "torch"
