"""What the factored and the naive layer share of learning: the loss, autograd, the pending steps and their update."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lstlm.errors import ConfigError, NumericsError
from lstlm.kernels import step_ops
from lstlm.kernels.targets import Targets
from lstlm.protocol.arguments import kept_share
from lstlm.registry import LOSSES, load
from lstlm.spherical.losses import Outputs, Partials, SphericalLoss
from lstlm.spherical.reading import SphericalReader
from lstlm.spherical.shrink import LearningRateTooLarge, Shrink
from lstlm.spherical.stabilise import READ_EVERY
from lstlm.spherical.steps import Step

# the losses that compiled code knows: their numbers there, and their parameters
NATIVE = {load(kind.make): (kind.native_id, kind.settings) for kind in LOSSES if kind.native_id is not None}


class Pending(NamedTuple):
    """A minibatch that has gone forward and backward, and the upstream gradient (m,)."""

    step: Step
    upstream: Tensor | None  # 1/m each where None


class SphericalHead(SphericalReader):
    """A spherical loss over a linear output layer whose weights `state` holds."""

    def __init__(self, hidden: int, vocab: int, loss: SphericalLoss | None, bias: bool) -> None:
        super().__init__(hidden, vocab, loss, bias)
        self._pending: list[Pending]
        self._unread: list[Tensor] = []  # whether the last updates were allowed, on a device that is not the CPU

    # ---- forward and backward ------------------------------------------------------------------------------------
    def _forward(self, h: Tensor, targets: Targets) -> Tensor:
        losses: Tensor = _Autograd.apply(h, self, targets)  # type: ignore[no-untyped-call]
        return losses

    def _value_and_grad(self, h: Tensor, targets: Targets, weight: Tensor | None) -> tuple[Tensor, Tensor]:
        step = self._step(h, targets)
        gradient = self._take_back(step, None if weight is None else self._gather_upstream(weight))
        return self._own(step.losses), gradient

    def learn(
        self,
        h: Tensor,
        target_ids: Tensor,
        lr: float,
        target_values: Tensor | None = None,
        weight: Tensor | None = None,
        offsets: Tensor | None = None,
        *,
        weight_decay: float = 0.0,
    ) -> tuple[Tensor, Tensor]:
        """Go through `value_and_grad` and `update` at once; return what the first returns."""
        self._pending.clear()
        result = self.value_and_grad(h, target_ids, target_values, weight, offsets)
        self.update(lr, weight_decay)
        return result

    def _step(self, h: Tensor, targets: Targets) -> Step:
        """Return a step for the global minibatch, with its outputs."""
        if not (targets.each or self.loss.without_targets) and targets.ids.is_cpu:
            self._check_bags(targets)
        h, targets = self._gather(h, targets.merged())
        return self._begin(h, targets)

    def _check_bags(self, targets: Targets) -> None:
        empty = (targets.offsets.diff() == 0).nonzero()
        if len(empty):
            raise ConfigError(
                f"offsets: example {int(empty[0])} has no target, and {self.loss!r} is a sum over targets; "
                "leave such examples out, or use SquaredError()"
            )

    def _backward(self, step: Step, upstream: Tensor) -> Tensor:
        """Do what autograd asks for: `_take_back`, given the upstream gradient of the examples that are here."""
        return self._take_back(step, self._gather_upstream(upstream))

    def _take_back(self, step: Step, upstream: Tensor | None) -> Tensor:
        """Take the step back from the upstream gradient (m,), of the global minibatch, and return that of h."""
        if step.version != step.state.version:
            raise NumericsError("the weights have changed since forward(); call forward() again before backward()")
        gradient = step.backward(self._partials(step, upstream))
        self._pending.append(Pending(step, upstream))
        return gradient[:, : self.hidden]

    def _partials(self, step: Step, upstream: Tensor | None) -> Tensor:
        """Return the losses and their derivatives times upstream (m,), 1/m where None, as (3m+n,)."""
        weights = None if upstream is None else upstream.to(torch.float64).contiguous()
        found, finite = self._compiled_partials(step, weights) or self._partials_in_torch(step, weights)
        if not finite:
            self._explain(step.q, found[: step.targets.m], found)
        return found

    def _compiled_partials(self, step: Step, weights: Tensor | None) -> tuple[Tensor, bool] | None:
        """Return the same and whether all of it is finite; None where compiled code does not have this loss."""
        if not is_native(self.loss):
            return None
        number, settings = NATIVE[type(self.loss)]
        a, b, *_ = [*[getattr(self.loss, name) for name in settings], 0.0, 0.0]
        given = step.h, step.outputs, step.targets, step.p, step.state.p_norm2, weights
        return step_ops.losses((number, a, b), *given, impl=self.impl)

    def _partials_in_torch(self, step: Step, weights: Tensor | None) -> tuple[Tensor, bool]:
        targets = step.targets
        p = None if step.p is None else step.p.to(torch.float64)
        value, dq, ds, do = self._partials_of_pairs(step, p)
        weights = torch.full_like(dq, 1 / targets.m) if weights is None else weights
        ds = torch.zeros_like(dq) if ds is None else ds
        found = torch.cat([value, dq * weights, ds * weights, do * targets.spread(weights)]).to(step.h.dtype)
        return found, not found.is_cpu or math.isfinite(float(found.sum() + step.q.sum()))

    def _partials_of_pairs(self, step: Step, p: Tensor | None) -> Partials:
        """Return what the loss says in torch, with do (n,); it sees (m,K) where all examples have K targets."""
        targets, D = step.targets, step.state.p_norm2
        if not targets.each:
            return self.loss.tilted(Outputs(step.q, step.s, step.o), targets.values, D, p, targets.example)
        o, t = step.o.view(targets.m, -1), targets.values.view(targets.m, -1)
        tilt = None if p is None else p.view(targets.m, -1)
        found = self.loss.tilted(Outputs(step.q, step.s, o), t, D, tilt, None)
        return found._replace(do=found.do.reshape(-1))

    def _explain(self, q: Tensor, losses: Tensor, partials: Tensor) -> None:
        """Raise for what is not finite."""
        if not bool(torch.isfinite(q).all()):
            raise NumericsError("the outputs are not finite: h is not finite or too large; check the layers below")
        if not bool(torch.isfinite(losses).all()):
            raise NumericsError(
                "the loss is not finite: the targets are too large, or (Z-loss) all outputs are equal, σ = 0; "
                "check target_values, and that init_scale is above 0"
            )
        raise NumericsError(
            f"the gradient of the loss is not finite in {partials.dtype}; check the targets and the loss scale"
        )

    # ---- update --------------------------------------------------------------------------------------------------
    def update(self, lr: float, weight_decay: float = 0.0) -> None:
        """W ← (1 − lr·weight_decay) W − lr ∇W, for exactly the upstream gradients that backward() delivered.

        Several backward passes since the last update count as one larger minibatch. A learning rate that is too large
        for the minibatch raises NumericsError, which names the largest stable one, and changes nothing. On devices
        other than the CPU it changes nothing either, and the error comes up to READ_EVERY updates later.
        """
        rho = kept_share(lr, weight_decay)
        step = self._pending_step()
        # W' = ρW − ηE = ρ(W − (η/ρ)E): the plain step with lr/ρ, then everything times ρ.
        try:
            shrink = step.update(lr / rho)
        except LearningRateTooLarge as error:
            raise LearningRateTooLarge(lr, error.limit / (1 + error.limit * weight_decay)) from None
        self._pending.clear()
        if rho < 1:
            self.state.scale_(rho)
            shrink = shrink._replace(shrink=1 - rho * (1 - shrink.shrink))
        if shrink.allowed is not None:
            self._note(shrink.allowed)
        self._after_update(shrink)

    def _note(self, allowed: Tensor) -> None:
        """Remember on the device whether the update was allowed, and look at it now and then."""
        self._unread.append(allowed)
        if len(self._unread) >= READ_EVERY:
            refused = READ_EVERY - int(torch.stack(self._unread).sum())
            self._unread.clear()
            if refused:
                raise NumericsError(
                    f"{refused} of the last {READ_EVERY} updates changed nothing: numbers were not finite, or the rate "
                    "would have made U singular; lower optim.output_lr, or divide the loss by the minibatch size"
                )

    def _after_update(self, shrink: Shrink) -> None:
        """Called with the bounds on what the update did to U."""

    def _pending_step(self) -> Step:
        """Return the step of the backward passes since the last update."""
        if not self._pending:
            raise NumericsError("update() needs a backward() first; one update() serves the backward passes before it")
        steps, version = [pending.step for pending in self._pending], self.state.version
        if [step for step in steps if step.version != version]:
            self._pending.clear()
            raise NumericsError("the weights have changed since forward(); call forward() and backward() again")
        if len(steps) == 1:
            return steps[0]
        targets = Targets.join([step.targets for step in steps])
        merged = self._begin(torch.cat([step.h for step in steps]), targets)
        upstream = [
            targets.values.new_full((pending.step.targets.m,), 1 / pending.step.targets.m)
            if pending.upstream is None
            else pending.upstream.to(torch.float64)
            for pending in self._pending
        ]
        merged.backward(self._partials(merged, torch.cat(upstream)))
        return merged

    @torch.inference_mode()
    def grad_norm(self) -> float:
        """Return ‖∇W‖_F of what backward() delivered since the last update; nan where it delivered nothing."""
        return self._pending_step().grad_norm() if self._pending else math.nan

    # ---- hooks for a layer that is spread over processes; here they are the identity --------------------------------
    def _gather(self, h: Tensor, targets: Targets) -> tuple[Tensor, Targets]:
        """Return the global minibatch h (m,hidden) and its targets, given the examples that are here."""
        return h, targets

    def _gather_upstream(self, upstream: Tensor) -> Tensor:
        """Return the upstream gradient (m,) of the global minibatch."""
        return upstream

    def _own(self, x: Tensor) -> Tensor:
        """Return what belongs to the examples that are here, of x (m,) for the global minibatch."""
        return x

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_unread": []}


def is_native(loss: SphericalLoss) -> bool:
    """Say whether compiled code has this loss: one of NATIVE, whose formulas nobody has changed."""
    return type(loss) in NATIVE and "partials" not in vars(loss)


class _Autograd(torch.autograd.Function):
    """The losses of a minibatch as a function of h; backward leaves the step with the head for update()."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, head: SphericalHead, targets: Targets) -> Tensor:
        ctx.head, ctx.step = head, head._step(h, targets)
        # not kept with the step: a tensor that autograd returned knows its node, and nobody would ever let go
        losses = head._partials(ctx.step, None)[: ctx.step.targets.m]
        return head._own(losses).clone()

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None, None]:
        if torch.is_grad_enabled():
            raise NumericsError("the layer has no second derivative; call backward() without create_graph")
        if ctx.step is None:
            raise NumericsError("backward() twice through one forward(); call forward() again")
        step, ctx.step = ctx.step, None
        return ctx.head._backward(step, upstream), None, None
