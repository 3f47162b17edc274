"""What the factored and the naive layer share: checks, the loss, autograd, the pending step, and reading."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from lstlm.errors import ConfigError, NumericsError
from lstlm.spherical.arguments import checked_ids, checked_values, merge_repeated, positive_definite, without_autocast
from lstlm.spherical.dense import DenseState
from lstlm.spherical.host import Numbers, from_host, handy, rounded, to_host
from lstlm.spherical.losses import Partials, SphericalLoss, ZLoss
from lstlm.spherical.pending import Losses, Pending, Step, gradient_of
from lstlm.spherical.shrink import LearningRateTooLarge, Shrink
from lstlm.spherical.state import FactoredState
from lstlm.spherical.sweep import Sweep, ranks_of, top_of
from lstlm.spherical.touched_rows import begin

TOPK_ROWS = 2048  # rows of W that topk and rank_of read at a time: scores of 1000 examples stay near the cache


class SphericalHead(nn.Module):
    """A spherical loss over a linear output layer whose weights `state` holds."""

    state: FactoredState | DenseState
    _kept = (0, 1)  # the rows kept here: the first, and every how many; all of them, unless processes share them

    def __init__(self, hidden: int, vocab: int, loss: SphericalLoss | None, bias: bool) -> None:
        super().__init__()
        if hidden < 1 or vocab < 2:
            raise ConfigError(f"hidden = {hidden}, vocab = {vocab}: need hidden ≥ 1 and vocab ≥ 2")
        if not isinstance(loss, SphericalLoss | None):
            raise ConfigError(f"loss = {loss!r}: give a loss object, such as ZLoss() or make_loss('z')")
        self.hidden, self.has_bias = hidden, bias
        self.loss = ZLoss() if loss is None else loss
        self._initial_shape = (vocab, hidden + bias)
        self._pending: list[Pending] = []
        self._ones = torch.ones(0, 0)  # the target values of the last minibatch, where none were given

    @property
    def vocab(self) -> int:
        """The number of outputs D."""
        return self.state.D

    @property
    def normalised(self) -> bool:
        """Whether the loss defines a probability over the vocabulary."""
        return self.loss.normalised

    # ---- forward and backward ------------------------------------------------------------------------------------
    def forward(
        self, h: Tensor, target_ids: Tensor, target_values: Tensor | None = None, weight: Tensor | None = None
    ) -> Tensor:
        """Return the losses (m,) of h (m,hidden) for target_ids (m,) or (m,K), target_values like the ids or all ones.

        `weight` (m,) multiplies the losses. Autograd reaches h alone; the weights wait for `update`.
        """
        ids, values = self._check(h, target_ids, target_values, weight)
        if torch.is_grad_enabled() and not h.requires_grad:
            h = h.detach().requires_grad_()  # fixed features: the weights of this layer learn all the same
        losses: Tensor = Losses.apply(h, self, ids, values)  # type: ignore[no-untyped-call]
        return losses if weight is None else losses * weight

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
        """Go through forward, backward and update at once; return the losses (m,) and the gradient to h (m,hidden).

        Minimises Σ weight·loss, weight (m,), the mean where None: the three calls less the cost of autograd, about a
        tenth of a step. `h.backward(gradient)` goes on to the layers below.
        """
        ids, values = self._check(h, target_ids, target_values, weight)
        self._pending.clear()
        with torch.inference_mode():  # its tensors, which are cheaper, are of no use outside: hence the copies
            pending = self._forward(h, ids, values)
            m = len(pending.step.ids)
            gradient = self._backward(pending, np.full(m, 1 / m) if weight is None else self._upstream(weight))
            self._update(lr, weight_decay)
        return self._own(from_host(pending.partials.value, h)), gradient.clone()

    @without_autocast
    @np.errstate(all="ignore")
    def _forward(self, h: Tensor, ids: Tensor, values: Tensor) -> Pending:
        H, ids, values = self._gather(self._with_bias(h), ids, values)
        step = self._begin(H, ids)
        partials = self._partials(step, values)
        return Pending(step, values, partials._replace(value=rounded(partials.value, h)))

    @without_autocast
    def _backward(self, pending: Pending, upstream: Numbers) -> Tensor:
        """Note the upstream gradient (m,), of the global minibatch, and return that of h (m,hidden)."""
        step = pending.step
        if step.version != step.state.version:
            raise NumericsError("the weights have changed since forward(); call forward() again before backward()")
        if pending.upstream is not None:
            raise NumericsError("backward() twice through one forward(); call forward() again")
        pending.upstream = upstream
        grad_H = step.backward(gradient_of(pending.partials, upstream, step.H))
        self._pending.append(pending)
        return grad_H[:, : self.hidden]

    def _upstream(self, upstream: Tensor) -> Numbers:
        """Return the upstream gradient of the global minibatch, given that of the examples that are here."""
        return to_host(self._gather_upstream(upstream))

    def _begin(self, H: Tensor, ids: Tensor) -> Step:
        return begin(state, H, ids) if isinstance(state := self.state, FactoredState) else state.begin(H, ids)

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

    def _with_bias(self, h: Tensor) -> Tensor:
        """Return H (m,d), stored with examples as columns while m is below d, which is how LowRank likes it."""
        if len(h) >= self.state.d:
            return torch.nn.functional.pad(h, (0, int(self.has_bias)), value=1.0)
        HT = h.new_empty(self.state.d, len(h))
        columns = handy(HT)
        columns[: self.hidden] = handy(h.detach()).T  # numpy transposes twice as fast
        columns[self.hidden :] = 1
        return HT.T

    def _check(
        self, h: Tensor, target_ids: Tensor, target_values: Tensor | None, weight: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return ids and float64 values, both (m,K), or say what is wrong with the arguments."""
        if h.dim() != 2 or h.shape[1] != self.hidden:
            raise ConfigError(f"h has shape {tuple(h.shape)}; expected (m, {self.hidden})")
        state, m = self.state, len(h)
        like = state.like
        if h.dtype != like.dtype or h.device != like.device:
            raise ConfigError(f"h is {h.dtype} on {h.device}; the layer is {like.dtype} on {like.device}")
        if weight is not None and weight.shape != (m,):
            raise ConfigError(f"weight has shape {tuple(weight.shape)}; expected ({m},)")
        ids = checked_ids(target_ids, m, state.D)
        if target_values is not None:
            return merge_repeated(ids, checked_values(target_values, target_ids, ids))
        if self._ones.shape != ids.shape or self._ones.device != ids.device:
            self._ones = torch.ones(ids.shape, dtype=torch.float64, device=ids.device)
        return merge_repeated(ids, self._ones)

    # ---- update --------------------------------------------------------------------------------------------------
    @torch.inference_mode()
    def update(self, lr: float, weight_decay: float = 0.0, preconditioner: Tensor | None = None) -> None:
        """W ← (1 − lr·weight_decay) W − lr ∇W P, for exactly the upstream gradients that backward() delivered.

        Several backward passes since the last update count as one larger minibatch. P (d,d) is symmetric and positive,
        d = hidden (+1 with bias). A learning rate that is too large for the minibatch raises NumericsError, which names
        the largest stable one, and changes nothing.
        """
        self._update(lr, weight_decay, preconditioner)

    @without_autocast
    def _update(self, lr: float, weight_decay: float, preconditioner: Tensor | None = None) -> None:
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

    @torch.no_grad()
    def grad_norm(self) -> float:
        """Return ‖∇W‖_F of what backward() delivered since the last update; nan where it delivered nothing."""
        return self._pending_step().grad_norm() if self._pending else math.nan

    @torch.no_grad()
    def weight_norm(self) -> float:
        """Return ‖W‖_F."""
        return math.sqrt(self.state.squared_norm())

    # ---- reading -------------------------------------------------------------------------------------------------
    @torch.no_grad()
    @without_autocast
    def log_prob(self, h: Tensor, ids: Tensor) -> Tensor:
        """Return log p(ids | h), ids (m,) or (m,K). Exact; O(d²) an example in the factored layer."""
        if not self.normalised:
            raise ConfigError(f"{self.loss!r} defines no probability; use the spherical or the Taylor softmax")
        shape = ids.shape
        self._check(h, ids, None, None)
        ids = ids.reshape(len(h), -1).to(torch.int64)
        q, s, o = (x.to(torch.float64) for x in self._begin(self._with_bias(h), ids).outputs())
        return self._score(q, s, o, ids).reshape(shape).to(h.dtype)

    def _score(self, q: Tensor, s: Tensor, o: Tensor, ids: Tensor | slice) -> Tensor:
        """Return log-probabilities where the loss has them, outputs where it has not; o (m,n) at ids."""
        if not self.normalised:
            return o
        p = None if self.state.p is None else self.state.p_of(self.state.p, ids).to(o.dtype)
        scores: Tensor = self.loss.log_prob(q, s, o if p is None else o / p, self.state.p_norm2)
        return scores if p is None else scores + 2 * p.log()

    @torch.no_grad()
    @without_autocast
    def topk(self, h: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Return the k best scores (m,k), log-probabilities where the loss has them, and their ids, block by block.

        O(D(md + d²)): reading the whole vocabulary costs the same for one example as for d. Ask for many at once.
        """
        if not 1 <= k <= self.vocab:
            raise ConfigError(f"k = {k}: must be between 1 and the vocabulary size {self.vocab}")
        return self._best_of_all(*top_of(self._sweep(h), k), k)

    @torch.no_grad()
    @without_autocast
    def rank_of(self, h: Tensor, ids: Tensor) -> Tensor:
        """Return the place of ids, (m,) or (m,K), by score: 1 is the best, ties to the lower id. Exact."""
        self._check(h, ids, None, None)
        return ranks_of(self._sweep(h), ids, self._total)

    def _sweep(self, h: Tensor) -> Sweep:
        """Return a sweep over the rows kept here, a block of TOPK_ROWS at a time."""
        first = torch.zeros(len(h), 1, dtype=torch.int64, device=h.device)
        self._check(h, first, None, None)
        H = self._with_bias(h)
        q, s, _ = (x.to(h.dtype) for x in self._begin(H, first).outputs())
        (kept, every), stored = self._kept, len(self.state.like)

        def scores(rows: slice) -> Tensor:
            return self._score(q, s, H @ self.state.weight_rows(rows).T, rows)

        parts = [slice(start, min(start + TOPK_ROWS, stored)) for start in range(0, stored, TOPK_ROWS)]
        everything = torch.arange(stored, device=h.device) * every + kept
        return lambda: ((everything[rows], partial(scores, rows)) for rows in parts)

    # ---- hooks for a layer that is spread over processes; here everything is at home -------------------------------
    def _best_of_all(self, scores: Tensor, ids: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Return the best k of everyone's best (m,k) and their ids, given those of the rows kept here."""
        return scores, ids

    def _total(self, x: Tensor) -> Tensor:
        """Return the sum of everyone's x."""
        return x

    def _gather(self, H: Tensor, ids: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the global minibatch H (m,d), ids and values (m,K), given the examples that are here."""
        return H, ids, values

    def _gather_upstream(self, upstream: Tensor) -> Tensor:
        """Return the upstream gradient (m,) of the global minibatch."""
        return upstream

    def _own(self, x: Tensor) -> Tensor:
        """Return what belongs to the examples that are here, of x (m,) for the global minibatch."""
        return x

    @torch.no_grad()
    def weight(self) -> Tensor:
        """Return W (vocab, hidden), without the bias column, as a new tensor. O(Dd²) in the factored layer."""
        return self.state.materialise()[:, : self.hidden].contiguous()

    @torch.no_grad()
    def bias_vector(self) -> Tensor:
        """Return the bias (vocab,); zeros where the layer has none."""
        W = self.state.materialise()
        return W[:, self.hidden].clone() if self.has_bias else W.new_zeros(self.vocab)

    @torch.no_grad()
    def set_weight(self, W: Tensor) -> None:
        """Start again from W (vocab, hidden), or (vocab, hidden + 1) with the bias as the last column."""
        D, d = self.state.D, self.state.d
        if W.shape not in ((D, d), (D, self.hidden)):
            raise ConfigError(f"W has shape {tuple(W.shape)}; expected ({D}, {self.hidden}) or ({D}, {d})")
        full = self.state.like.new_zeros(D, d)
        full[:, : W.shape[1]] = W
        self._pending.clear()
        self.state.reset(full)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        if (dtype := fn(self.state.like[:0]).dtype) not in (torch.float32, torch.float64):
            raise ConfigError(f"the layer computes in float32 or float64, not in {dtype}; convert the others only")
        return super()._apply(fn, recurse)  # type: ignore[no-untyped-call, no-any-return]

    def __getstate__(self) -> dict[str, Any]:
        """A pending step belongs to an autograd graph: a copy starts without one."""
        return {**self.__dict__, "_pending": []}
