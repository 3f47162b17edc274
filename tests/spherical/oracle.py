"""The dense answer by plain autograd, and the layers under test behind one small interface.

Nothing here is shared with the package: W is a leaf tensor, o = H Wᵀ has all D outputs, each loss is written out over
all of them, and the update is W −= η W.grad.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import softplus

from lstlm.spherical import CustomLoss, SphericalLoss, SphericalOutput, make_loss
from lstlm.spherical.paper import PaperState, minibatch_spherical, minibatch_squared_error, online_squared_error
from lstlm.spherical.state import FactoredState

A, B, EPSILON = 0.7, 3.0, 0.05
LOSSES = ["squared", "spherical", "taylor", "z", "custom"]
NORMALISED = ["spherical", "taylor"]
# learning rates for the mean over a minibatch: large enough to move W by much more than rounding, below the limit
RATE = {"squared": 0.02, "spherical": 0.4, "taylor": 0.3, "z": 1.5, "custom": 0.2}
EXACT = {"rtol": 1e-9, "atol": 1e-9}


def custom(q: Tensor, s: Tensor, o: Tensor, t: Tensor, D: float) -> Tensor:
    """A spherical loss of no particular merit that uses each of its arguments."""
    return torch.log1p(q / D) + (s / D) ** 2 + (t * torch.sin(o)).sum(1)


def loss_of(name: str) -> SphericalLoss:
    return CustomLoss(custom) if name == "custom" else make_loss(name, a=A, b=B, epsilon=EPSILON)


def dense_losses(name: str, O: Tensor, Y: Tensor) -> Tensor:  # noqa: E741
    """Return the losses (m,) from all outputs O and dense targets Y (m,D)."""
    if name == "squared":
        return ((O - Y) ** 2).sum(1)
    if name == "z":
        Z = (O - O.mean(1, keepdim=True)) / O.std(1, unbiased=False, keepdim=True)
        return (Y * softplus(A * (B - Z)) / A).sum(1)
    if name == "custom":
        return torch.log(1 + (O**2).mean(1)) + O.mean(1) ** 2 + (Y * torch.sin(O)).sum(1)
    return -(Y * dense_probabilities(name, O).log()).sum(1)


def dense_probabilities(name: str, O: Tensor) -> Tensor:  # noqa: E741
    """Return p (m,D) of a softmax by explicit normalisation."""
    P = O**2 + EPSILON if name == "spherical" else 1 + O + O**2 / 2
    return P / P.sum(1, keepdim=True)


@dataclass
class Batch:
    """H (m,d) whose last column is the constant 1, ids and values (m,K), weight (m,): the upstream gradient."""

    H: Tensor
    ids: Tensor
    values: Tensor
    weight: Tensor

    @property
    def m(self) -> int:
        return len(self.H)

    def dense_targets(self, D: int) -> Tensor:
        """Return Y (m,D); an id that an example names twice has the sum of its values."""
        return torch.zeros(self.m, D, dtype=self.H.dtype).scatter_add_(1, self.ids, self.values)

    def to(self, dtype: torch.dtype) -> Batch:
        return Batch(self.H.to(dtype), self.ids, self.values.to(dtype), self.weight.to(dtype))


def make_batch(seed: int, D: int, d: int, m: int, K: int = 1, *, ids: Tensor | None = None) -> Batch:
    """Draw a minibatch; the mean loss, that is weight 1/m each."""
    g = torch.Generator().manual_seed(seed)
    H = torch.randn(m, d, generator=g, dtype=torch.float64)
    H[:, -1] = 1
    drawn = torch.randint(D, (m, K), generator=g) if ids is None else ids
    values = torch.ones(m, 1) if K == 1 else torch.rand(m, K, generator=g) + 0.2
    return Batch(H, drawn, values.double(), torch.full((m,), 1 / m, dtype=torch.float64))


def random_weight(D: int, d: int, seed: int = 0, scale: float = 0.4) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    return scale * torch.randn(D, d, generator=g, dtype=torch.float64)


class Dense:
    """W (D,d) under plain SGD by autograd."""

    def __init__(self, W: Tensor, loss: str) -> None:
        self.W, self.loss = W.clone(), loss

    def gradients(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Return the losses (m,), and the gradients of Σ weight·loss to H and W."""
        W, H = self.W.clone().requires_grad_(), batch.H.clone().requires_grad_()
        losses = dense_losses(self.loss, H @ W.T, batch.dense_targets(len(W)).to(W))
        (losses * batch.weight).sum().backward()
        assert H.grad is not None and W.grad is not None
        return losses.detach(), H.grad, W.grad

    def step(self, batch: Batch, eta: float, decay: float = 0.0) -> tuple[Tensor, Tensor]:
        """One step; return the losses and the gradient to H."""
        losses, grad_H, grad_W = self.gradients(batch)
        self.W = (1 - eta * decay) * self.W - eta * grad_W
        return losses, grad_H


