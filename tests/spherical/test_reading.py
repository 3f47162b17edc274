"""Probabilities, best words and norms, without all D outputs where that is possible, equal to the dense ones."""

from __future__ import annotations

import math

import pytest
import torch

from lstlm.protocol.scan import SCAN_ROWS
from lstlm.spherical import DenseSphericalOutput, SphericalOutput
from tests.spherical.oracle import (
    EXACT,
    LOSSES,
    NORMALISED,
    RATE,
    Dense,
    Layer,
    dense_probabilities,
    make_batch,
    random_weight,
)

D, d = 37, 6
KINDS = [SphericalOutput, DenseSphericalOutput]


def trained(loss: str, kind: type, words: int = D, **settings: object) -> tuple[Layer, Dense]:
    W = random_weight(words, d)
    layer, dense = Layer(W, loss, kind, **settings), Dense(W, loss)
    for step in range(12):
        batch = make_batch(step, words, d, 4, 2)
        layer.step(batch, RATE[loss])
        dense.step(batch, RATE[loss])
    return layer, dense


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("loss", NORMALISED)
def test_log_prob_is_normalised_and_exact(loss: str, kind: type) -> None:
    layer, dense = trained(loss, kind)
    H = make_batch(99, D, d, 5).H
    everything = layer.head.log_prob(H[:, :-1], torch.arange(D).expand(5, D))
    torch.testing.assert_close(everything.exp().sum(1), torch.ones(5, dtype=torch.float64), **EXACT)
    torch.testing.assert_close(everything, dense_probabilities(loss, H @ dense.W.T).log(), **EXACT)
    some = torch.tensor([3, 0, 36, 3, 8])
    torch.testing.assert_close(layer.head.log_prob(H[:, :-1], some), everything.gather(1, some[:, None])[:, 0])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("words", [D, 2 * SCAN_ROWS + 7], ids=["one block", "several blocks"])
@pytest.mark.parametrize("k", [1, 7, D])
def test_topk(loss: str, kind: type, k: int, words: int) -> None:
    layer, dense = trained(loss, kind, words)
    H = make_batch(99, words, d, 5).H
    scores = H @ dense.W.T
    if loss in NORMALISED:
        scores = dense_probabilities(loss, scores).log()
    expected = scores.topk(k)
    got, ids = layer.head.topk(H[:, :-1], k)
    torch.testing.assert_close(got, expected.values, **EXACT)
    assert torch.equal(ids, expected.indices)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("m", [3, 15])
@pytest.mark.parametrize("loss", LOSSES)
def test_norms(loss: str, m: int, kind: type) -> None:
    layer, dense = trained(loss, kind)
    assert layer.head.weight_norm() == pytest.approx(float(dense.W.norm()), rel=1e-9)
    assert math.isnan(layer.head.grad_norm()), "nothing has been delivered"
    batches = [make_batch(50 + part, D, d, m, 2) for part in range(2)]
    total = torch.zeros_like(dense.W)
    for batch in batches:
        layer.backward(batch)
        total += dense.gradients(batch)[2]
        assert layer.head.grad_norm() == pytest.approx(float(total.norm()), rel=1e-9)


@pytest.mark.parametrize("blocked", [False, True])
def test_grad_norm_of_the_naive_layers(blocked: bool) -> None:
    layer, dense = trained("taylor", DenseSphericalOutput, blocked=blocked)
    batch = make_batch(50, D, d, 4, 2)
    layer.backward(batch)
    assert layer.head.grad_norm() == pytest.approx(float(dense.gradients(batch)[2].norm()), rel=1e-9)


def test_diagnostics_tell_how_the_factors_are() -> None:
    layer, _ = trained("taylor", SphericalOutput)
    facts = layer.head.diagnostics()
    sigma = torch.linalg.svdvals(layer.parts()["U"])
    assert facts["sigma_min"] == pytest.approx(float(sigma[-1]))
    assert facts["sigma_max"] == pytest.approx(float(sigma[0]))
    assert 0 <= facts["inverse_error"] < 1e-12
    assert 0 <= facts["q_error_sampled"] < 1e-9
    assert layer.head.statistics()["stabilisations"] == 0

    layer.head.state.assign(Q=1.01 * layer.head.state.exactly("Q"))
    assert layer.head.diagnostics()["q_error_sampled"] > 1e-4, "a wrong Q must show"


def test_nothing_is_recorded_outside_of_grad_mode() -> None:
    layer, _ = trained("taylor", SphericalOutput)
    batch = make_batch(50, D, d, 4)
    with torch.no_grad():
        losses = layer.head(batch.H[:, :-1].requires_grad_(), batch.ids)
    assert not losses.requires_grad
    assert math.isnan(layer.head.grad_norm())
