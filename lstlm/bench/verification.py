"""The factored and the naive output layer side by side: are they the same layer?

Both start from the same W and see the same minibatches. The naive layer stores W in full and runs in float64: it is the
truth for both dtypes. Targets follow Zipf's law, as words do; the hidden values depend on the target and drift, so that
there is something to learn; with squared error and the Z-loss U is repaired many times on the way.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from lstlm.registry import LOSSES
from lstlm.spherical import DenseSphericalOutput, SphericalOutput, make_loss

BOUND = {"float64": 1e-9, "float32": 1e-3}
VOCAB, HIDDEN, BATCH = 2000, 63, 32  # with the constant feature, d = 64


@dataclass(frozen=True)
class Errors:
    """Relative errors ‖factored − naive‖ / ‖naive‖: of the last state (W to U_inv_T), and of all steps taken together.

    Together, because one step alone may be ill-conditioned: near o_c = 0 the spherical softmax turns a rounding error
    of its output into one 2/ε = 200 times as large, in the naive layer as well.
    """

    W: float
    Q: float
    w_bar: float
    U_inv_T: float
    grad_H: float
    loss: float

    def worst(self) -> float:
        # `max` would pass over a nan in any place but the first
        return max((math.inf if value != value else value) for value in asdict(self).values())


def minibatches(steps: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield h (m,hidden) in float64, exactly representable in float32, and target ids (m,)."""
    generator = torch.Generator().manual_seed(seed)
    frequency = 1 / torch.arange(1.0, VOCAB + 1)
    meaning = torch.randn(VOCAB, HIDDEN, generator=generator)
    drift = torch.zeros(HIDDEN)
    for _ in range(steps):
        ids = torch.multinomial(frequency, BATCH, replacement=True, generator=generator)
        drift += 0.02 * torch.randn(HIDDEN, generator=generator)
        noise = torch.randn(BATCH, HIDDEN, generator=generator)
        yield torch.tanh(0.7 * meaning[ids] + 0.5 * noise + drift).double(), ids


def compare(loss: str, steps: int, dtype: str, seed: int, tick: Callable[[], object] = lambda: None) -> Errors:
    """Train both layers for `steps` minibatches and return how far the factored one is from the naive one."""
    precision = torch.float64 if dtype == "float64" else torch.float32
    # Not zero, not even for squared error: equal by being zero would prove nothing.
    W = torch.randn(VOCAB, HIDDEN + 1, generator=torch.Generator().manual_seed(seed)) * 0.5 / HIDDEN**0.5
    factored = SphericalOutput(HIDDEN, VOCAB, make_loss(loss), dtype=precision, init_scale=0.0)
    naive = DenseSphericalOutput(HIDDEN, VOCAB, make_loss(loss), dtype=torch.float64, init_scale=0.0)
    factored.set_weight(W)
    naive.set_weight(W)
    grad_error, loss_error, rate = Total(), Total(), LOSSES[loss].verify_rate
    for h, ids in minibatches(steps, seed):
        losses, grad = _step(factored, h.to(precision), ids, rate)
        true_losses, true_grad = _step(naive, h, ids, rate)
        grad_error.add(grad, true_grad)
        loss_error.add(losses, true_losses)
        tick()
    return _errors_of_state(factored, naive, grad_error.relative(), loss_error.relative())


def _step(head: SphericalOutput | DenseSphericalOutput, h: Tensor, ids: Tensor, lr: float) -> tuple[Tensor, Tensor]:
    h.requires_grad_()
    h.grad = None
    losses = head(h, ids)
    (grad,) = torch.autograd.grad(losses.mean(), h)
    head.update(lr)
    return losses.detach(), grad


def _errors_of_state(factored: SphericalOutput, naive: DenseSphericalOutput, grad: float, loss: float) -> Errors:
    W, state = naive.state.materialise(), factored.state
    U = state.exactly("U")
    return Errors(
        W=relative(state.materialise(), W),
        Q=relative(state.exactly("Q"), W.T @ W),
        w_bar=relative(state.exactly("w_bar").reshape(-1), W.sum(0)),
        U_inv_T=relative(state.exactly("U_inv_T"), torch.linalg.inv(U).T),
        grad_H=grad,
        loss=loss,
    )


class Total:
    """‖got − truth‖ / ‖truth‖ over everything added, in float64."""

    def __init__(self) -> None:
        self.error = self.truth = 0.0

    def add(self, got: Tensor, truth: Tensor) -> None:
        self.error += float((got.double() - truth.double()).square().sum())
        self.truth += float(truth.double().square().sum())

    def relative(self) -> float:
        error = math.sqrt(self.error / max(self.truth, 1e-300))
        return error if error == error else math.inf


def relative(got: Tensor, truth: Tensor) -> float:
    """Return ‖got − truth‖ / ‖truth‖ over all entries; inf where a number is not finite."""
    total = Total()
    total.add(got, truth)
    return total.relative()
