"""What a factored or naive layer tells without learning: scores, ranks, weights."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Self

import torch
from torch import Tensor

from lstlm.errors import ConfigError
from lstlm.kernels.targets import Targets
from lstlm.protocol.arguments import without_autocast
from lstlm.protocol.output_layer import OutputLayer
from lstlm.protocol.scan import Scan, parts
from lstlm.spherical.losses import SphericalLoss, ZLoss
from lstlm.spherical.state import FactoredState
from lstlm.spherical.steps import Step
from lstlm.spherical.steps.common import with_bias
from lstlm.spherical.steps.dense import DenseState


class SphericalReader(OutputLayer):
    """A spherical loss over a linear output layer whose weights `state` holds, as it is read."""

    takes_offsets = True
    state: FactoredState | DenseState
    _kept = (0, 1)  # the rows kept here: the first, and every how many; all of them, unless processes share them

    def __init__(self, hidden: int, vocab: int, loss: SphericalLoss | None, bias: bool) -> None:
        super().__init__(hidden, vocab)
        if not isinstance(loss, SphericalLoss | None):
            raise ConfigError(f"loss = {loss!r}: give a loss object, such as ZLoss() or make_loss('z')")
        self.has_bias = bias
        self.loss = ZLoss() if loss is None else loss
        self._initial_shape = (vocab, hidden + bias)

    @property
    def vocab(self) -> int:
        """The number of outputs D."""
        return self.state.D

    @property
    def like(self) -> Tensor:
        """A tensor of the layer's dtype and device."""
        return self.state.like

    def extra_repr(self) -> str:
        """Show the sizes and the loss."""
        return f"{self.hidden}, {self.vocab}, loss={self.loss!r}"

    @property
    def normalised(self) -> bool:
        """Whether the loss defines a probability over the vocabulary."""
        return self.loss.normalised

    # ---- a minibatch ---------------------------------------------------------------------------------------------
    def _new_step(self, h: Tensor, targets: Targets) -> Step:
        """Return a step of the kind that suits the weights and the size of the minibatch."""
        raise NotImplementedError

    def _begin(self, h: Tensor, targets: Targets) -> Step:
        """Return a step for h (m,hidden) and its targets, with its outputs."""
        step = self._new_step(h, targets)
        step.uses_sum = self.loss.uses_sum
        step.read()
        return step

    # ---- reading -------------------------------------------------------------------------------------------------
    @torch.no_grad()
    @without_autocast
    def log_prob(self, h: Tensor, ids: Tensor) -> Tensor:
        """Return log p(ids | h), ids (m,) or (m,K). Exact; O(d²) an example in the factored layer."""
        if not self.normalised:
            raise ConfigError(f"{self.loss!r} defines no probability; use the spherical or the Taylor softmax")
        shape = ids.shape
        targets = self._check(h, ids)
        step = self._begin(h, targets)
        scores = self._score(step.q, step.s, step.o.view(len(h), -1), targets.ids.view(len(h), -1))
        return scores.reshape(shape).to(h.dtype)

    def _score(self, q: Tensor, s: Tensor, o: Tensor, ids: Tensor | slice) -> Tensor:
        """Return log-probabilities where the loss has them, outputs where it has not; o (m,n) at ids."""
        if not self.normalised:
            return o
        p = None if self.state.p is None else self.state.p_of(self.state.p, ids).to(o.dtype)
        scores: Tensor = self.loss.log_prob(q, s, o if p is None else o / p, self.state.p_norm2)
        return scores if p is None else scores + 2 * p.log()

    def _scan(self, h: Tensor) -> Scan:
        """Return a scan over the rows kept here, block by block."""
        none = torch.zeros(len(h), dtype=torch.int64, device=h.device)
        step = self._begin(h, Targets(none, none.double(), len(h), impl=self.impl))
        q, s = step.q.to(h.dtype), step.s.to(h.dtype)
        outputs = self.state.outputs_of(with_bias(h.detach(), self.state.d))
        (kept, every), stored = self._kept, len(self.state.like)

        def scores(rows: slice) -> Tensor:
            return self._score(q, s, outputs(rows), rows)

        everything = torch.arange(stored, device=h.device) * every + kept
        return lambda: ((everything[rows], partial(scores, rows)) for rows in parts(stored))

    @torch.no_grad()
    def weight_norm(self) -> float:
        """Return ‖W‖_F."""
        return math.sqrt(self.state.squared_norm())

    def statistics(self) -> dict[str, float]:
        """Return ‖W‖_F."""
        return {"weight_norm": self.weight_norm()}

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
        self.discard()
        self.state.reset(full)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        if (dtype := fn(self.state.like[:0]).dtype) not in (torch.float32, torch.float64):
            raise ConfigError(f"the layer computes in float32 or float64, not in {dtype}; convert the others only")
        return super()._apply(fn, recurse)  # type: ignore[no-untyped-call, no-any-return]
