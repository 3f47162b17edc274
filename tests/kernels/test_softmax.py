"""Cross entropy of rows and Adagrad of a table: the compiled form is the torch form."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lstlm.kernels import choice
from lstlm.kernels.choice import Impl
from lstlm.kernels.ops import adagrad_table, aligned, cross_entropy

pytestmark = pytest.mark.skipif(choice.native is None, reason=f"no compiled code: {choice.problem}")
DTYPES = [torch.float32, torch.float64]


def numbers(*shape: int, dtype: torch.dtype, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def definition(scores: Tensor, ids: Tensor, t: Tensor, bias: Tensor, upstream: Tensor) -> tuple[Tensor, Tensor]:
    """The losses and the gradient of the scores by autograd, in float64."""
    scores = scores.double().clone().requires_grad_()
    losses = -(t.double() * (scores + bias.double()).log_softmax(1).gather(1, ids)).sum(1)
    (gradient,) = torch.autograd.grad(losses, scores, upstream.double())
    return losses.detach(), gradient


@pytest.mark.parametrize("impl", ["torch", "native"])
@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_cross_entropy(dtype: torch.dtype, plain: bool, impl: Impl) -> None:
    for n in (1, 5, 16, 77, 70_001):  # the last in several chunks
        scores = aligned(torch.empty(0, dtype=dtype), 9, n).copy_(30 * numbers(9, n, dtype=dtype))
        ids = torch.randint(n, (9, 3), generator=torch.Generator().manual_seed(3))  # some of them twice
        t, bias = numbers(9, 3, dtype=dtype, seed=4), numbers(n, dtype=dtype, seed=2)
        upstream = torch.ones(9, dtype=dtype) if plain else numbers(9, dtype=dtype, seed=5)
        expected, gradient = definition(scores, ids, t, 0 * bias if plain else 2 * bias, upstream)
        found = cross_entropy(scores, ids, t, *((None, 1.0, None) if plain else (bias, 2.0, upstream)), impl=impl)
        eps = torch.finfo(dtype).eps
        torch.testing.assert_close(found.double(), expected, rtol=16 * eps, atol=200 * eps)
        torch.testing.assert_close(scores.double(), gradient, rtol=64 * eps, atol=16 * eps)


def test_cross_entropy_of_what_is_not_finite() -> None:
    ids, t = torch.zeros(2, 1, dtype=torch.int64), torch.ones(2, 1)
    for wrong in (torch.nan, torch.inf):
        scores = numbers(2, 40, dtype=torch.float32)
        scores[1, 33] = wrong
        losses = cross_entropy(scores, ids, t, impl="native")
        assert bool(torch.isfinite(losses[0])) and not bool(torch.isfinite(losses[1]))
    scores = numbers(2, 40, dtype=torch.float32)
    scores[1, 33] = -torch.inf  # a candidate that is left out
    cross_entropy(scores, ids, t, impl="native")
    assert float(scores[1, 33]) == 0 and bool(torch.isfinite(scores).all())


def test_cross_entropy_refuses_ids_outside() -> None:
    scores = numbers(2, 4, dtype=torch.float32)
    before = scores.clone()
    with pytest.raises(IndexError):
        cross_entropy(scores, torch.tensor([[1], [4]]), torch.ones(2, 1), impl="native")
    assert torch.equal(scores, before)


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_adagrad_of_a_table(dtype: torch.dtype, biased: bool) -> None:
    results = []
    for impl in ("torch", "native"):
        table, squares = numbers(7, 21, dtype=dtype), numbers(7, dtype=dtype, seed=3).abs()
        bias = numbers(7, dtype=dtype, seed=4) if biased else None
        G, g = numbers(7, 21, dtype=dtype, seed=5), numbers(7, dtype=dtype, seed=6)
        adagrad_table(table, bias, squares, G, g, 0.1, impl=impl)  # type: ignore[arg-type]
        results.append([table, squares, table[0] if bias is None else bias])
    for expected, found in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=8 * torch.finfo(dtype).eps, atol=8 * torch.finfo(dtype).eps)
