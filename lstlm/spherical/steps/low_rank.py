"""`LowRank`: the form of the step for m below d, without a d×d temporary.

Its tensors (m,d), but for rows of V and J, are kept as (d,m), examples as columns in memory: so the large products are
written, and the element-wise work between them is done, without turning anything around.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lstlm.kernels import reference, step_ops
from lstlm.spherical.shrink import Shrink, invert_shrink
from lstlm.spherical.steps.common import Step


class LowRank(Step):
    """7md² + 4m²d multiply-adds and one m×m inverse."""

    def read(self) -> None:
        state = self.state
        self.tables, impl = state.tables, state.impl
        self.table = self.tables.table
        self.rows = state.read(self.targets.words)
        found = step_ops.low_rank_outputs(self.table, self.h, self.rows, self.targets, self.p, impl=impl)
        self.HT, self.products, self.outputs = found

    def backward(self, partials: Tensor) -> Tensor:
        self.partials = partials
        return step_ops.low_rank_backward(
            self.table, self.rows, self.targets, self.p, partials, self.products, impl=self.state.impl
        ).T

    def update(self, eta: float) -> Shrink:
        state, impl, dq = self.state, self.state.impl, self.dq
        self.check_state(self.table)
        shrinking = step_ops.low_rank_shrink(self.HT, dq, eta, impl=impl)
        inverse, shrink = invert_shrink(shrinking, dq, eta)
        allowed = None if shrink.allowed is None else shrink.allowed & torch.isfinite(self.partials.sum())
        J = step_ops.low_rank_update(
            self.tables,
            self.targets,
            self.HT,
            self.partials,
            self.products,
            state.p_norm2,
            shrinking,
            eta,
            inverse,
            allowed,
            impl=impl,
        )
        state.add_bags(self.targets, self.rows, J, self.do, -eta)  # V − η YᵀJ
        state.count_update()
        return shrink if allowed is None else shrink._replace(allowed=allowed)

    def grad_norm(self) -> float:
        """Return ‖∇W‖_F, from ‖EH‖² = tr(EᵀE HHᵀ) at η = 1.  O(m²d)."""
        targets, HT = self.targets, self.HT
        XT, Yp = self.products[self.state.at.X], targets.total(self.do if self.p is None else self.do * self.p)
        half = reference.half_gram(XT, HT, self.partials, targets, Yp, self.state.p_norm2)
        return math.sqrt(max(0.0, 2 * float((half * (HT.T @ HT)).sum())))
