"""How numbers lie in memory: aligned products are the products."""

import pytest
import torch

from lstlm.spherical.host import CACHE_LINE_BYTES, aligned, product, symmetric_product


@pytest.mark.parametrize("columns", [1, 7, 16, 300, 301])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_of_aligned_memory_start_at_cache_lines(columns: int, dtype: torch.dtype) -> None:
    x = aligned(torch.empty(0, dtype=dtype), 5, columns)
    assert x.shape == (5, columns) and x.dtype == dtype
    assert all(row.data_ptr() % CACHE_LINE_BYTES == 0 for row in x)


@pytest.mark.parametrize("d", [1, 2, 3, 8, 13])
def test_aligned_products_are_the_products(d: int) -> None:
    A, weight = torch.randn(9, d, dtype=torch.float64), torch.randn(9, 1, dtype=torch.float64)
    torch.testing.assert_close(product(A.T, weight * A), A.T @ (weight * A), rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(symmetric_product(weight * A, A), A.T @ (weight * A), rtol=1e-13, atol=1e-13)
