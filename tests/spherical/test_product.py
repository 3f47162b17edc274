"""The kernel's own product of matrices gives what torch's gives; a step takes it where it is the faster one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

from lstlm.spherical.native import Kernel, kernel_for

SHAPES = [(1, 1, 1), (6, 64, 5), (7, 65, 3), (12, 48, 2), (5, 33, 400), (13, 17, 1), (50, 128, 385), (305, 301, 80)]
SHAPES += [(128, 301, 800)]
DTYPES = [torch.float32, torch.float64]


def own(dtype: torch.dtype) -> Kernel:
    kernel = kernel_for(torch.zeros(0, dtype=dtype))
    if kernel is None or not kernel.has_own_product():
        pytest.skip("no kernel, or one without a product for this processor")
    return kernel


def multiply(kernel: Kernel, form: str, A: Tensor, B: Tensor, C: Tensor, settings: tuple[float, float, int]) -> None:
    """C (M,N+3) ← alpha · A B + beta · C, in its first N columns, by so many threads."""
    (alpha, beta, threads), K = settings, A.shape[0 if form[0] == "T" else 1]
    sizes = C.shape[0], C.shape[1] - 3, K
    with set_threads(threads):
        kernel.product(
            *(kernel.products, form.encode(), *sizes, alpha, A.data_ptr(), A.shape[1], B.data_ptr(), B.shape[1]),
            *(beta, C.data_ptr(), C.shape[1]),
        )


@contextmanager
def set_threads(threads: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", DTYPES, ids=["float32", "float64"])
@pytest.mark.parametrize("form", ["NN", "NT", "TN", "TT"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_form_and_shape(shape: tuple[int, int, int], form: str, dtype: torch.dtype) -> None:
    kernel, (M, N, K) = own(dtype), shape
    generator = torch.Generator().manual_seed(1)
    left, right = torch.randn(M, K, generator=generator), torch.randn(K, N, generator=generator)
    A = (left.T if form[0] == "T" else left).to(dtype).contiguous()
    B = (right.T if form[1] == "T" else right).to(dtype).contiguous()
    exact = left.double() @ right.double()
    error = 4 * torch.finfo(dtype).eps * (left.abs().double() @ right.abs().double() + 2)
    for alpha, beta in ((1.0, 0.0), (-0.5, 1.0), (0.3, 0.7)):
        before = torch.full((M, N + 3), 1.5 if beta else torch.nan, dtype=dtype)  # not read where beta is 0
        before[:, N:] = 7.0
        C, by_three = before.clone(), before.clone()
        multiply(kernel, form, A, B, C, (alpha, beta, 1))
        expected = alpha * exact + (beta * before[:, :N].double() if beta else 0)
        assert bool(((C[:, :N] - expected).abs() <= error).all())
        assert bool((C[:, N:] == 7.0).all())  # beyond its columns nothing is written
        multiply(kernel, form, A, B, by_three, (alpha, beta, 3))
        assert torch.equal(C, by_three)


def test_a_few_rows_are_left_to_blas() -> None:
    kernel = own(torch.float32)
    assert kernel.products != kernel.blas
    A, B, C = torch.ones(2, 4), torch.ones(4, 5), torch.zeros(2, 5)
    kernel.product(kernel.blas, b"NN", 2, 5, 4, 1.0, A.data_ptr(), 4, B.data_ptr(), 5, 0.0, C.data_ptr(), 5)
    assert torch.equal(C, A @ B)
