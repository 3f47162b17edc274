"""What stands below the output layer: word vectors, read and learned row by row, and hidden layers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from lstlm.config import ModelConfig
from lstlm.errors import ConfigError
from lstlm.kernels import ops
from lstlm.kernels.ops import RowValues, read_rows

# the gain of each activation: it keeps the variance of a layer's output near that of its input
_GAINS = {"tanh": 5.0 / 3.0, "relu": 2.0**0.5, "identity": 1.0}


class LastRead:
    """What an embedding read last: kept apart, because a module's own attributes are slow to set."""

    context: Tensor | None = None
    rows: Tensor | None = None  # the leaf of autograd, where autograd takes part
    gradient: Tensor | None = None  # what `backward` was given


class SparseEmbedding(nn.Module):
    """A table (D,size) read by row; what backward says about the rows read waits in `gradient`. O(m·n·size) a step.

    `combine` makes one vector of the n rows of an example: side by side, their sum or their mean.
    """

    weight: Tensor

    def __init__(self, weight: Tensor, combine: str) -> None:
        super().__init__()
        self.register_buffer("weight", weight)
        self.combine = combine
        self._last = LastRead()

    def forward(self, context: Tensor) -> Tensor:
        """Return the combined rows of context (m,n): (m,n·size) or (m,size). In training mode a leaf of autograd."""
        rows = self._combined(context)
        if self.training and torch.is_grad_enabled():
            last = self._last
            last.context, last.rows, last.gradient = context.clone(), rows.requires_grad_(), None
        return rows

    def read(self, context: Tensor) -> Tensor:
        """Do the same without autograd; `backward` comes next, and context stays as it is until the step is taken."""
        last = self._last
        last.context, last.rows, last.gradient = context, None, None
        return self._combined(context)

    def backward(self, gradient: Tensor) -> None:
        """Take the gradient of what `read` returned."""
        self._last.gradient = gradient

    def _combined(self, context: Tensor) -> Tensor:
        m, n = context.shape
        each, scale = self._summed(n)
        rows = read_rows(self.weight, context.reshape(-1), each, scale)
        return rows if each == n else rows.view(m, -1)

    def _summed(self, n: int) -> tuple[int, float]:
        """Return how many rows become one, of the n of an example, and by what their sum is multiplied."""
        return (1, 1.0) if self.combine == "concat" else (n, 1.0 if self.combine == "sum" else 1 / n)

    def gradient(self) -> RowValues:
        """Return what the last backward says about the rows read; an id may occur twice."""
        last = self._last
        gradient = last.gradient if last.rows is None else last.rows.grad
        if last.context is None or gradient is None:
            raise ConfigError("embedding: step without a backward before it; run forward, backward, step in turn")
        each, scale = self._summed(last.context.shape[1])
        return RowValues(last.context.reshape(-1), gradient.reshape(-1, self.weight.shape[1]), each, scale)

    def discard(self) -> None:
        """Forget the last batch."""
        last = self._last
        last.context = last.rows = last.gradient = None

    @property
    def vocab(self) -> int:
        """The number of words D."""
        return self.weight.shape[0]

    def rows(self, ids: Tensor) -> Tensor:
        """Return rows by id (k,size), a copy."""
        return self.weight.index_select(0, ids)

    def table(self) -> Tensor:
        """Return the table (D,size) itself."""
        return self.weight


class Undrawn(nn.Linear):
    """A linear layer whose weights somebody else draws: nn.Linear's own take numbers from the global generator."""

    def reset_parameters(self) -> None:
        """Leave the weights as they are."""


