"""What stands below the output layer: word vectors, read and learned row by row, and hidden layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.autograd.graph import increment_version

from lstlm.config import ModelConfig
from lstlm.errors import ConfigError
from lstlm.spherical.native import Kernel, kernel_for, plain
from lstlm.spherical.rows import RowValues, read_rows

# the gain of each activation: it keeps the variance of a layer's output near that of its input
_GAINS = {"tanh": 5.0 / 3.0, "relu": 2.0**0.5, "identity": 1.0}


class LastRead:
    """What an embedding read last: kept apart, because a module's own attributes are slow to set."""

    context: Tensor | None = None
    rows: Tensor | None = None


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
        if self.combine == "concat":
            read = read_rows(self.weight, context.reshape(-1)).view(len(context), -1)
        else:
            n = context.shape[1]
            read = read_rows(self.weight, context.reshape(-1), n, 1.0 if self.combine == "sum" else 1 / n)
        if self.training and torch.is_grad_enabled():
            self._last.context, self._last.rows = context.clone(), read.requires_grad_()
        return read

    def gradient(self) -> RowValues:
        """Return what the last backward says about the rows read; an id may occur twice."""
        context, rows = self._last.context, self._last.rows
        if context is None or rows is None or rows.grad is None:
            raise ConfigError("embedding: step without a backward before it; run forward, backward, step in turn")
        ids, gradient, n = context.reshape(-1), rows.grad, context.shape[1]
        if self.combine == "concat":
            return RowValues(ids, gradient.reshape(len(ids), -1))
        return RowValues(ids, gradient, n, 1.0 if self.combine == "sum" else 1 / n)

    def discard(self) -> None:
        """Forget the last batch."""
        self._last.context = self._last.rows = None

    @property
    def vocab(self) -> int:
        """The number of words D."""
        return len(self.weight)

    def rows(self, ids: Tensor) -> Tensor:
        """Return rows by id (k,size), a copy."""
        return self.weight.index_select(0, ids)

    def table(self) -> Tensor:
        """Return the table (D,size) itself."""
        return self.weight


class HiddenLayers(nn.Sequential):
    """x ↦ f(A x + a) for each layer in turn, f one of tanh, relu, identity; no layers at all for no sizes.

    It holds plain `nn.Linear`s; forward and backward are written out because autograd's own spend a tenth of
    the time on passes that three products a layer do not need, and where the kernel was compiled they are its work.
    """

    def __init__(self, inputs: int, config: ModelConfig, like: Tensor, generator: torch.Generator | None) -> None:
        self.activation = config.activation
        layers: list[nn.Module] = []
        for outputs in config.hidden:
            # skip_init: nn.Linear would draw from the global generator
            linear = nn.utils.skip_init(  # type: ignore[no-untyped-call]
                nn.Linear, inputs, outputs, dtype=like.dtype, device=like.device
            )
            limit = _GAINS[config.activation] * (3.0 / inputs) ** 0.5
            with torch.no_grad():
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
        return [p for linear in self for p in (linear.weight, linear.bias) if isinstance(p, Tensor)]


class HiddenPass:
    """A minibatch on its way through the hidden layers, to h (m,hidden), and back, without autograd."""

    @torch.no_grad()
    def __init__(self, x: Tensor, activation: str, parameters: Sequence[Tensor]) -> None:
        """Take weights and biases in turn."""
        self.parameters, self._layer = parameters, _layer_for(x, activation, parameters)
        self._columns = _forward(self._layer, x, parameters)
        self.h = self._columns[-1].T

    @torch.no_grad()
    def backward(self, gradient: Tensor) -> tuple[Tensor | None, list[Tensor]]:
        """Return the gradients of x and of the parameters, given that of h."""
        return _backward(self._layer, self._columns, self.parameters[::2], gradient, wanted=True)


