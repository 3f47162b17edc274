"""Every output layer written out in plain autograd over the whole vocabulary: what the battery compares with.

A definition holds copies of the layer's weights as leaves, `losses` (m,) and, where normalised, `log_probs` (m,D).
"""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from lstlm.config import OutputConfig


class Dense:
    """Weights as leaves; SGD by hand. Subclasses say what the losses are."""

    def __init__(self, layer: nn.Module) -> None:
        self.layer = layer
        self.leaves: dict[str, Tensor] = {}

    def take(self, **tensors: Tensor) -> None:
        self.leaves = {name: t.detach().double().clone().requires_grad_() for name, t in tensors.items()}

    def before_forward(self) -> None:
        """Called just before the layer's own forward of the same step."""

    def losses(self, h: Tensor, ids: Tensor, t: Tensor) -> Tensor:
        return -(t * self.log_probs(h).gather(1, ids)).sum(1)

    def log_probs(self, h: Tensor) -> Tensor:
        raise AssertionError("this layer defines no probability")

    def outputs(self, h: Tensor) -> Tensor:
        return h @ self.leaves["W"].T + self.leaves["b"]

    def sgd(self, lr: float, weight_decay: float) -> None:
        with torch.no_grad():
            for leaf in self.leaves.values():
                gradient = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
                leaf.sub_(lr * (gradient + weight_decay * leaf))
                leaf.grad = None

    def layer_weights(self) -> dict[str, Tensor]:
        return {"W": self.layer.weight(), "b": self.layer.bias_vector()}


class DenseLinear(Dense):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__(layer)
        self.take(**self.layer_weights())

    def log_probs(self, h: Tensor) -> Tensor:
        return self.outputs(h).log_softmax(1)


class DenseSpherical(DenseLinear):
    """squared, z, spherical, taylor: from the outputs, not from their norm and sum."""

    def __init__(self, layer: nn.Module, loss: str, a: float, b: float, epsilon: float) -> None:
        super().__init__(layer)
        self.loss, self.a, self.b, self.epsilon = loss, a, b, epsilon

    def losses(self, h: Tensor, ids: Tensor, t: Tensor) -> Tensor:
        o = self.outputs(h)
        if self.loss == "squared":
            return (o - torch.zeros_like(o).scatter_add(1, ids, t)).square().sum(1)
        if self.loss == "z":
            z = (o - o.mean(1, keepdim=True)) / o.std(1, unbiased=False, keepdim=True)
            return (t * softplus(self.a * (self.b - z.gather(1, ids))) / self.a).sum(1)
        return super().losses(h, ids, t)

    def log_probs(self, h: Tensor) -> Tensor:
        o = self.outputs(h)
        numerator = {"spherical": o**2 + self.epsilon, "taylor": 1 + o + o**2 / 2}[self.loss]
        return (numerator / numerator.sum(1, keepdim=True)).log()


class DenseHierarchical(Dense):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__(layer)
        self.group, _ = layer.locate(torch.arange(layer.vocab))
        self.take(**self.layer_weights())

    def layer_weights(self) -> dict[str, Tensor]:
        classes = self.layer.classes
        return {**super().layer_weights(), "R": classes.weight(), "r": classes.bias_vector()}

    def log_probs(self, h: Tensor) -> Tensor:
        by_class = (h @ self.leaves["R"].T + self.leaves["r"]).log_softmax(1)
        o = self.outputs(h)
        columns = []
        for word in range(self.layer.vocab):
            mates = self.group == self.group[word]
            columns.append(by_class[:, self.group[word]] + o[:, word] - o[:, mates].logsumexp(1))
        return torch.stack(columns, 1)


