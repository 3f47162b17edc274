"""The kernel's own product of matrices gives what torch's gives; a step takes it where it is the faster one."""

from __future__ import annotations

import pytest
import torch

from lstlm.spherical.native import Kernel, kernel_for

SHAPES = [(1, 1, 1), (6, 64, 5), (7, 65, 3), (12, 48, 2), (5, 33, 400), (13, 17, 1), (50, 128, 385), (128, 301, 800)]
DTYPES = [torch.float32, torch.float64]


def own(dtype: torch.dtype) -> Kernel:
    kernel = kernel_for(torch.zeros(0, dtype=dtype))
    if kernel is None or not kernel.has_own_product():
        pytest.skip("no kernel, or one without a product for this processor")
    return kernel


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
    for alpha, beta in ((1.0, 0.0), (-0.5, 1.0), (0.3, 0.7)):
        C = torch.full((M, N + 3), 1.5 if beta else torch.nan, dtype=dtype)  # not read where beta is 0
        C[:, N:] = 7.0
        before = C.double().clone()
        sizes = M, N, K, alpha
        kernel.product(
            *(None, form.encode(), *sizes, A.data_ptr(), A.shape[1], B.data_ptr(), B.shape[1]),
            *(beta, C.data_ptr(), C.shape[1]),
        )
        expected = alpha * exact + (beta * before[:, :N] if beta else 0)
        error = 4 * torch.finfo(dtype).eps * (left.abs().double() @ right.abs().double() + 2)
        assert bool(((C[:, :N] - expected).abs() <= error).all())
        assert bool((C[:, N:] == 7.0).all())  # beyond its columns nothing is written


def test_it_is_taken_on_one_thread_alone() -> None:
    kernel, before = own(torch.float32), torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        assert kernel.gemm is None
        torch.set_num_threads(2)
        assert kernel.gemm == kernel.blas
    finally:
        torch.set_num_threads(before)
