"""A minibatch between forward() and update()."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from lstlm.errors import NumericsError
from lstlm.spherical.dense import Blocked, Plain
from lstlm.spherical.host import Numbers, from_host
from lstlm.spherical.losses import Partials
from lstlm.spherical.touched_rows import Gradient, LowRank, Square

if TYPE_CHECKING:
    from lstlm.spherical.head import SphericalHead

Step = LowRank | Square | Plain | Blocked


class Pending:
    """The step, its target values, what backward() needs of the loss, and what it left: the upstream gradient (m,).

    Not the losses: a tensor that autograd returned knows its node, the node this, and nobody would ever let go.
    """

    def __init__(
        self, step: Step, values: Tensor, partials: Partials | None = None, upstream: Numbers | None = None
    ) -> None:
        self.step, self.values, self.partials, self.upstream = step, values, partials, upstream


def gradient_of(partials: Partials, upstream: Numbers, like: Tensor) -> Gradient:
    """Multiply the partial derivatives by the upstream gradient (m,), and round them to the compute dtype."""
    _, dq, ds, do = partials
    with np.errstate(all="ignore"):
        gradient = Gradient(dq * upstream, None if ds is None else ds * upstream, do * upstream[:, None], like)
        total = gradient.dq_host.sum() + gradient.do_host.sum()
    if not math.isfinite(total):
        raise NumericsError(
            f"the gradient of the loss is not finite in {like.dtype}; check the targets and the loss scale"
        )
    return gradient


class Losses(torch.autograd.Function):
    """The losses of a minibatch as a function of h; backward leaves the step with the head for update()."""

    @staticmethod
    def forward(ctx: FunctionCtx, h: Tensor, head: SphericalHead, ids: Tensor, values: Tensor) -> Tensor:
        pending, losses = head._forward(*head._step(h, ids, values))
        ctx.head, ctx.pending = head, pending  # type: ignore[attr-defined]
        return head._own(from_host(losses, h))

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None, None, None]:
        if torch.is_grad_enabled():
            raise NumericsError("the layer has no second derivative; call backward() without create_graph")
        return ctx.head._backward(ctx.pending, ctx.head._upstream(upstream)), None, None, None
