"""Exponentials of rows and Adagrad of a table: the compiled form is the torch form."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lstlm.kernels import choice, reference
from lstlm.kernels.ops import adagrad_table, aligned, exponentials

pytestmark = pytest.mark.skipif(choice.native is None, reason=f"no compiled code: {choice.problem}")
DTYPES = [torch.float32, torch.float64]


def numbers(*shape: int, dtype: torch.dtype, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_exponentials(dtype: torch.dtype, biased: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, "CACHED", 100)  # several chunks
    for n in (1, 5, 16, 77):
        scores = aligned(torch.empty(0, dtype=dtype), 9, n).copy_(30 * numbers(9, n, dtype=dtype))
        bias = numbers(n, dtype=dtype, seed=2) if biased else None
        expected = scores.clone()
        top, totals = exponentials(expected, bias, impl="torch")
        found_top, found_totals = exponentials(scores, bias, impl="native")
        assert torch.equal(top, found_top)
        torch.testing.assert_close(found_totals, totals, rtol=4 * torch.finfo(dtype).eps, atol=0)
        torch.testing.assert_close(scores, expected, rtol=4 * torch.finfo(dtype).eps, atol=1e-37)


def test_exponentials_of_what_is_not_finite() -> None:
    for wrong in (torch.nan, torch.inf):
        scores = numbers(2, 40, dtype=torch.float32)
        scores[1, 33] = wrong
        _, totals = exponentials(scores, impl="native")
        assert bool(torch.isfinite(totals[0])) and bool(torch.isnan(totals[1]))
    scores = numbers(2, 40, dtype=torch.float32)
    scores[1, 33] = -torch.inf  # a candidate that is left out
    exponentials(scores, impl="native")
    assert float(scores[1, 33]) == 0 and bool(torch.isfinite(scores).all())


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
