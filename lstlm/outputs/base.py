"""What the output layers over stored rows share: a step recorded by forward and backward, and applied by update."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from lstlm.errors import ConfigError
from lstlm.kernels.targets import Targets
from lstlm.outputs.rows import Gradient, ScaledRows, merged
from lstlm.protocol.arguments import kept_share, without_autocast
from lstlm.protocol.output_layer import OutputLayer


class RecordedStep:
    """One minibatch on its way through a layer: made by the forward pass, filled by backward, spent by update."""

    @abstractmethod
    def backward(self, upstream: Tensor) -> Tensor:
        """Return ∂Σᵢ upstreamᵢ·lossᵢ/∂h (m,hidden) and keep what `apply` needs.  upstream (m,). Called once."""

    @abstractmethod
    def apply(self, lr: float, keep: float) -> None:
        """W ← keep·W − lr·∂Σᵢ upstreamᵢ·lossᵢ/∂W, in place, with the weights that the forward pass saw."""

    def gradients(self) -> Sequence[Gradient]:
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
        super().__init__(hidden, vocab)
        self._vocab, self._updates = vocab, 0

    @property
    def vocab(self) -> int:
        """The number of outputs D."""
        return self._vocab

    @abstractmethod
    def _losses(self, h: Tensor, ids: Tensor, t: Tensor) -> tuple[Tensor, RecordedStep]:
        """Return losses Σₖ tₖ·(−log p(idₖ | h)) (m,) and the step that can follow.  h (m,hidden), ids and t (m,K)."""

    def _forward(self, h: Tensor, targets: Targets) -> Tensor:
        ids, t = self._pairs(h, targets)
        if not (self.training and torch.is_grad_enabled()):
            return self._evaluation_losses(h.detach(), ids, t)
        losses: Tensor = _Record.apply(h, self, ids, t)  # type: ignore[no-untyped-call]
        return losses

    def _value_and_grad(self, h: Tensor, targets: Targets, weight: Tensor | None) -> tuple[Tensor, Tensor]:
        ids, t = self._pairs(h, targets)
        upstream = h.new_full((len(h),), 1 / self._minibatch(len(h))) if weight is None else weight.to(h)
        return self._at_once(h, ids, t, upstream)

    def _pairs(self, h: Tensor, targets: Targets) -> tuple[Tensor, Tensor]:
        """Return ids and values, both (m,K)."""
        if targets.each > 1 and not self.multiple_targets:
            raise ConfigError(
                f"{type(self).__name__} takes one target an example, not {targets.each}; "
                "use output.kind factored, naive, softmax, hierarchical or adaptive for several"
            )
        return targets.ids.view(len(h), -1), targets.values.view(len(h), -1).to(h.dtype)

    def _at_once(self, h: Tensor, ids: Tensor, t: Tensor, upstream: Tensor) -> tuple[Tensor, Tensor]:
        """Return the losses (m,) and the gradient to h, given ids and t (m,K), and upstream (m,)."""
        losses, step = self._losses(h, ids, t)
        return losses, self._record(step, self._updates, upstream)

    def _minibatch(self, m: int) -> int:
        """Return the size of the minibatch, given that m of its examples are here: m, unless ranks share it."""
        return m

    @torch.no_grad()
    @without_autocast
    def _evaluation_losses(self, h: Tensor, ids: Tensor, t: Tensor) -> Tensor:
        return -(t * self.log_prob(h, ids)).sum(1)

    def _record(self, step: RecordedStep, updates: int, upstream: Tensor) -> Tensor:
        if updates != self._updates:
            raise ConfigError("output layer: the weights have changed since this forward; run forward again")
        if any(step is other for other in self._pending):
            raise ConfigError("output layer: backward twice through one forward; run forward again")
        grad_h = step.backward(upstream)
        self._pending.append(step)
        return grad_h

    @torch.no_grad()
    @without_autocast
    def update(self, lr: float, weight_decay: float = 0.0) -> None:
        """W ← (1 − lr·weight_decay)·W − lr·∇W for the gradient that the last backward delivered; bias alike."""
        if not self._pending:
            raise ConfigError(
                "output layer: update without a backward before it; run forward, backward, update in turn"
            )
        self._apply_steps(self._pending, lr, kept_share(lr, weight_decay))
        self._pending = []
        self._updates += 1

    def _apply_steps(self, steps: list[RecordedStep], lr: float, keep: float) -> None:
        """W ← keep·W − the step for the sum of the gradients; all steps saw the same weights."""
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
            gradient.adagrad_(lr)


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
