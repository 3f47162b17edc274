"""What stands below the output layer: word vectors, read and learned row by row, and hidden layers."""

from __future__ import annotations

import ctypes
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
            self.remember(context.clone(), read.requires_grad_())
        return read

    def remember(self, context: Tensor, rows: Tensor) -> None:
        """Note what was read: `rows` (m,·) of context (m,n), whose `grad` will be its gradient."""
        self._last.context, self._last.rows = context, rows

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
        return self.weight.shape[0]

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
        self.parameters, self._way = parameters, way_for(x, activation, parameters)
        self.h, self._kept = self._way.forward(x, parameters)

    @torch.no_grad()
    def backward(self, gradient: Tensor) -> tuple[Tensor | None, list[Tensor]]:
        """Return the gradients of x and of the parameters, given that of h."""
        return self._way.backward(self._kept, self.parameters[::2], _like(gradient, self.h), wanted=True)


class _Autograd(torch.autograd.Function):
    """The same as a function that autograd knows."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, activation: str, *parameters: Tensor) -> Tensor:
        ctx.way = way_for(x, activation, parameters)
        h: Tensor
        h, kept = ctx.way.forward(x, parameters)
        ctx.save_for_backward(*kept, *parameters[::2])
        return h

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        layers = len(ctx.saved_tensors) // 2
        kept, matrices = ctx.saved_tensors[: layers + 1], ctx.saved_tensors[layers + 1 :]
        dx, gradients = ctx.way.backward(kept, matrices, gradient, wanted=ctx.needs_input_grad[0])
        return dx, None, *gradients


def _like(gradient: Tensor, h: Tensor) -> Tensor:
    """Return the gradient of h, if it can be that."""
    if gradient.shape != h.shape or gradient.dtype != h.dtype:
        raise ConfigError(f"the gradient is {gradient.dtype} {tuple(gradient.shape)}, h is {h.dtype} {tuple(h.shape)}")
    return gradient


class Plain:
    """Y_l = f(A_l Y_(l−1) + a_l 1ᵀ) with Y_0 = xᵀ and hᵀ the last, by torch.

    Examples are columns in memory: the products are written faster so, and the factored layer, which keeps its
    minibatch in the same way, neither turns h around nor its gradient.
    """

    def __init__(self, activation: str) -> None:
        self.activation = activation

    def forward(self, x: Tensor, parameters: Sequence[Tensor]) -> tuple[Tensor, Sequence[Tensor]]:
        """Return h, and what `backward` wants to see again: x or xᵀ, and every Y."""
        columns = [x.T]
        for A, a in zip(parameters[::2], parameters[1::2], strict=True):
            Z = torch.addmm(a[:, None], A, columns[-1])
            columns.append(Z.tanh_() if self.activation == "tanh" else Z.relu_() if self.activation == "relu" else Z)
        return columns[-1].T, columns

    def backward(
        self, kept: Sequence[Tensor], matrices: Sequence[Tensor], gradient: Tensor, *, wanted: bool
    ) -> tuple[Tensor | None, list[Tensor]]:
        """Return the gradients of x, where it is wanted, and of weights and biases in turn, given that of h."""
        dY, gradients = gradient.T, []
        for i, A in reversed([*enumerate(matrices)]):
            X, Y, dZ = kept[i], kept[i + 1], dY
            if self.activation == "tanh":
                dZ = torch.ops.aten.tanh_backward(dY, Y)
            elif self.activation == "relu":
                dZ = torch.ops.aten.threshold_backward(dY, Y, 0)
            gradients += [dZ.sum(1), dZ @ X.T]
            if wanted or i > 0:
                dY = A.T @ dZ
        return dY.T if wanted else None, gradients[::-1]


class Compiled(Plain):
    """The same in one call each."""

    def __init__(self, activation: str, kernel: Kernel) -> None:
        super().__init__(activation)
        self.kernel, self.number = kernel, ("identity", "tanh", "relu").index(activation)

    def layers_for_c(self, tensors: Sequence[tuple[Tensor | None, ...]]) -> tuple[int, int, Any]:
        """Return what compiled code wants to know, given A, a, Y, dA, da of each layer: Layer of kernel/layers.h."""
        numbers: list[int] = []
        for of in tensors:
            assert of[0] is not None
            numbers += *of[0].shape, *(0 if x is None else x.data_ptr() for x in of)
        return self.number, len(tensors), (ctypes.c_int64 * len(numbers))(*numbers)

    def forward(self, x: Tensor, parameters: Sequence[Tensor]) -> tuple[Tensor, Sequence[Tensor]]:
        pairs, m = zip(parameters[::2], parameters[1::2], strict=True), x.shape[0]
        tensors = [(A, a, x.new_empty(A.shape[0], m), None, None) for A, a in pairs]
        self.kernel.layers_forward(self.kernel.products, *self.layers_for_c(tensors), m, x.data_ptr())
        columns = [Y for _, _, Y, _, _ in tensors]
        return columns[-1].T, [x, *columns]

    def backward(
        self, kept: Sequence[Tensor], matrices: Sequence[Tensor], gradient: Tensor, *, wanted: bool
    ) -> tuple[Tensor | None, list[Tensor]]:
        x, m, dY = kept[0], gradient.shape[0], gradient.T.contiguous()
        largest = max(A.shape[0] for A in matrices)
        spare, dx = x.new_empty(2 * largest * m), torch.empty_like(x) if wanted else None
        found = [(torch.empty_like(A), A.new_empty(A.shape[0])) for A in matrices]
        tensors = [(A, None, Y, dA, da) for A, Y, (dA, da) in zip(matrices, kept[1:], found, strict=True)]
        self.kernel.layers_backward(
            *(self.kernel.products, *self.layers_for_c(tensors), m, x.data_ptr(), dY.data_ptr()),
            *(spare.data_ptr(), largest, None if dx is None else dx.data_ptr()),
        )
        return dx, [x for pair in found for x in pair]


def way_for(x: Tensor, activation: str, parameters: Sequence[Tensor]) -> Plain:
    """Choose by what x and the parameters are; in float64 torch has the faster tanh."""
    inputs = x.shape[-1]
    for A, a in zip(parameters[::2], parameters[1::2], strict=True):
        if A.shape != (*a.shape, inputs):
            return Plain(activation)  # where torch says what does not fit
        inputs = A.shape[0]
    everything = (x, *parameters)
    fit = all(p.dtype == torch.float32 and p.is_cpu and p.is_contiguous() and p.numel() > 0 for p in everything)
    kernel = kernel_for(x) if fit and parameters and x.dim() == 2 else None
    return Plain(activation) if kernel is None else Compiled(activation, kernel)


def adagrad(optimiser: torch.optim.Adagrad) -> bool:
    """Take the step of `optimiser`, but for its hooks, by compiled code, where that can do it; say whether it did.

    torch spends as long on the way to its pass over the parameters as on the pass.
    """
    steps = []
    for group in optimiser.param_groups:
        if group["weight_decay"] or group["lr_decay"] or group["maximize"]:
            return False
        for x in group["params"]:
            kernel, g, state = kernel_for(x), x.grad, optimiser.state[x]
            sums, count = state["sum"], state["step"]
            if kernel is None or g is None or not plain(g) or count.dtype != torch.float32:
                return False
            if not (x.dtype == g.dtype == sums.dtype and x.shape == g.shape == sums.shape):
                return False
            if not (x.is_contiguous() and g.is_contiguous() and sums.is_contiguous()):
                return False
            pointers = x.data_ptr(), g.data_ptr(), sums.data_ptr(), count.data_ptr()
            steps.append((kernel.adagrad, (x.numel(), *pointers, group["lr"], group["eps"])))
    for function, arguments in steps:
        function(*arguments)
    increment_version([x for group in optimiser.param_groups for x in group["params"]])
    return True