class Paper:
    """The paper's algorithms: `general` is Algorithm 4, `minibatch` 3 and `online` 2 (one example)."""

    def __init__(self, W: Tensor, loss: str, algorithm: str = "general") -> None:
        self.state, self.loss, self.algorithm = PaperState.initialise(W), loss, algorithm

    def step(self, batch: Batch, eta: float) -> tuple[Tensor, Tensor]:
        # The algorithms minimise the sum; equal weights belong to the learning rate.
        weight = float(batch.weight[0])
        assert bool((batch.weight == weight).all())
        arguments = (self.state, batch.H, batch.ids, batch.values, eta * weight)
        if self.algorithm == "general":
            losses, grad_H = minibatch_spherical(*arguments, loss_of(self.loss))
        elif self.algorithm == "minibatch":
            losses, grad_H = minibatch_squared_error(*arguments)
        else:
            loss, grad_h = online_squared_error(self.state, batch.H[0], batch.ids[0], batch.values[0], eta * weight)
            losses, grad_H = loss[None], grad_h[None]
        return losses, grad_H * weight

    def weight(self) -> Tensor:
        return self.state.weight()

    def parts(self) -> dict[str, Tensor]:
        return {name: getattr(self.state, name) for name in ("Q", "w_bar", "U", "U_inv_T")}


InTorch = partial(SphericalOutput, impl="torch")
"""The layer without compiled code."""


class Layer:
    """SphericalOutput, or its naive twin, through its public face."""

    def __init__(
        self, W: Tensor, loss: str, kind: Callable[..., SphericalOutput] = SphericalOutput, **settings: object
    ) -> None:
        D, d = W.shape
        self.head = kind(d - 1, D, loss_of(loss), dtype=W.dtype, init_scale=0.0, **settings)
        self.head.set_weight(W)

    def backward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the losses and the gradient of Σ weight·loss to H, without the constant column."""
        h = batch.H[:, :-1].clone().requires_grad_()
        losses = self.head(h, batch.ids, batch.values)
        (losses * batch.weight).sum().backward()
        assert h.grad is not None
        return losses.detach(), h.grad

    def step(self, batch: Batch, eta: float, decay: float = 0.0) -> tuple[Tensor, Tensor]:
        result = self.backward(batch)
        self.head.update(eta, decay)
        return result

    def weight(self) -> Tensor:
        return torch.cat([self.head.weight(), self.head.bias_vector()[:, None]], 1)

    def parts(self) -> dict[str, Tensor]:
        state = self.head.state
        assert isinstance(state, FactoredState)
        parts = {name: state.exactly(name) for name in ("Q", "w_bar", "U", "U_inv_T")}
        return {**parts, "w_bar": parts["w_bar"].reshape(-1)}


def assert_same_step(got: tuple[Tensor, Tensor], expected: tuple[Tensor, Tensor]) -> None:
    """Compare losses and gradients to H; a layer gives the latter without the constant column."""
    for one, other in zip(got, (expected[0], expected[1][:, : got[1].shape[1]]), strict=True):
        assert one.shape == other.shape
        torch.testing.assert_close(one, other, **EXACT)


def assert_same_weights(subject: Paper | Layer, W: Tensor) -> None:
    """Compare W, and check Q = WᵀW, w̄ = Wᵀ1, U U⁻¹ = I where the subject has them."""
    torch.testing.assert_close(subject.weight(), W, **EXACT)
    if isinstance(subject, Layer) and not isinstance(subject.head.state, FactoredState):
        return
    parts = subject.parts()
    torch.testing.assert_close(parts["Q"], W.T @ W, **EXACT)
    torch.testing.assert_close(parts["w_bar"], W.sum(0), **EXACT)
    torch.testing.assert_close(parts["U"] @ parts["U_inv_T"].T, torch.eye(W.shape[1], dtype=W.dtype), **EXACT)


def snapshot(head: torch.nn.Module) -> dict[str, Tensor]:
    """Return a copy of the whole state, derived buffers included."""
    return {name: buffer.clone() for name, buffer in head.named_buffers()}


def assert_unchanged(head: torch.nn.Module, before: dict[str, Tensor]) -> None:
    after = snapshot(head)
    assert after.keys() == before.keys()
    for name in before:
        assert torch.equal(after[name], before[name]), f"{name} has changed"


def scaled(batch: Batch, factor: float) -> Batch:
    """The same minibatch with stronger or weaker hidden values; the constant column stays 1."""
    H = batch.H * factor
    H[:, -1] = 1
    return replace(batch, H=H)
