"""What all forms of a step share: one minibatch on its way through `read`, `backward` and `update`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lstlm.errors import NumericsError
from lstlm.kernels.targets import Targets
from lstlm.spherical.shrink import Shrink


class Step:
    """One minibatch: h (m,hidden), its targets, n pairs, and what is learned of them on the way."""

    outputs: Tensor  # (2m+n,) in float64: q = ‖o‖², s = p·o, and the outputs o at the targets
    partials: Tensor  # (3m+n,): the losses, and their derivatives dq, ds, do, times what came from upstream
    uses_sum = True  # False where the loss ignores s, so that ds is 0

    def __init__(self, state: Any, h: Tensor, targets: Targets) -> None:
        self.state, self.targets = state, targets
        self.h = h.detach() if h.requires_grad else h
        self.p = None if state.p is None else state.p[targets.ids]
        self.version = state.version

    def read(self) -> None:
        """Compute `outputs`."""
        raise NotImplementedError

    def backward(self, partials: Tensor) -> Tensor:
        """Keep the partials, and return ∇H = 2 dq ∘ HQ + YW + ds ⊗ w̄  (m,d), which the caller may change."""
        raise NotImplementedError

    def update(self, eta: float) -> Shrink:
        """Apply W ← W − η ∇W to the state; raises NumericsError, changing nothing, when η is above its limit."""
        raise NotImplementedError

    def grad_norm(self) -> float:
        """Return ‖∇W‖_F."""
        raise NotImplementedError

    @property
    def q(self) -> Tensor:
        return self.outputs[: self.targets.m]

    @property
    def s(self) -> Tensor:
        return self.outputs[self.targets.m : 2 * self.targets.m]

    @property
    def o(self) -> Tensor:
        return self.outputs[2 * self.targets.m :]

    @property
    def losses(self) -> Tensor:
        return self.partials[: self.targets.m]

    @property
    def dq(self) -> Tensor:
        return self.partials[self.targets.m : 2 * self.targets.m]

    @property
    def ds(self) -> Tensor | None:
        return self.partials[2 * self.targets.m : 3 * self.targets.m] if self.uses_sum else None

    @property
    def do(self) -> Tensor:
        """∂ℓ/∂o (n,)."""
        return self.partials[3 * self.targets.m :]

    def check_state(self, table: Tensor) -> None:
        """Raise if the weights that `read` saw are not those of the state any more."""
        if self.state.table is not table:
            raise NumericsError("the weights were replaced since forward(); call forward() and backward() again")


def with_bias(h: Tensor, d: int) -> Tensor:
    """Return H (m,d): h (m,hidden) and the constant feature, where the layer has a bias."""
    return torch.nn.functional.pad(h, (0, d - h.shape[1]), value=1.0) if h.shape[1] < d else h