class DenseAdaptive(Dense):
    """A short list and tails: p(word in tail) = p(tail) · softmax(W₂ W₁ h)[word]."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__(layer)
        self.take(**self.layer_weights())

    def layer_weights(self) -> dict[str, Tensor]:
        return {name.replace(".", "_"): p for name, p in self.layer.module.named_parameters()}

    def log_probs(self, h: Tensor) -> Tensor:
        head = h @ self.leaves["head_weight"].T
        if "head_bias" in self.leaves:
            head = head + self.leaves["head_bias"]
        tails = self.layer.module.n_clusters
        short = head.shape[1] - tails
        head = head.log_softmax(1)
        parts = [head[:, :short]]
        for i in range(tails):
            inner = h @ self.leaves[f"tail_{i}_0_weight"].T @ self.leaves[f"tail_{i}_1_weight"].T
            parts.append(head[:, short + i, None] + inner.log_softmax(1))
        return torch.cat(parts, 1)[:, self.layer.rank]


class DenseSampled(DenseLinear):
    """Scores minus log of the expected count, over the candidates and the target, −∞ elsewhere."""

    def __init__(self, layer: nn.Module, counts: Tensor) -> None:
        super().__init__(layer)
        rank = counts.argsort(descending=True, stable=True).argsort().double()
        self.p = torch.log((rank + 2) / (rank + 1)) / math.log(len(counts) + 1)

    def before_forward(self) -> None:
        self.candidates, self.tries = copy.deepcopy(self.layer).draw()

    def losses(self, h: Tensor, ids: Tensor, t: Tensor) -> Tensor:
        allowed = torch.full((len(h), self.layer.vocab), -torch.inf, dtype=h.dtype)
        allowed[:, self.candidates] = 0.0
        allowed.scatter_(1, ids, 0.0)
        expected = 1.0 - (1.0 - self.p) ** self.tries
        log_p = (self.outputs(h) - expected.log() + allowed).log_softmax(1)
        return -(t * log_p.gather(1, ids)).sum(1)


class DenseShortlist(Dense):
    """softmax over the short list, the classes of the middle and "the rest", times one over the words of a class.

    In the tail times ρ·t(õ)/Σρ·t(õ) instead, from all of its outputs.

    The leaves of the tail are √ρ∘W̃, on which the layer takes its plain SGD step.
    """

    def __init__(self, layer: nn.Module, loss: str, config: OutputConfig, counts: Tensor, classes: Tensor) -> None:
        super().__init__(layer)
        self.loss, self.epsilon, self.config, self.classes = loss, config.epsilon, config, classes
        order = counts.argsort(descending=True, stable=True)
        k, near = config.shortlist, config.shortlist + len(classes)
        self.listed, self.mid, self.far = order[:k], order[k:near], order[near:]
        prior = (counts[self.far].double() + 1.0) ** config.prior_power
        self.prior = prior / prior.sum()
        self.take(**self.layer_weights())

    def layer_weights(self) -> dict[str, Tensor]:
        """The rows of the top as they are stored, those of the others from the words' vectors."""
        W, b, root, head = self.layer.weight(), self.layer.bias_vector(), self.prior.sqrt(), self.layer.head
        middle = {"V": W[self.mid, : self.config.middle_inputs], "v": b[self.mid]}
        tail = {"W": root[:, None] * W[self.far, : self.config.tail_inputs], "b": root * b[self.far]}
        return {"S": head.weight(), "s": head.bias_vector(), **middle, **tail}

    def log_probs(self, h: Tensor) -> Tensor:
        top, k = (h @ self.leaves["S"].T + self.leaves["s"]).log_softmax(1), len(self.listed)
        found = torch.empty(len(h), self.layer.vocab, dtype=h.dtype)
        found[:, self.listed] = top[:, :k]
        scores = h[:, : self.config.middle_inputs] @ self.leaves["V"].T + self.leaves["v"]
        for group in range(len(self.classes.unique())):
            mates = self.classes == group
            found[:, self.mid[mates]] = top[:, k + group, None] + scores[:, mates].log_softmax(1)
        o = (h[:, : self.config.tail_inputs] @ self.leaves["W"].T + self.leaves["b"]) / self.prior.sqrt()
        t = self.prior * {"spherical": o**2 + self.epsilon, "taylor": 1 + o + o**2 / 2}[self.loss]
        found[:, self.far] = top[:, -1:] + (t / t.sum(1, keepdim=True)).log()
        return found
