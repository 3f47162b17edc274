"""The naive layer: W stored in full, every output computed. O(Dmd) a step; the oracle, and the baseline to beat.

`Dense` is what one would write first: O = H Wᵀ, its gradient, and two more products, each a pass over all of W and all
of O. `Blocked` walks W in chunks that stay in the cache: O and H-gradient products in one pass, the update in another.
`squared_error_step` does all three products in one pass, which squared error alone allows (its gradient needs no q).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from lstlm.kernels.ops import gemm, sum_bags
from lstlm.kernels.targets import Targets
from lstlm.spherical.shrink import Shrink
from lstlm.spherical.steps.common import Step, with_bias

CHUNK_ROWS = 2048  # rows of W in one block: 2.4 MB at d = 300 in float32, about what a core's cache holds


class DenseState(nn.Module):
    """W (D,d) itself, with the interface of FactoredState; p as there."""

    W: Tensor
    p: Tensor | None

    def __init__(self, W: Tensor, p: Tensor | None = None, *, blocked: bool = False) -> None:
        super().__init__()
        self.register_buffer("W", W)
        self.register_buffer("p", None if p is None else p.to(W))
        self.p_norm2 = float(len(W)) if p is None else float(p.double().square().sum())
        self.blocked = blocked
        self.version = 0

    @property
    def D(self) -> int:
        return self.W.shape[0]

    @property
    def d(self) -> int:
        return self.W.shape[1]

    @property
    def like(self) -> Tensor:
        return self.W

    def begin(self, h: Tensor, targets: Targets) -> Step:
        """Start a minibatch h (m,hidden) with its targets."""
        return (Blocked if self.blocked else Dense)(self, h, targets)

    def outputs_of(self, H: Tensor) -> Callable[[slice], Tensor]:
        return lambda rows: gemm(H, self.W[rows].T)

    def p_of(self, p: Tensor, ids: Tensor | slice) -> Tensor:
        return p[ids]

    def materialise(self) -> Tensor:
        return self.W.clone()

    def reset(self, W: Tensor) -> None:
        self.W.copy_(W)
        self.version += 1

    def scale_(self, rho: float) -> None:
        self.W *= rho

    def _load_from_state_dict(self, *args: object, **kwargs: object) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self.version += 1

    def squared_norm(self) -> float:
        """Return ‖W‖²_F."""
        return float(torch.linalg.vector_norm(self.W, dtype=torch.float64)) ** 2


class Dense(Step):
    """One minibatch through the naive layer, as one would write it first."""

    def read(self) -> None:
        """Keep all outputs."""
        self.H = with_bias(self.h, self.state.d)
        O = self.O = self.H @ self.state.W.T  # noqa: E741  (the paper's letter)
        s = O.sum(1) if self.state.p is None else O @ self.state.p
        o = O[self.targets.example, self.targets.ids]
        self.outputs = torch.cat([torch.linalg.vecdot(O, O), s, o]).double()

    def backward(self, partials: Tensor) -> Tensor:
        """Return ∇H = ∇O W with ∇O = 2 dq ∘ O + ds ⊗ p + Y."""
        self.partials = partials
        dO = self.O.mul_((2 * self.dq)[:, None])
        if self.ds is not None:
            dO = dO.add_(self.ds[:, None]) if self.state.p is None else dO.addr_(self.ds, self.state.p)
        # accumulate: a word that is the target twice, even within one example, must count twice
        self.dO = dO.index_put_((self.targets.example, self.targets.ids), self.do, accumulate=True)
        grad_H: Tensor = self.dO @ self.state.W
        return grad_H

    def grad_norm(self) -> float:
        """Return ‖∇W‖_F = ‖∇OᵀH‖_F."""
        return math.sqrt(max(0.0, float(((self.dO @ self.dO.T) * (self.H @ self.H.T)).sum())))

    def update(self, eta: float) -> Shrink:
        """W ← W − η ∇OᵀH."""
        self.state.W.addmm_(self.dO.T, self.H, alpha=-eta)
        self.state.version += 1
        return Shrink(0.0, 0.0)


class Blocked(Step):
    """The same minibatch, chunk by chunk of W; Oᵀ (D,m) is kept between the two passes."""

    def read(self) -> None:
        """Compute the outputs; OW and w̄ come with the same pass."""
        H = self.H = with_bias(self.h, self.state.d)
        (D, d), m, p = self.state.W.shape, len(H), self.state.p
        self.O_T = H.new_empty(D, m)
        self.OW, self.w_bar, q = H.new_zeros(m, d), H.new_zeros(d), H.new_zeros(m)
        for start in range(0, D, CHUNK_ROWS):
            rows = slice(start, start + CHUNK_ROWS)
            W, O_T = self.state.W[rows], self.O_T[rows]
            torch.mm(W, H.T, out=O_T)
            self.OW.addmm_(O_T.T, W)
            q += torch.linalg.vecdot(O_T, O_T, dim=0)
            self.w_bar += W.sum(0) if p is None else p[rows] @ W
        o = self.O_T[self.targets.ids, self.targets.example]
        self.outputs = torch.cat([q, H @ self.w_bar, o]).double()

    def backward(self, partials: Tensor) -> Tensor:
        """Return ∇H = 2 dq ∘ OW + YW + ds ⊗ w̄."""
        self.partials = partials
        YW = sum_bags(self.state.W[self.targets.words], self.targets, self.do)
        grad_H: Tensor = YW.addcmul_(self.OW, self.dq[:, None], value=2)
        return grad_H if self.ds is None else grad_H.addr_(self.ds, self.w_bar)

    def grad_norm(self) -> float:
        """Return ‖∇W‖_F, by a plain pass."""
        dense = Dense(self.state, self.h, self.targets)
        dense.uses_sum = self.uses_sum
        dense.read()
        dense.backward(self.partials)
        return dense.grad_norm()

    def update(self, eta: float) -> Shrink:
        """W ← W − η ∇OᵀH, chunk by chunk, then the targets' rows."""
        H, state = self.H, self.state
        scaled = H * (2 * self.dq)[:, None]
        common = None if self.ds is None else eta * (self.ds @ H)
        for start in range(0, state.D, CHUNK_ROWS):
            rows = slice(start, start + CHUNK_ROWS)
            W = state.W[rows].addmm_(self.O_T[rows], scaled, alpha=-eta)
            if common is not None:
                W -= common if state.p is None else state.p[rows, None] * common
        state.W.index_add_(0, self.targets.ids, self.targets.spread(H) * self.do[:, None], alpha=-eta)
        state.version += 1
        return Shrink(0.0, 0.0)


def squared_error_step(W: Tensor, H: Tensor, ids: Tensor, values: Tensor, eta: float) -> tuple[Tensor, Tensor]:
    """One whole SGD step of ‖HWᵀ − Y‖² in a single pass over W; return the losses (m,) and ∇H (m,d).

    The ids (m,K) of one example must be distinct.
    """
    YW = (values[..., None] * W[ids]).sum(1)
    losses = values.square().sum(1) - 2 * torch.linalg.vecdot(H, YW)
    grad_H = torch.zeros_like(H)
    for start in range(0, len(W), CHUNK_ROWS):
        chunk = W[start : start + CHUNK_ROWS]
        O_T = chunk @ H.T
        losses += torch.linalg.vecdot(O_T, O_T, dim=0)
        grad_H.addmm_(O_T.T, chunk)
        chunk.addmm_(O_T, H, alpha=-2 * eta)
    W.index_add_(0, ids.reshape(-1), (values[..., None] * H[:, None]).flatten(0, 1), alpha=2 * eta)
    return losses, (grad_H - YW).mul_(2)
