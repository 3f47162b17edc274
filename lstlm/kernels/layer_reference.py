"""The torch forms of what learns below the output layer: hidden layers and the rules that move them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


@torch.no_grad()
def hidden_forward(x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor], activation: str) -> list[Tensor]:
    """Return Y_l = f(A_l Y_(l−1) + a_l 1ᵀ) (units,m) of every layer, Y_0 = xᵀ.

    Examples are columns in memory: the products are written faster so, and the factored layer, which keeps its
    minibatch in the same way, neither turns h around nor its gradient.
    """
    columns = [x.T]
    for A, a in zip(weights, biases, strict=True):
        Z = torch.addmm(a[:, None], A, columns[-1])
        columns.append(Z.tanh_() if activation == "tanh" else Z.relu_() if activation == "relu" else Z)
    return columns[1:]


@torch.no_grad()
def hidden_backward(
    x: Tensor,
    weights: Sequence[Tensor],
    results: Sequence[Tensor],
    dY: Tensor,
    activation: str,
    gradients: list[Tensor],
    dx: Tensor | None,
) -> None:
    """Fill the gradients of weights and biases in turn and, unless None, that of x, given dY (units,m)."""
    columns = [x.T, *results]
    for i, A in reversed([*enumerate(weights)]):
        dZ, Y = dY, columns[i + 1]
        if activation == "tanh":
            dZ = torch.ops.aten.tanh_backward(dY, Y)
        elif activation == "relu":
            dZ = torch.ops.aten.threshold_backward(dY, Y, 0)
        torch.mm(dZ, columns[i].T, out=gradients[2 * i])
        torch.sum(dZ, 1, out=gradients[2 * i + 1])
        if i > 0:
            dY = A.T @ dZ
        elif dx is not None:
            torch.mm(dZ.T, A, out=dx)


@torch.no_grad()
def adagrad(
    parameters: list[Tensor],
    gradients: list[Tensor],
    squares: list[Tensor],
    counts: list[Tensor],
    lr: float,
    epsilon: float,
) -> None:
    for x, g, total, count in zip(parameters, gradients, squares, counts, strict=True):
        count += 1
        total.addcmul_(g, g)
        x.addcdiv_(g, total.sqrt().add_(epsilon), value=-lr)


@torch.no_grad()
def adam(
    parameters: list[Tensor],
    gradients: list[Tensor],
    means: list[Tensor],
    squares: list[Tensor],
    counts: list[Tensor],
    lr: float,
    beta1: float,
    beta2: float,
    epsilon: float,
) -> None:
    for x, g, mean, square, count in zip(parameters, gradients, means, squares, counts, strict=True):
        count += 1
        mean.lerp_(g, 1 - beta1)
        square.mul_(beta2).addcmul_(g, g, value=1 - beta2)
        root = (square / (1 - beta2 ** count.double())).sqrt_()
        x.addcdiv_(mean / (1 - beta1 ** count.double()), root.add_(epsilon), value=-lr)
