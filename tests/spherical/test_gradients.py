"""What may stand around the loss: upstream gradients, weights, decay, a prior, strange targets."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lstlm.errors import NumericsError
from lstlm.spherical import CustomLoss, DenseSphericalOutput, SphericalOutput, make_loss
from tests.spherical.oracle import (
    EPSILON,
    EXACT,
    LOSSES,
    NORMALISED,
    RATE,
    Batch,
    Dense,
    Layer,
    Paper,
    assert_same_step,
    assert_same_weights,
    loss_of,
    make_batch,
    random_weight,
)

D, d = 19, 6
SIZES = [3, 15]  # below d and above: the two forms of the step
WEIGHTS = torch.tensor([0.3, 0.0, 2.0, 1.0, 0.7] * 3, dtype=torch.float64)
REDUCTIONS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[int], Tensor]]] = {
    "mean": (lambda losses: losses.mean(), lambda m: torch.ones(m).double() / m),
    "sum": (lambda losses: losses.sum(), torch.ones),
    "weighted": (lambda losses: (losses * WEIGHTS[: len(losses)]).sum(), lambda m: WEIGHTS[:m]),
    "scaled": (lambda losses: 1024 * losses.mean(), lambda m: 1024 * torch.ones(m).double() / m),
    "one example": (lambda losses: losses[1], lambda m: torch.eye(m)[1]),
    "square": (lambda losses: (losses**2).sum() / 2, torch.zeros),  # upstream = the loss itself, filled in below
}


@pytest.mark.parametrize("m", SIZES)
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_whatever_upstream_delivers_is_what_w_learns_from(reduction: str, loss: str, m: int) -> None:
    W = random_weight(D, d)
    layer, dense = Layer(W, loss), Dense(W, loss)
    reduce, weight_of = REDUCTIONS[reduction]
    batch = make_batch(1, D, d, m, 2)
    batch.weight = weight_of(m).double()
    if reduction == "square":
        batch.weight = dense.gradients(batch)[0]
    eta = 0.2 * RATE[loss] / float(batch.weight.abs().sum())

    h = batch.H[:, :-1].clone().requires_grad_()
    losses = layer.head(h, batch.ids, batch.values)
    reduce(losses).backward()
    layer.head.update(eta)
    assert h.grad is not None
    assert_same_step((losses.detach(), h.grad), dense.step(batch, eta))
    assert_same_weights(layer, dense.W)


@pytest.mark.parametrize("m", SIZES)
def test_the_weight_argument_multiplies_the_losses(m: int) -> None:
    W = random_weight(D, d)
    layer, dense = Layer(W, "taylor"), Dense(W, "taylor")
    batch = replace(make_batch(1, D, d, m), weight=WEIGHTS[:m])
    layer.head(batch.H[:, :-1].requires_grad_(), batch.ids, weight=WEIGHTS[:m]).sum().backward()
    layer.head.update(0.05)
    dense.step(batch, 0.05)
    assert_same_weights(layer, dense.W)


@pytest.mark.parametrize("kind", [SphericalOutput, DenseSphericalOutput])
def test_fixed_features_need_no_gradient_of_their_own(kind: type) -> None:
    W = random_weight(D, d)
    layer, dense = Layer(W, "taylor", kind), Dense(W, "taylor")
    batch = make_batch(1, D, d, 4)
    layer.head(batch.H[:, :-1].clone(), batch.ids).mean().backward()
    layer.head.update(0.1)
    dense.step(batch, 0.1)
    assert_same_weights(layer, dense.W)


@pytest.mark.parametrize("loss", LOSSES)
def test_several_backward_passes_make_one_update(loss: str) -> None:
    W = random_weight(D, d)
    layer, dense = Layer(W, loss), Dense(W, loss)
    parts = [make_batch(seed, D, d, m, 2) for seed, m in ((1, 2), (2, 5), (3, 1))]
    for part in parts:
        assert_same_step(layer.backward(part), dense.gradients(part)[:2])
    layer.head.update(RATE[loss] / 3)
    names = ("H", "ids", "values", "weight")
    dense.step(Batch(**{name: torch.cat([getattr(part, name) for part in parts]) for name in names}), RATE[loss] / 3)
    assert_same_weights(layer, dense.W)


@pytest.mark.parametrize("kind", [SphericalOutput, DenseSphericalOutput])
@pytest.mark.parametrize("m", SIZES)
@pytest.mark.parametrize("loss", LOSSES)
def test_weight_decay(loss: str, m: int, kind: type) -> None:
    W = random_weight(D, d)
    layer, dense = Layer(W, loss, kind), Dense(W, loss)
    for step in range(12):
        batch = make_batch(step, D, d, m, 2)
        decay = 0.3 / RATE[loss] if step % 3 else 0.0
        assert_same_step(layer.step(batch, RATE[loss] / 2, decay=decay), dense.step(batch, RATE[loss] / 2, decay=decay))
    assert_same_weights(layer, dense.W)


@pytest.mark.parametrize("kind", [SphericalOutput, DenseSphericalOutput])
@pytest.mark.parametrize("m", SIZES)
@pytest.mark.parametrize("loss", NORMALISED)
def test_a_prior_tilts_the_softmax(loss: str, m: int, kind: type) -> None:
    """p_c ∝ π_c (1 + x_c + x_c²/2) or π_c (x_c² + ε), with x = o/√π the output before the tilt: by the definition."""
    W, prior = random_weight(D, d, scale=0.05), torch.arange(1, D + 1, dtype=torch.float64).flip(0)
    prior = prior / prior.sum()
    layer = Layer(W, loss, kind, prior=3 * prior)
    for step in range(12):
        batch = make_batch(step, D, d, m, 2)
        W.requires_grad_()
        H = batch.H.clone().requires_grad_()
        x = H @ W.T / prior.sqrt()
        P = prior * (x**2 + EPSILON if loss == "spherical" else 1 + x + x**2 / 2)
        log_prob = (P / P.sum(1, keepdim=True)).log()
        losses = -(batch.dense_targets(D) * log_prob).sum(1)
        grad_H, grad_W = torch.autograd.grad((losses * batch.weight).sum(), (H, W))
        torch.testing.assert_close(
            layer.head.log_prob(batch.H[:, :-1], batch.ids), log_prob.detach().gather(1, batch.ids), **EXACT
        )
        assert_same_step(layer.step(batch, 0.003), (losses.detach(), grad_H))
        W = (W - 0.003 * grad_W).detach()
    torch.testing.assert_close(layer.weight(), W, **EXACT)


def test_a_prior_alone_is_what_zero_weights_predict() -> None:
    prior = torch.rand(D, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) + 0.1
    head = SphericalOutput(d, D, make_loss("taylor"), init_scale=0.0, prior=prior, dtype=torch.float64)
    got = head.log_prob(torch.randn(2, d, dtype=torch.float64), torch.arange(D).expand(2, D))
    torch.testing.assert_close(got.exp(), (prior / prior.sum()).expand(2, D))


def test_a_custom_loss_may_ignore_some_of_its_arguments() -> None:
    W = random_weight(D, d)
    layer = Layer(W, "squared")
    layer.head.loss = CustomLoss(lambda q, s, o, t, D: q - 2 * (o * t).sum(1) + (t * t).sum(1))
    dense = Dense(W, "squared")
    for step in range(5):
        batch = make_batch(step, D, d, 4, 1)
        assert_same_step(layer.step(batch, 0.02), dense.step(batch, 0.02))
    assert_same_weights(layer, dense.W)


@st.composite
def targets(draw: st.DrawFn) -> tuple[int, int, Tensor]:
    """Draw D, d and target ids (m,K): any, all the same word, one word twice in an example, few words, D = 2, D < m."""
    vocab, width = draw(st.sampled_from([2, 3, 5, 30])), draw(st.integers(2, 8))
    m, K = draw(st.integers(1, 12)), draw(st.integers(1, 4))
    words = draw(st.sampled_from([1, 2, vocab]))
    ids = draw(st.lists(st.integers(0, min(words, vocab) - 1), min_size=m * K, max_size=m * K))
    # not always word 0
    return vocab, width, (torch.tensor(ids) + draw(st.integers(0, vocab - 1))).remainder(vocab).view(m, K)


@settings(max_examples=60)
@given(targets(), st.sampled_from(LOSSES), st.sampled_from(["paper", "layer"]))
def test_any_shape_and_any_pattern_of_targets(shape: tuple[int, int, Tensor], loss: str, subject: str) -> None:
    vocab, width, ids = shape
    W = random_weight(vocab, width, seed=vocab)
    tested, dense = (Paper if subject == "paper" else Layer)(W, loss), Dense(W, loss)
    for step in range(3):
        batch = make_batch(step, vocab, width, *ids.shape, ids=ids.roll(step, 0))
        eta = RATE[loss] * vocab / (60 * ids.shape[1])  # fewer outputs, more curvature each
        assert_same_step(tested.step(batch, eta), dense.step(batch, eta))
    assert_same_weights(tested, dense.W)


def test_losses_agree_with_their_probabilities() -> None:
    """One target of value 1: the loss is −log p."""
    for name in NORMALISED:
        layer = Layer(random_weight(D, d), name)
        batch = make_batch(3, D, d, 5)
        losses, _ = layer.backward(batch)
        torch.testing.assert_close(losses, -layer.head.log_prob(batch.H[:, :-1], batch.ids[:, 0]), **EXACT)
        assert loss_of(name).normalised and layer.head.normalised


@pytest.mark.parametrize("kind", [SphericalOutput, DenseSphericalOutput])
@pytest.mark.parametrize("K", [1, 3])
@pytest.mark.parametrize("m", SIZES)
@pytest.mark.parametrize("loss", LOSSES)
def test_learn_is_forward_backward_and_update(loss: str, m: int, K: int, kind: type) -> None:
    W = random_weight(D, d)
    layer, dense = Layer(W, loss, kind), Dense(W, loss)
    for step in range(5):
        batch = make_batch(step, D, d, m, K)
        batch.weight = WEIGHTS[:m] / m if step % 2 else batch.weight
        weight = batch.weight if step % 2 else None  # None: the mean
        got = layer.head.learn(batch.H[:, :-1], batch.ids, RATE[loss] / 4, batch.values, weight, weight_decay=0.1)
        assert_same_step(got, dense.step(batch, RATE[loss] / 4, 0.1))
    assert_same_weights(layer, dense.W)


def test_learn_forgets_a_backward_pass_that_was_not_followed_by_an_update() -> None:
    W = random_weight(D, d)
    layer, dense = Layer(W, "z"), Dense(W, "z")
    layer.backward(make_batch(7, D, d, 4))
    batch = make_batch(1, D, d, 4)
    assert_same_step(layer.head.learn(batch.H[:, :-1], batch.ids, 0.5), dense.step(batch, 0.5))
    assert_same_weights(layer, dense.W)


@pytest.mark.parametrize("m", SIZES)
@pytest.mark.parametrize("kind", [SphericalOutput, DenseSphericalOutput])
def test_value_and_grad_leaves_what_backward_leaves(kind: type, m: int) -> None:
    """It changes no weight; the norm of the gradient and one update for it and a backward() are as without it."""
    W = random_weight(D, d)
    layer, other, batches = Layer(W, "z", kind), Layer(W, "z", kind), [make_batch(step, D, d, m) for step in (0, 1)]
    got = layer.head.value_and_grad(batches[0].H[:, :-1], batches[0].ids, batches[0].values, batches[0].weight)
    assert_same_step(got, other.backward(batches[0]))
    assert torch.equal(layer.weight(), other.weight())
    assert layer.head.grad_norm() == pytest.approx(other.head.grad_norm(), rel=1e-12)
    assert_same_step(layer.backward(batches[1]), other.backward(batches[1]))
    for each in (layer, other):
        each.head.update(0.3)
    torch.testing.assert_close(layer.weight(), other.weight(), **EXACT)
    assert not torch.equal(layer.weight(), W)


def test_what_learn_returns_is_of_use_to_autograd_and_in_place() -> None:
    layer = Layer(random_weight(D, d), "z")
    below = torch.randn(d - 1, d - 1, dtype=torch.float64, requires_grad=True)
    h = torch.randn(4, d - 1, dtype=torch.float64) @ below
    losses, gradient = layer.head.learn(h, torch.tensor([1, 2, 3, 1]), 0.1)
    h.backward(gradient)
    assert below.grad is not None and float(below.grad.abs().sum()) > 0
    below.grad += gradient.mul_(2).sum() + losses.add_(1).sum()
    (below * losses.mean()).sum().backward()
    layer.head(h.detach(), torch.tensor([1, 2, 3, 1])).mean().backward()
    layer.head.update(0.1)


def test_learn_with_a_loss_that_autograd_differentiates() -> None:
    def fn(q: Tensor, s: Tensor, o: Tensor, t: Tensor, D: float) -> Tensor:
        return q + (t * (t - 2 * o)).sum(1)  # the squared error once more

    W = random_weight(D, d)
    layer, dense = Layer(W, "squared"), Dense(W, "squared")
    layer.head.loss = CustomLoss(fn)
    for step in range(3):
        batch = make_batch(step, D, d, 4)
        got = layer.head.learn(batch.H[:, :-1], batch.ids, RATE["squared"] / 4, batch.values)
        assert_same_step(got, dense.step(batch, RATE["squared"] / 4))
    assert_same_weights(layer, dense.W)


def test_there_is_no_second_derivative() -> None:
    layer = Layer(random_weight(D, d), "z")
    h = torch.randn(3, d - 1, dtype=torch.float64, requires_grad=True)
    losses = layer.head(h, torch.tensor([1, 2, 3]))
    with pytest.raises(NumericsError, match="second derivative"):
        torch.autograd.grad(losses.sum(), h, create_graph=True)


@pytest.mark.parametrize("kind", [SphericalOutput, DenseSphericalOutput])
def test_a_step_is_forgotten_without_the_help_of_the_garbage_collector(kind: type) -> None:
    """A cycle through autograd's nodes would keep every minibatch, megabytes each, until the collector comes by."""
    layer = Layer(random_weight(D, d), "z", kind)
    batch = make_batch(0, D, d, 4)
    gc.disable()
    try:
        for _ in range(2):
            h = batch.H[:, :-1].clone().requires_grad_()
            losses = layer.head(h, batch.ids)
            losses.mean().backward()
            step = weakref.ref(layer.head._pending[0].step)
            layer.head.update(0.1)
            del losses, h
            assert step() is None
    finally:
        gc.enable()