class HiddenLayers(nn.Sequential):
    """x ↦ f(A x + a) for each layer in turn, f one of tanh, relu, identity; no layers at all for no sizes.

    It holds plain `nn.Linear`s; forward and backward are operations of `kernels`, because autograd's own spend a tenth
    of the time on passes that three products a layer do not need.
    """

    def __init__(self, inputs: int, config: ModelConfig, like: Tensor, generator: torch.Generator | None) -> None:
        self.activation = config.activation
        layers: list[nn.Module] = []
        for outputs in config.hidden:
            linear = Undrawn(inputs, outputs, dtype=like.dtype, device=like.device)
            limit = _GAINS[config.activation] * (3.0 / inputs) ** 0.5
            with torch.no_grad():
                if config.start == "identity":
                    nn.init.eye_(linear.weight)
                else:
                    linear.weight.uniform_(-limit, limit, generator=generator)
                linear.bias.zero_()
            layers.append(linear)
            inputs = outputs
        super().__init__(*layers)

    def forward(self, x: Tensor) -> Tensor:
        """Return h (m,hidden) of x (m,inputs)."""
        if len(self) == 0:
            return x
        h: Tensor = _Autograd.apply(x, self.activation, *self.weights())  # type: ignore[no-untyped-call]
        return h

    def run(self, x: Tensor) -> HiddenPass:
        """Take x (m,inputs) through the layers without autograd."""
        return HiddenPass(x, self.activation, self.weights())

    def weights(self) -> list[Tensor]:
        """Return weights and biases in turn: the parameters, in a fraction of the time that `parameters()` takes."""
        layers = self._modules.values()
        return [p for linear in layers if linear is not None for p in linear._parameters.values() if p is not None]


class HiddenPass:
    """A minibatch x (m,inputs) on its way through the hidden layers, to h (m,hidden), and back, without autograd."""

    def __init__(self, x: Tensor, activation: str, parameters: list[Tensor]) -> None:
        """Take weights and biases in turn."""
        self.x, self.activation, self.parameters, self.h = x, activation, parameters, x
        if parameters:
            self._matrices = matrices = parameters[::2]
            self._impl = ops.form_for(x, *matrices)
            self._results = ops.hidden_forward(x, matrices, parameters[1::2], activation, impl=self._impl)
            self.h = self._results[-1].T

    def backward(self, gradient: Tensor) -> Tensor:
        """Return the gradient of x, given that of h, and make those of the parameters their `grad`."""
        h, parameters = self.h, self.parameters
        if gradient.shape != h.shape or gradient.dtype != h.dtype:
            wanted = f"{h.dtype} {tuple(h.shape)}"
            raise ConfigError(f"the gradient is {gradient.dtype} {tuple(gradient.shape)}, h is {wanted}")
        if not parameters:
            return gradient
        gradients = [torch.empty_like(p) if p.grad is None else p.grad for p in parameters]
        x, dx = self.x, torch.empty_like(self.x)
        given = x, self._matrices, self._results, gradient.T, self.activation
        ops.hidden_backward(*given, gradients, dx, impl=self._impl)
        for parameter, found in zip(parameters, gradients, strict=True):
            if parameter.grad is None and parameter.requires_grad:
                parameter.grad = found
        return dx


class _Autograd(torch.autograd.Function):
    """The same as a function that autograd knows."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, activation: str, *parameters: Tensor) -> Tensor:
        matrices, biases = [*parameters[::2]], [*parameters[1::2]]
        ctx.activation, ctx.impl = activation, ops.form_for(x, *matrices)
        results = ops.hidden_forward(x, matrices, biases, activation, impl=ctx.impl)
        ctx.save_for_backward(x, *results, *parameters[::2])
        return results[-1].T

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, *saved = ctx.saved_tensors
        results, matrices = saved[: len(saved) // 2], saved[len(saved) // 2 :]
        gradients = [room for A in matrices for room in (torch.empty_like(A), A.new_empty(A.shape[0]))]
        dx = torch.empty_like(x) if ctx.needs_input_grad[0] else None
        ops.hidden_backward(x, matrices, results, gradient.T, ctx.activation, gradients, dx, impl=ctx.impl)
        return dx, None, *gradients
