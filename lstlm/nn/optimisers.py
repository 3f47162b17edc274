"""What moves the weights of a network: each part by a rule of its own.

Hidden layers learn by Adagrad, Adam or SGD as torch.optim has them, but not by torch.optim: the first optimiser that
it makes imports torch's compiler, 130 MB and a second or two that training has no use for.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.autograd.graph import increment_version

from lstlm.config import OptimConfig, output_rate
from lstlm.errors import CheckpointError, ConfigError
from lstlm.kernels import ops
from lstlm.kernels.ops import adagrad_rows, add_rows
from lstlm.nn.network import Network
from lstlm.protocol.saved import bounds, check_like, insist


class HiddenOptimiser(ABC):
    """A rule for dense parameters. Its state has torch.optim's names and values: one tensor a name and parameter."""

    names: ClassVar[tuple[str, ...]]
    signed = ("exp_avg", "momentum_buffer")  # what may be below 0

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self.parameters = parameters
        self.state = {
            name: [
                p.new_zeros((), dtype=torch.float32) if name == "step" else torch.zeros_like(p.data) for p in parameters
            ]
            for name in self.names
        }

    def step(self, lr: float) -> None:
        """Move every parameter that has a gradient."""
        every = zip(self.parameters, *self.state.values(), strict=True)
        learning = [(p, p.grad.contiguous(), *its) for p, *its in every if p.grad is not None]
        if learning:
            parameters, *others = map(list, zip(*learning, strict=True))
            self._move(lr, parameters, *others)
            increment_version(parameters)  # compiled code does not tell autograd by itself

    @abstractmethod
    def _move(self, lr: float, parameters: list[Tensor], gradients: list[Tensor], *state: list[Tensor]) -> None:
        """Change parameters and state, in the order of `names`, in place."""

    def state_dict(self) -> dict[str, Any]:
        """Return {"state": {number of the parameter: {name: tensor}}}: references, not copies."""
        each = range(len(self.parameters))
        return {"state": {number: {name: self.state[name][number] for name in self.names} for number in each}}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Take over a state of the same rule for parameters of the same shapes."""
        for number in range(len(self.parameters)):
            values = saved["state"].get(number, {})
            mine = {name: self.state[name][number] for name in self.names}
            if values.keys() != mine.keys() or any(values[name].shape != mine[name].shape for name in mine):
                raise CheckpointError("optimiser state: made with other optim.hidden or model.hidden than this run's")
            for name, value in mine.items():
                check_like(f"optimiser state: {name}", values[name], value)
                insist(name in self.signed or bounds(values[name])[0] >= 0, f"optimiser state: {name} below 0")
                value.copy_(values[name])
        insist(len(set(map(float, self.state.get("step", ())))) <= 1, "optimiser state: parameters of different steps")


class Adagrad(HiddenOptimiser):
    """s += g², x −= lr · g / (√s + ε)."""

    names = ("step", "sum")

    def _move(self, lr: float, parameters: list[Tensor], gradients: list[Tensor], *state: list[Tensor]) -> None:
        counts, sums = state
        ops.adagrad(parameters, gradients, sums, counts, lr, ops.ADAGRAD_EPSILON)


class Adam(HiddenOptimiser):
    """Adam with β = 0.9 and 0.999, without weight decay."""

    names = ("step", "exp_avg", "exp_avg_sq")

    def _move(self, lr: float, parameters: list[Tensor], gradients: list[Tensor], *state: list[Tensor]) -> None:
        counts, means, squares = state
        ops.adam(parameters, gradients, means, squares, counts, (lr, 0.9, 0.999, 1e-8))


class Sgd(HiddenOptimiser):
    """v ← momentum · v + g, x −= lr · v."""

    names = ("momentum_buffer",)

    def __init__(self, parameters: list[nn.Parameter], momentum: float) -> None:
        super().__init__(parameters)
        self.momentum = momentum

    @torch.no_grad()
    def _move(self, lr: float, parameters: list[Tensor], gradients: list[Tensor], *state: list[Tensor]) -> None:
        for x, g, v in zip(parameters, gradients, *state, strict=True):
            x.add_(v.mul_(self.momentum).add_(g), alpha=-lr)


def _hidden_optimiser(parameters: list[nn.Parameter], config: OptimConfig) -> HiddenOptimiser | None:
    """Return the rule that the configuration names; None where there is nothing to move."""
    if not parameters:
        return None
    match config.hidden:
        case "adagrad":
            return Adagrad(parameters)
        case "adam":
            return Adam(parameters)
        case "sgd":
            return Sgd(parameters, config.momentum)
    raise ConfigError(f"optim.hidden {config.hidden!r}: choose adagrad, adam or sgd")


class Optimisers:
    """One step of everything: the output layer by its own rule, hidden layers by one of those above, E row by row."""

    def __init__(self, network: Network, config: OptimConfig) -> None:
        self.network, self.config = network, config
        self.weight_decay = network.config.output.weight_decay
        chosen = config.output_lr
        self.output_lr = output_rate(network.config, network.embedding.vocab) if chosen is None else chosen
        self._parameters = list(network.hidden.parameters())
        self.hidden = _hidden_optimiser(self._parameters, config)
        table = network.embedding.weight
        self.squares = table.new_zeros(len(table)) if config.embedding == "adagrad" else None

    def zero(self) -> None:
        """Forget the gradients of the last batch."""
        for parameter in self._parameters:
            parameter.grad = None
        self.network.embedding.discard()
        self.network.output.discard()

    def step(self, lr_scale: float = 1.0) -> None:
        """Update everything, each rate times lr_scale. The output layer first: if it refuses, nothing moved."""
        self.step_output(lr_scale)
        self.step_hidden(lr_scale)
        self.step_embedding(lr_scale)

    def step_output(self, lr_scale: float = 1.0) -> None:
        """Update the output layer."""
        self.network.output.update(self.output_lr * lr_scale, self.weight_decay)

    def step_hidden(self, lr_scale: float = 1.0) -> None:
        """Update the hidden layers."""
        if self.hidden is not None:
            self.hidden.step(self.config.hidden_lr * lr_scale)

    def step_embedding(self, lr_scale: float = 1.0) -> None:
        """Update the rows of the embedding table that the batch read. O(m·n·size), free of the vocabulary."""
        embedding, lr = self.network.embedding, self.config.embedding_lr * lr_scale
        if self.squares is None:
            add_rows(embedding.weight, embedding.gradient(), -lr)
        else:
            adagrad_rows(embedding.weight, self.squares, embedding.gradient(), lr)
        embedding.discard()

    def state_dict(self) -> dict[str, Any]:
        """Return {"hidden": a state or None, "squares": (D,) or None}; the output layer's state is its own."""
        return {"hidden": None if self.hidden is None else self.hidden.state_dict(), "squares": self.squares}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a state of the same optimisers."""
        squares, hidden = state["squares"], state["hidden"]
        if (squares is None) != (self.squares is None) or (hidden is None) != (self.hidden is None):
            raise CheckpointError("optimiser state: made with other optim.embedding or model.hidden than this run's")
        if self.squares is not None and squares is not None:
            if squares.shape != self.squares.shape:
                raise CheckpointError(f"optimiser state: {len(squares)} words, this vocabulary has {len(self.squares)}")
            check_like("optimiser state: squares", squares, self.squares)
            insist(bounds(squares)[0] >= 0, "optimiser state: squares below 0")
            self.squares.copy_(squares)
        if self.hidden is not None:
            self.hidden.load_state_dict(hidden)