class _Autograd(torch.autograd.Function):
    """The same as a function that autograd knows."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, activation: str, *parameters: Tensor) -> Tensor:
        ctx.layer = _layer_for(x, activation, parameters)
        columns = _forward(ctx.layer, x, parameters)
        ctx.save_for_backward(*columns, *parameters[::2])
        return columns[-1].T

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        layers = len(ctx.saved_tensors) // 2
        columns, matrices = ctx.saved_tensors[: layers + 1], ctx.saved_tensors[layers + 1 :]
        dx, gradients = _backward(ctx.layer, columns, matrices, gradient, wanted=ctx.needs_input_grad[0])
        return dx, None, *gradients


def _forward(layer: _Layer, x: Tensor, parameters: Sequence[Tensor]) -> list[Tensor]:
    """Return xᵀ and the outputs of the layers, (units,m) each.

    Examples are columns in memory: the products are written faster so, and the factored layer, which keeps its
    minibatch in the same way, neither turns h around nor its gradient.
    """
    columns = [x.T]
    for A, a in zip(parameters[::2], parameters[1::2], strict=True):
        columns.append(layer.forward(A, a, columns[-1]))
    return columns


def _backward(
    layer: _Layer, columns: Sequence[Tensor], matrices: Sequence[Tensor], gradient: Tensor, *, wanted: bool
) -> tuple[Tensor | None, list[Tensor]]:
    """Return the gradients of x, where it is wanted, and of weights and biases in turn, given that of h."""
    h = columns[-1]
    if gradient.shape != h.T.shape or gradient.dtype != h.dtype:
        raise ConfigError(
            f"the gradient is {gradient.dtype} {tuple(gradient.shape)}, h is {h.dtype} {tuple(h.T.shape)}"
        )
    dX: Tensor | None = gradient.T.contiguous()  # of the columns of the layer below, as the loop goes down
    gradients: list[Tensor] = []
    for i, A in reversed([*enumerate(matrices)]):
        assert dX is not None
        dA, da, dX = layer.backward(A, columns[i], columns[i + 1], dX, wanted or i > 0)
        gradients += [da, dA]
    return None if dX is None else dX.T, gradients[::-1]


class _Layer:
    """Y = f(Z), Z = A X + a, for X (inputs,m), by torch. X may be the transpose of something contiguous."""

    def __init__(self, activation: str) -> None:
        self.activation = activation

    def forward(self, A: Tensor, a: Tensor, X: Tensor) -> Tensor:
        """Return Y (units,m)."""
        Z = torch.addmm(a[:, None], A, X)
        return Z.tanh_() if self.activation == "tanh" else Z.relu_() if self.activation == "relu" else Z

    def backward(
        self, A: Tensor, X: Tensor, Y: Tensor, dY: Tensor, wanted: bool
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return the gradients of A, a and, where it is wanted, X, given that of Y."""
        dZ = dY
        if self.activation == "tanh":
            dZ = torch.ops.aten.tanh_backward(dY, Y)
        elif self.activation == "relu":
            dZ = torch.ops.aten.threshold_backward(dY, Y, 0)
        return dZ @ X.T, dZ.sum(1), A.T @ dZ if wanted else None


class _CompiledLayer(_Layer):
    """The same in one call each."""

    def __init__(self, activation: str, kernel: Kernel) -> None:
        super().__init__(activation)
        self.kernel, self.number = kernel, ("identity", "tanh", "relu").index(activation)

    def forward(self, A: Tensor, a: Tensor, X: Tensor) -> Tensor:
        (units, inputs), m = A.shape, X.shape[1]
        if len(X) != inputs:
            return super().forward(A, a, X)  # which says what is wrong
        Y = X.new_empty(units, m)
        self.kernel.layer_forward(
            *(self.kernel.gemm, self.number, units, inputs, m, A.data_ptr(), a.data_ptr()),
            *(X.data_ptr(), not X.is_contiguous(), Y.data_ptr()),
        )
        return Y

    def backward(
        self, A: Tensor, X: Tensor, Y: Tensor, dY: Tensor, wanted: bool
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        (units, inputs), m, by_rows = A.shape, X.shape[1], not X.is_contiguous()
        dZ, dA, da, dX = Y.new_empty(units, m), A.new_empty(units, inputs), A.new_empty(units), None
        if wanted:
            dX = A.new_empty(m, inputs).T if by_rows else A.new_empty(inputs, m)
        self.kernel.layer_backward(
            *(self.kernel.gemm, self.number, units, inputs, m, A.data_ptr(), X.data_ptr(), by_rows, Y.data_ptr()),
            *(dY.data_ptr(), dZ.data_ptr(), dA.data_ptr(), da.data_ptr(), None if dX is None else dX.data_ptr()),
        )
        return dA, da, dX


def _layer_for(x: Tensor, activation: str, parameters: Sequence[Tensor]) -> _Layer:
    """Choose by what x and the parameters are; in float64 torch has the faster tanh."""
    alike = all(p.dtype == torch.float32 and p.is_cpu and p.is_contiguous() for p in (x, *parameters))
    kernel = kernel_for(x) if alike and len(x) > 0 else None
    return _Layer(activation) if kernel is None else _CompiledLayer(activation, kernel)


def adagrad(optimiser: torch.optim.Adagrad) -> bool:
    """Take the step of `optimiser` by compiled code, where that takes what is there; say whether it did.

    torch spends as long on the way to its pass over the parameters as on the pass.
    """
    steps = []
    for group in optimiser.param_groups:
        for x in group["params"]:
            kernel, g, state = kernel_for(x), x.grad, optimiser.state[x]
            if kernel is None or g is None or not plain(g) or g.shape != x.shape:
                return False
            if any(y.dtype != x.dtype or not y.is_contiguous() for y in (x, g, state["sum"])):
                return False
            pointers = (y.data_ptr() for y in (x, g, state["sum"], state["step"]))
            steps.append((kernel.adagrad, (x.numel(), *pointers, group["lr"], group["eps"])))
    for function, arguments in steps:
        function(*arguments)
    increment_version([x for group in optimiser.param_groups for x in group["params"]])
    return True
