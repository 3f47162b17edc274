"""What the factored and the naive layer share of learning: the loss, autograd, the pending step and its update."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lstlm.errors import ConfigError, NumericsError
from lstlm.spherical.arguments import positive_definite, without_autocast
from lstlm.spherical.compiled import CompiledLowRank
from lstlm.spherical.host import Numbers, from_host, rounded, to_host
from lstlm.spherical.losses import Partials, SphericalLoss
from lstlm.spherical.pending import Losses, Pending, Step, gradient_of
from lstlm.spherical.reading import SphericalReader
from lstlm.spherical.shrink import LearningRateTooLarge, Shrink


class SphericalHead(SphericalReader):
    """A spherical loss over a linear output layer whose weights `state` holds."""

    def __init__(self, hidden: int, vocab: int, loss: SphericalLoss | None, bias: bool) -> None:
        super().__init__(hidden, vocab, loss, bias)
        self._pending: list[Pending] = []

    # ---- forward and backward ------------------------------------------------------------------------------------
    def forward(
        self, h: Tensor, target_ids: Tensor, target_values: Tensor | None = None, weight: Tensor | None = None
    ) -> Tensor:
        """Return the losses (m,) of h (m,hidden) for target_ids (m,) or (m,K), target_values like the ids or all ones.

        `weight` (m,) multiplies the losses. Autograd reaches h alone; the weights wait for `update`.
        """
        if self._unusual(h):
            return self._by_rows(h, target_ids, target_values, weight)
        ids, values = self._check(h, target_ids, target_values, weight)
        if torch.is_grad_enabled() and not h.requires_grad:
            h = h.detach().requires_grad_()  # fixed features: the weights of this layer learn all the same
        losses: Tensor = Losses.apply(h, self, ids, values)  # type: ignore[no-untyped-call]
        return losses if weight is None else losses * weight

    def value_and_grad(
        self, h: Tensor, target_ids: Tensor, target_values: Tensor | None = None, weight: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the losses (m,) and the gradient to h (m,hidden) of Σ weight·loss, weight (m,), the mean where None.

        That is forward and backward less the cost of autograd, about a tenth of a step. `update` comes next, and
        `h.backward(gradient)` goes on to the layers below.
        """
        ids, values = self._check(h, target_ids, target_values, weight)
        with torch.no_grad():
            step, values = self._step(h, ids, values)
            m = step.ids.shape[0]
            upstream = np.full(m, 1 / m) if weight is None else self._upstream(weight)
            if isinstance(step, CompiledLowRank):
                found = step.differentiate(self.loss, to_host(values), upstream)
                if found is not None:
                    self.await_update(Pending(step, values, upstream=upstream))
                    return found[0], found[1][:, : self.hidden]
            pending, losses = self._forward(step, values)
            return self._own(from_host(losses, h)), self._backward(pending, upstream)

    def learn(
        self,
        h: Tensor,
        target_ids: Tensor,
        lr: float,
        target_values: Tensor | None = None,
        weight: Tensor | None = None,
        *,
        weight_decay: float = 0.0,
    ) -> tuple[Tensor, Tensor]:
        """Go through `value_and_grad` and `update` at once; return what the first returns."""
        self._pending.clear()
        result = self.value_and_grad(h, target_ids, target_values, weight)
        self.update(lr, weight_decay)
        return result

    def _step(self, h: Tensor, ids: Tensor, values: Tensor) -> tuple[Step, Tensor]:
        """Return a step for the global minibatch, and its target values (m,K)."""
        H, ids, values = self._gather(self._with_bias(h), ids, values)
        return self._begin(H, ids), values

    @without_autocast
    @np.errstate(all="ignore")
    def _forward(self, step: Step, values: Tensor) -> tuple[Pending, Numbers]:
        """Return what waits for `_backward`, and the losses (m,)."""
        partials = self._partials(step, values)
        return Pending(step, values, partials), rounded(partials.value, step.H)

    @without_autocast
    def _backward(self, pending: Pending, upstream: Numbers) -> Tensor:
        """Note the upstream gradient (m,), of the global minibatch, and return that of h (m,hidden)."""
        step = pending.step
        if step.version != step.state.version:
            raise NumericsError("the weights have changed since forward(); call forward() again before backward()")
        if pending.upstream is not None:
            raise NumericsError("backward() twice through one forward(); call forward() again")
        assert pending.partials is not None
        pending.upstream = upstream
        grad_H = step.backward(gradient_of(pending.partials, upstream, step.H))
        self.await_update(pending)
        return grad_H[:, : self.hidden]

    def _upstream(self, upstream: Tensor) -> Numbers:
        """Return the upstream gradient of the global minibatch, given that of the examples that are here."""
        return to_host(self._gather_upstream(upstream)).copy()

    def _partials(self, step: Step, values: Tensor) -> Partials:
        """Return the loss and its partial derivatives in float64, with the prior taken into account."""
        q, s, o = (to_host(x).astype(np.float64) for x in step.outputs())
        state = step.state
        p = None if state.p is None else to_host(state.p[step.ids]).astype(np.float64)
        partials = self.loss.tilted(q, s, o, to_host(values), state.p_norm2, p)
        if not math.isfinite((q + partials.value).sum()):
            if not np.isfinite(q).all():
                raise NumericsError("the outputs are not finite: h is not finite or too large; check the layers below")
            raise NumericsError(
                "the loss is not finite: the targets are too large, or (Z-loss) all outputs are equal, σ = 0; "
                "check target_values, and that init_scale is above 0"
            )
        return partials

    # ---- update --------------------------------------------------------------------------------------------------
    @torch.inference_mode()
    @without_autocast
    def update(self, lr: float, weight_decay: float = 0.0, preconditioner: Tensor | None = None) -> None:
        """W ← (1 − lr·weight_decay) W − lr ∇W P, for exactly the upstream gradients that backward() delivered.

        Several backward passes since the last update count as one larger minibatch. P (d,d) is symmetric and positive,
        d = hidden (+1 with bias). A learning rate that is too large for the minibatch raises NumericsError, which names
        the largest stable one, and changes nothing.
        """
        if not (math.isfinite(lr) and lr > 0):
            raise ConfigError(f"lr = {lr}: must be finite and above 0")
        rho = 1 - lr * weight_decay
        if not 0 < rho <= 1:
            raise ConfigError(f"weight_decay = {weight_decay} with lr = {lr}: needs 0 ≤ lr·weight_decay < 1")
        step = self._pending_step()
        if preconditioner is not None:
            preconditioner = positive_definite(preconditioner, step.H)
        # W' = ρW − ηE = ρ(W − (η/ρ)E): the plain step with lr/ρ, then everything times ρ.
        try:
            shrink = step.update(lr / rho, preconditioner)
        except LearningRateTooLarge as error:
            raise LearningRateTooLarge(lr, error.limit / (1 + error.limit * weight_decay)) from None
        self._pending.clear()
        if rho < 1:
            self.state.scale_(rho)
        self._after_update(Shrink(1 - rho * (1 - shrink.shrink), shrink.growth))

    def await_update(self, pending: Pending) -> None:
        """Keep a minibatch that has gone forward and backward for the next `update`."""
        self._pending.append(pending)

    def discard(self) -> None:
        """Forget the backward passes since the last update."""
        self._pending.clear()

    def _after_update(self, shrink: Shrink) -> None:
        """Called with the bounds on what the update did to U."""

    def _pending_step(self) -> Step:
        """Return the step of the backward passes since the last update."""
        if not self._pending:
            raise NumericsError("update() needs a backward() first; one update() serves the backward passes before it")
        if any(pending.step.version != self.state.version for pending in self._pending):
            self._pending.clear()
            raise NumericsError("the weights have changed since forward(); call forward() and backward() again")
        if len(self._pending) == 1:
            return self._pending[0].step
        H = torch.cat([pending.step.H for pending in self._pending])
        merged = self._begin(H, torch.cat([pending.step.ids for pending in self._pending]))
        partials = self._partials(merged, torch.cat([pending.values for pending in self._pending]))
        upstream = [pending.upstream for pending in self._pending if pending.upstream is not None]
        merged.backward(gradient_of(partials, np.concatenate(upstream), H))
        return merged

    @torch.inference_mode()
    def grad_norm(self) -> float:
        """Return ‖∇W‖_F of what backward() delivered since the last update; nan where it delivered nothing."""
        return self._pending_step().grad_norm() if self._pending else math.nan

    # ---- hooks for a layer that is spread over processes; here everything is at home -------------------------------
    def _gather(self, H: Tensor, ids: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the global minibatch H (m,d), ids and values (m,K), given the examples that are here."""
        return H, ids, values

    def _gather_upstream(self, upstream: Tensor) -> Tensor:
        """Return the upstream gradient (m,) of the global minibatch."""
        return upstream

    def _own(self, x: Tensor) -> Tensor:
        """Return what belongs to the examples that are here, of x (m,) for the global minibatch."""
        return x

    def __getstate__(self) -> dict[str, Any]:
        """A pending step belongs to an autograd graph: a copy starts without one."""
        return {**self.__dict__, "_pending": []}
