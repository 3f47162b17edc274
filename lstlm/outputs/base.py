"""What every output layer of this package shares: checked input, forward, backward, update."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from lstlm.errors import ConfigError, DataError
from lstlm.output_layer import OutputLayer
from lstlm.outputs.rows import RowGradient, ScaledRows, merged
from lstlm.spherical.arguments import without_autocast
from lstlm.spherical.scan import Scan, ranks_of, top_of


class RecordedStep:
    """One minibatch on its way through a layer: made by the forward pass, filled by backward, spent by update."""

    @abstractmethod
    def backward(self, upstream: Tensor) -> Tensor:
        """Return ∂Σᵢ upstreamᵢ·lossᵢ/∂h (m,hidden) and keep what `apply` needs.  upstream (m,). Called once."""

    @abstractmethod
    def apply(self, lr: float, keep: float) -> None:
        """W ← keep·W − lr·∂Σᵢ upstreamᵢ·lossᵢ/∂W, in place, with the weights that the forward pass saw."""

    def gradients(self) -> list[RowGradient]:
        """Return ∂Σᵢ upstreamᵢ·lossᵢ/∂W, no row of a table twice: for tables that have rates for their rows."""
        raise NotImplementedError


class RecordedOutput(OutputLayer):
    """A layer that owns its weights and applies its own exact SGD.

    In training mode with gradients enabled, `backward` leaves a step with the layer and `update` applies it; several
    backward passes before one update count as one larger minibatch; `discard` forgets them. In evaluation mode
    or under `torch.no_grad` nothing is recorded and the losses carry no graph.
    """

    normalised = True
    multiple_targets = True

    def __init__(self, hidden: int, vocab: int) -> None:
        super().__init__()
        if hidden < 1 or vocab < 2:
            raise ConfigError(f"output layer: hidden {hidden} and vocabulary {vocab} must be at least 1 and 2")
        self.hidden, self._vocab = hidden, vocab
        self._pending: list[RecordedStep] = []
        self._updates = 0

    @property
    def vocab(self) -> int:
        """The number of outputs D."""
        return self._vocab

    @abstractmethod
    def _losses(self, h: Tensor, ids: Tensor, t: Tensor) -> tuple[Tensor, RecordedStep]:
        """Return losses Σₖ tₖ·(−log p(idₖ | h)) (m,) and the step that can follow.  h (m,hidden), ids and t (m,K)."""

    @abstractmethod
    def log_prob(self, h: Tensor, ids: Tensor) -> Tensor:
        """Return log p(ids | h) in the shape of ids, (m,) or (m,K)."""

    @abstractmethod
    def _scan(self, h: Tensor) -> Scan:
        """Return a scan over the vocabulary whose scores order the words of an example by probability."""

    @torch.no_grad()
    @without_autocast
    def topk(self, h: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Return (log-probabilities, ids), both (m,k), of the k likeliest words, best first."""
        self._check_topk(h, k)
        return top_of(self._scan(h), k)

    @torch.no_grad()
    @without_autocast
    def rank_of(self, h: Tensor, ids: Tensor) -> Tensor:
        """Return the place of ids, (m,) or (m,K), by probability: 1 is the best, ties go to the lower id. Exact."""
        self._check_read(h, ids)
        return ranks_of(self._scan(h), ids)

    def _check_topk(self, h: Tensor, k: int) -> None:
        self._check_hidden(h)
        if not 1 <= k <= self.vocab:
            raise ConfigError(f"topk: k is {k}, the vocabulary allows 1 to {self.vocab}")

    def _check_read(self, h: Tensor, ids: Tensor) -> None:
        self._check_hidden(h)
        check_ids(ids, len(h), self.vocab)

    def forward(
        self,
        h: Tensor,
        target_ids: Tensor,
        target_values: Tensor | None = None,
        weight: Tensor | None = None,
        offsets: Tensor | None = None,
    ) -> Tensor:
        """Return one loss an example, weight·Σₖ valueₖ·(−log p(targetₖ | h)), shape (m,), differentiable to h.

        target_ids (m,) or (m,K); target_values like target_ids, default 1; weight (m,), default 1.
        """
        self._refuse(offsets)
        if self._unusual(h):
            return self._by_rows(h, target_ids, target_values, weight)
        ids, t = self._targets(h, target_ids, target_values, weight)
        if not (self.training and torch.is_grad_enabled()):
            return self._evaluation_losses(h.detach(), ids, t)
        # h may be plain data: the layer itself still learns, so the graph must start here
        h = h if h.requires_grad else h.detach().requires_grad_()
        losses: Tensor = _Record.apply(h, self, ids, t)  # type: ignore[no-untyped-call]
        return losses

    @torch.no_grad()
    @without_autocast
    def value_and_grad(
        self,
        h: Tensor,
        target_ids: Tensor,
        target_values: Tensor | None = None,
        weight: Tensor | None = None,
        offsets: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return the losses (m,) and the gradient to h (m,hidden) of Σ weight·loss; of the mean loss without weight."""
        self._refuse(offsets)
        ids, t, upstream = self._with_upstream(h, target_ids, target_values, weight)
        return self._at_once(h.detach(), ids, t, upstream)

    def _at_once(self, h: Tensor, ids: Tensor, t: Tensor, upstream: Tensor) -> tuple[Tensor, Tensor]:
        """Return the losses (m,) and the gradient to h, given ids and t (m,K), and upstream (m,)."""
        losses, step = self._losses(h, ids, t)
        return losses, self._record(step, self._updates, upstream)

    def _with_upstream(
        self, h: Tensor, target_ids: Tensor, target_values: Tensor | None, weight: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return ids and coefficients (m,K), and the upstream gradient (m,) for `value_and_grad`."""
        ids, t = self._targets(h, target_ids, target_values, None)
        if weight is not None and weight.shape != (len(h),):
            raise ConfigError(f"weight has shape {tuple(weight.shape)}, one number an example is ({len(h)},)")
        return ids, t, h.new_full((len(h),), 1 / self._minibatch(len(h))) if weight is None else weight.to(h)

    def _refuse(self, offsets: Tensor | None) -> None:
        if offsets is not None:
            raise ConfigError(
                f"{type(self).__name__} takes targets (m,) or (m,K), without offsets; "
                "use output.kind factored or naive where examples differ in the number of their targets"
            )

    def _minibatch(self, m: int) -> int:
        """Return the size of the minibatch of which m examples are here: all, unless ranks share it."""
        return m

    @torch.no_grad()
    @without_autocast
    def _evaluation_losses(self, h: Tensor, ids: Tensor, t: Tensor) -> Tensor:
        return -(t * self.log_prob(h, ids)).sum(1)

    def _targets(
        self, h: Tensor, target_ids: Tensor, target_values: Tensor | None, weight: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return (ids, coefficients) both (m,K), the coefficients being weight·value; raise on what cannot be right."""
        self._check_hidden(h)
        check_ids(target_ids, len(h), self.vocab)
        ids = (target_ids if target_ids.ndim == 2 else target_ids[:, None]).long()
        if ids.shape[1] > 1 and not self.multiple_targets:
            raise ConfigError(
                f"{type(self).__name__} takes one target an example, not {ids.shape[1]}; "
                "use output.kind factored, naive, softmax, hierarchical or adaptive for several"
            )
        t = torch.ones_like(ids, dtype=h.dtype)
        if target_values is not None:
            if target_values.shape != target_ids.shape:
                raise ConfigError(
                    f"target_values has shape {tuple(target_values.shape)}, target_ids {tuple(target_ids.shape)}: "
                    "they must be equal"
                )
            t = target_values.to(h.dtype).reshape(ids.shape)
        if weight is not None:
            if weight.shape != (len(h),):
                raise ConfigError(f"weight has shape {tuple(weight.shape)}, one number an example is ({len(h)},)")
            t = t * weight.to(h.dtype)[:, None]
        return ids, t.detach()

    def _check_hidden(self, h: Tensor) -> None:
        if h.ndim != 2 or h.shape[1] != self.hidden or len(h) == 0:
            raise ConfigError(f"h has shape {tuple(h.shape)}, the output layer takes (examples, {self.hidden})")
        if h.dtype != self.dtype:
            raise ConfigError(f"h is {h.dtype}, the output layer holds {self.dtype}: convert one of them")

    def _record(self, step: RecordedStep, updates: int, upstream: Tensor) -> Tensor:
        if updates != self._updates:
            raise ConfigError("output layer: the weights have changed since this forward; run forward again")
        if any(step is other for other in self._pending):
            raise ConfigError("output layer: backward twice through one forward; run forward again")
        grad_h = step.backward(upstream)
        self._pending.append(step)
        return grad_h

    def discard(self) -> None:
        """Forget the backward passes since the last update."""
        self._pending = []

    @torch.no_grad()
    @without_autocast
    def update(self, lr: float, weight_decay: float = 0.0) -> None:
        """W ← (1 − lr·weight_decay)·W − lr·∇W for the gradient that the last backward delivered; bias alike."""
        if not self._pending:
            raise ConfigError(
                "output layer: update without a backward before it; run forward, backward, update in turn"
            )
        keep = 1.0 - lr * weight_decay
        if keep <= 0.0:
            raise ConfigError(
                f"output.weight_decay {weight_decay} at learning rate {lr}: their product must stay below 1"
            )
        self._apply_steps(self._pending, lr, keep)
        self._pending = []
        self._updates += 1

    def _apply_steps(self, steps: list[RecordedStep], lr: float, keep: float) -> None:
        """W ← keep·W − the step for the sum of the gradients, all of which saw the same weights."""
        tables = [module for module in self.modules() if isinstance(module, ScaledRows)]
        if not any(table.squares is not None for table in tables):
            for step in steps:
                step.apply(lr, keep)
                keep = 1.0  # the decay comes once
            return
        gradients = [gradient for step in steps for gradient in step.gradients()]
        if keep != 1.0:
            for table in tables:
                table.decay_(keep)
        for gradient in gradients if len(steps) == 1 else merged(gradients):
            gradient.table.adagrad_(gradient, lr)

    def __getstate__(self) -> dict[str, Any]:
        """A pending step belongs to an autograd graph: a copy starts without one."""
        return {**self.__dict__, "_pending": []}


class _Record(torch.autograd.Function):
    """Hands a layer's own forward and backward to autograd, and the upstream gradients to the layer's step."""

    @staticmethod
    @without_autocast
    def forward(ctx: Any, h: Tensor, layer: RecordedOutput, ids: Tensor, t: Tensor) -> Tensor:
        losses, ctx.step = layer._losses(h.detach(), ids, t)
        ctx.layer, ctx.updates = layer, layer._updates
        return losses

    @staticmethod
    @once_differentiable
    @without_autocast
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None, None, None]:
        return ctx.layer._record(ctx.step, ctx.updates, upstream), None, None, None


def check_ids(ids: Tensor, examples: int, vocab: int) -> None:
    """Raise unless ids is an integer tensor (examples,) or (examples, K) with values in [0, vocab)."""
    if ids.dtype not in (torch.int64, torch.int32):
        raise ConfigError(f"target_ids is {ids.dtype}: word ids are int64")
    if ids.ndim not in (1, 2) or len(ids) != examples or ids.numel() == 0:
        raise ConfigError(
            f"target_ids has shape {tuple(ids.shape)}, {examples} examples take ({examples},) or ({examples}, K)"
        )
    low, high = (int(x) for x in ids.aminmax())
    if low < 0 or high >= vocab:
        bad = low if low < 0 else high
        raise DataError(
            f"target_ids holds word id {bad}: ids run from 0 to {vocab - 1}; is the vocabulary another one?"
        )
