"""Copies, files and sizes: what is saved is what there was, and goes on as it would have."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch

from lstlm.registry import STABILISERS
from lstlm.spherical import DenseSphericalOutput, SphericalOutput
from tests.spherical.oracle import (
    EXACT,
    LOSSES,
    Dense,
    Layer,
    assert_same_step,
    assert_same_weights,
    make_batch,
    random_weight,
    snapshot,
)

D, d = 40, 6
DTYPES = [torch.float64, torch.float32]


def trained(dtype: torch.dtype, steps: int = 37, **settings: object) -> Layer:
    """A layer in the middle of things: repairs behind it, a fold pending, weight decay."""
    layer = Layer(random_weight(D, d).to(dtype), "taylor", **settings)
    go_on(layer, range(steps), dtype)
    return layer


def go_on(layer: Layer, steps: range, dtype: torch.dtype) -> None:
    for step in steps:
        layer.step(make_batch(step, D, d, 3 if step % 2 else 9, 2).to(dtype), 1.0, 0.1 if step % 5 == 0 else 0.0)


def assert_equal(one: torch.nn.Module, other: torch.nn.Module) -> None:
    left, right = snapshot(one), snapshot(other)
    assert left.keys() == right.keys()
    assert [name for name in left if not torch.equal(left[name], right[name])] == []


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("method", STABILISERS.names())
def test_a_saved_layer_goes_on_bit_for_bit(method: str, dtype: torch.dtype) -> None:
    settings = {"stabilise": method, "stabilise_range": (0.7, 1.4)}
    if method != "lazy":
        settings["stabilise_every"] = 5
    layer = trained(dtype, **settings)
    file = io.BytesIO()
    torch.save(layer.head.state_dict(), file)
    file.seek(0)
    fresh = Layer(random_weight(D, d, seed=9).to(dtype), "taylor", **settings)
    fresh.head.load_state_dict(torch.load(file, weights_only=True))
    assert_equal(fresh.head, layer.head)
    for one in (layer, fresh):
        go_on(one, range(50, 90), dtype)
    assert_equal(fresh.head, layer.head)
    assert torch.equal(fresh.weight(), layer.weight())


@pytest.mark.parametrize("kind", [SphericalOutput, DenseSphericalOutput])
@pytest.mark.parametrize("how", ["deepcopy", "pickle"])
def test_copies_are_independent(kind: type, how: str) -> None:
    layer = trained(torch.float64, kind=kind)
    layer.backward(make_batch(1, D, d, 3))  # a pending step does not travel with a copy
    copied = copy.deepcopy(layer.head) if how == "deepcopy" else pickle.loads(pickle.dumps(layer.head))
    assert_equal(copied, layer.head)
    before = snapshot(copied)
    layer.head.update(0.1)
    assert all(torch.equal(before[name], tensor) for name, tensor in snapshot(copied).items())
    assert torch.isnan(torch.tensor(copied.grad_norm()))


def test_to_another_dtype_and_back() -> None:
    layer = trained(torch.float64, stabilise_range=(0.7, 1.4))
    W, exact = layer.weight(), layer.head.state.exact.clone()
    layer.head.float()
    assert layer.weight().dtype == torch.float32
    torch.testing.assert_close(layer.weight(), W.float(), rtol=1e-5, atol=1e-6)
    assert torch.equal(layer.head.state.exact, exact), "the float64 sums must not be rounded"
    go_on(layer, range(3), torch.float32)
    layer.head.to(torch.float64)
    go_on(layer, range(3), torch.float64)
    assert layer.weight().dtype == torch.float64
    Q = layer.weight().T @ layer.weight()
    torch.testing.assert_close(layer.parts()["Q"], Q, rtol=1e-5, atol=1e-5 * float(Q.abs().max()))


def test_a_converted_layer_is_loaded_by_one_that_was_made_so() -> None:
    layer = trained(torch.float32)
    fresh = SphericalOutput(d - 1, D, dtype=torch.float64)
    fresh.load_state_dict(layer.head.double().state_dict())
    torch.testing.assert_close(fresh.weight(), layer.head.weight(), rtol=1e-12, atol=1e-12)
    Q = fresh.state.materialise().T @ fresh.state.materialise()
    torch.testing.assert_close(fresh.state.Q, Q, rtol=1e-5, atol=1e-5 * float(Q.abs().max()))


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("method", STABILISERS.names())
def test_the_vocabulary_grows_and_shrinks_exactly(method: str, loss: str) -> None:
    W = random_weight(D, d)
    layer, dense = Layer(W, loss, stabilise=method, stabilise_range=(0.7, 1.4)), Dense(W, loss)
    new = random_weight(3, d, seed=4)
    without_bias = torch.cat([new[:1, :-1], torch.zeros(1, 1)], 1)
    changes = [
        ({"new_rows": new}, lambda W: torch.cat([W, new])),
        ({"keep": torch.arange(40, 5, -2)}, lambda W: W[torch.arange(40, 5, -2)]),
        ({"new_rows": new[:1, :-1]}, lambda W: torch.cat([W, without_bias])),
    ]
    for arguments, change in changes:
        for step in range(6):
            batch = make_batch(step, len(dense.W), d, 4 if step % 2 else 9, 2)
            assert_same_step(layer.step(batch, 0.02), dense.step(batch, 0.02))
        layer.head.resize_vocabulary(**arguments)
        dense.W = change(dense.W)
        assert layer.head.vocab == len(dense.W)
        assert_same_weights(layer, dense.W)
    batch = make_batch(8, len(dense.W), d, 4)
    assert_same_step(layer.step(batch, 0.02), dense.step(batch, 0.02))
    assert_same_weights(layer, dense.W)


def test_restore_changes_the_factors_and_not_w() -> None:
    layer = trained(torch.float64, stabilise_range=(0.7, 1.4))
    W = layer.weight()
    layer.head.restore()
    torch.testing.assert_close(layer.head.state.V, W, **EXACT)
    assert_same_weights(layer, W)
    assert torch.equal(layer.head.state.U, torch.eye(d, dtype=torch.float64))


def test_no_optimizer_can_see_the_weights() -> None:
    head = SphericalOutput(4, 10)
    assert list(head.parameters()) == []
    assert all(not buffer.requires_grad for buffer in head.buffers())


def test_the_same_generator_makes_the_same_layer_and_its_naive_twin() -> None:
    one, two = (
        kind(4, 10, generator=torch.Generator().manual_seed(3)) for kind in (SphericalOutput, DenseSphericalOutput)
    )
    assert torch.equal(one.weight(), two.weight())
    assert float(one.bias_vector().abs().max()) == 0
    assert SphericalOutput(4, 10, bias=False).state.d == 4
