"""Stabilisers change the factors and never W; a learning rate above its limit is refused before anything changes."""

from __future__ import annotations

import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lstlm.errors import ConfigError, NumericsError
from lstlm.registry import STABILISERS, load
from lstlm.spherical import SphericalOutput, SquaredError
from lstlm.spherical.shrink import Shrink
from lstlm.spherical.state import FactoredState
from tests.spherical.oracle import (
    EXACT,
    LOSSES,
    Dense,
    Layer,
    assert_same_step,
    assert_same_weights,
    assert_unchanged,
    make_batch,
    random_weight,
    scaled,
    snapshot,
)

pytestmark = pytest.mark.usefixtures("both_ways")

D, d = 31, 6
REPAIRING = [method for method in STABILISERS.names() if method != "none"]


def skewed_state(sigma: list[float], seed: int, lazy: bool) -> FactoredState:
    """A state whose U has the singular values `sigma` and whose ω is not zero, as after some training."""
    state = FactoredState(random_weight(D, d, seed), lazy=lazy)
    g = torch.Generator().manual_seed(seed)
    left, right = (torch.linalg.qr(torch.randn(d, d, generator=g, dtype=torch.float64)).Q for _ in range(2))
    state.set_frame(left @ torch.diag(torch.tensor(sigma, dtype=torch.float64)) @ right)
    state.assign(omega=random_weight(1, d, seed + 1))
    state.refresh_gram()
    return state


@settings(max_examples=25)
@given(st.lists(st.floats(-4, 3), min_size=d, max_size=d), st.integers(0, 99), st.sampled_from(STABILISERS.names()))
def test_w_is_unchanged_and_u_comes_into_range(exponents: list[float], seed: int, method: str) -> None:
    state = skewed_state([10**e for e in exponents], seed, lazy=method == "lazy")
    stabiliser = load(STABILISERS[method].make)(d, (0.05, 20.0), 1)
    W = state.materialise()
    sigma = torch.linalg.svdvals(state.exactly("U"))
    outside = int(((sigma < 0.05) | (sigma > 20)).sum())

    # "may have shrunk and grown by any amount": lazy looks only where the bounds give it a reason
    stabiliser.after_update(state, Shrink(1.0, 1e9))

    torch.testing.assert_close(state.materialise(), W, rtol=1e-9, atol=1e-9 * float(W.abs().max()))
    torch.testing.assert_close(state.exactly("Q"), W.T @ W, rtol=1e-9, atol=1e-9 * float((W.T @ W).abs().max()))
    if method == "none":
        assert stabiliser.total == 0
        return
    assert stabiliser.total >= outside and (stabiliser.total == 0) <= (outside == 0)
    after = torch.linalg.svdvals(state.exactly("U"))
    # power iterations find σ to a few digits: a value at the very edge may be taken for inside
    assert float(after[-1]) > 0.04 and float(after[0]) < 25
    identity = torch.eye(d, dtype=torch.float64)
    torch.testing.assert_close(state.exactly("U") @ state.exactly("U_inv_T").T, identity, **EXACT)


@pytest.mark.parametrize("method", STABILISERS.names())
@pytest.mark.parametrize("loss", LOSSES)
def test_training_with_repairs_equals_dense_autograd(method: str, loss: str) -> None:
    W = random_weight(D, d)
    every = None if method == "lazy" else 3
    layer = Layer(W, loss, stabilise=method, stabilise_range=(0.7, 1.4), stabilise_every=every)
    dense = Dense(W, loss)
    rate = {"squared": 0.03, "spherical": 0.8, "taylor": 1.0, "z": 5.0, "custom": 1.0}[loss]
    for step in range(40):
        batch = make_batch(step, D, d, 3 if step % 2 else 9, 2)
        assert_same_step(layer.step(batch, rate), dense.step(batch, rate))
    assert_same_weights(layer, dense.W)
    repairs = layer.head.statistics()["stabilisations"]
    assert repairs > 0 if method != "none" else repairs == 0


def test_a_stabiliser_waits_for_its_period() -> None:
    state = skewed_state([1e-4, 1, 1, 1, 1, 1], 0, lazy=False)
    stabiliser = load(STABILISERS["svd"].make)(d, None, 3)
    totals = []
    for _ in range(4):
        stabiliser.after_update(state, Shrink(0, 0))
        totals.append(stabiliser.total)
    assert totals == [0, 0, 1, 1]


@pytest.mark.parametrize(
    ("settings_", "problem"),
    [
        ({"stabilise": "svdd"}, "svdd"),
        ({"stabilise": "svd", "stabilise_range": (0.0, 10.0)}, "stabilise_range"),
        ({"stabilise": "lazy", "stabilise_range": (2.0, 10.0)}, "stabilise_range"),
        ({"stabilise": "svd", "stabilise_range": (0.1, float("inf"))}, "stabilise_range"),
        ({"stabilise": "svd", "stabilise_every": -1}, "stabilise_every"),
        ({"stabilise": "svd", "stabilise_every": 0}, "stabilise_every"),
    ],
)
def test_wrong_settings_are_named(settings_: dict[str, object], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        SphericalOutput(d, D, **settings_)


@pytest.mark.parametrize("decay", [0.0, 0.5])
@pytest.mark.parametrize("m", [1, 4, 15])
@pytest.mark.parametrize("loss", ["squared", "spherical", "taylor", "custom"])
def test_a_learning_rate_above_the_limit_names_the_limit_and_changes_nothing(loss: str, m: int, decay: float) -> None:
    layer = Layer(random_weight(D, d), loss)
    layer.step(make_batch(0, D, d, m), 0.01)
    batch = scaled(make_batch(1, D, d, m), 2.0)
    layer.backward(batch)
    before = snapshot(layer.head)
    with pytest.raises(NumericsError, match="largest stable") as caught:
        layer.head.update(1e3 if decay == 0 else 1.9, decay)
    assert_unchanged(layer.head, before)
    limit = float(re.search(r"largest stable ([-+.e\d]+)", str(caught.value)).group(1))  # type: ignore[union-attr]

    with pytest.raises(NumericsError, match="largest stable"):
        layer.head.update(1.01 * limit, decay)
    assert_unchanged(layer.head, before)
    layer.head.update(0.999 * limit, decay)  # the same backward pass still serves
    assert bool(torch.isfinite(layer.weight()).all())


@pytest.mark.parametrize("m", [4, 15])
def test_a_step_that_leaves_too_few_digits_of_a_direction_is_refused(m: int) -> None:
    """At 99.99 % of the limit float32 has no digits left of U⁻¹ along the shortest direction; float64 has."""
    batch = make_batch(1, D, d, m)
    largest = 2 * float(torch.linalg.matrix_norm(batch.H, ord=2)) ** 2 / m
    for dtype, refused in ((torch.float32, True), (torch.float64, False)):
        head = SphericalOutput(d - 1, D, SquaredError(), dtype=dtype)
        head(batch.H[:, :-1].to(dtype), batch.ids).mean().backward()
        if refused:
            with pytest.raises(NumericsError, match="largest stable"):
                head.update(0.9999 / largest)
            head.update(0.998 / largest)
        else:
            head.update(0.9999 / largest)
