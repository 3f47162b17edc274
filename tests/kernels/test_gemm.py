"""The product of matrices in both forms, under an error budget, and with the same bits by any number of threads."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from lstlm.kernels import choice
from lstlm.kernels.choice import Impl
from lstlm.kernels.ops import gemm
from lstlm.kernels.square_ops import symmetric_series
from tests.helpers import PATIENCE_S

SHAPES = [(1, 1, 1), (6, 64, 5), (7, 65, 3), (12, 48, 2), (5, 33, 400), (13, 17, 1), (50, 128, 385), (305, 301, 80)]
SHAPES += [(128, 301, 800)]
DTYPES = [torch.float32, torch.float64]


IMPLS = ["torch"] if choice.native is None else ["torch", "native"]


@contextmanager
def set_threads(threads: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("dtype", DTYPES, ids=["float32", "float64"])
@pytest.mark.parametrize("form", ["NN", "NT", "TN", "TT"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_form_and_shape(shape: tuple[int, int, int], form: str, dtype: torch.dtype, impl: Impl) -> None:
    M, N, K = shape
    generator = torch.Generator().manual_seed(1)
    left, right = torch.randn(M, K, generator=generator), torch.randn(K, N, generator=generator)
    A = left.T.to(dtype).contiguous().T if form[0] == "T" else left.to(dtype)
    B = right.T.to(dtype).contiguous().T if form[1] == "T" else right.to(dtype)
    exact = left.double() @ right.double()
    error = 4 * torch.finfo(dtype).eps * (left.abs().double() @ right.abs().double() + 2)
    for alpha, beta in ((1.0, 0.0), (-0.5, 1.0), (0.3, 0.7)):
        before = torch.full((M, N + 3), 1.5 if beta else torch.nan, dtype=dtype)  # not read where beta is 0
        before[:, N:] = 7.0
        C, by_three = before.clone(), before.clone()
        with set_threads(1):
            gemm(A, B, C[:, :N], alpha=alpha, beta=beta, impl=impl)
        expected = alpha * exact + (beta * before[:, :N].double() if beta else 0)
        assert bool(((C[:, :N] - expected).abs() <= error).all())
        assert bool((C[:, N:] == 7.0).all())  # beyond its columns nothing is written
        if impl == "native":
            with set_threads(3):
                gemm(A, B, by_three[:, :N], alpha=alpha, beta=beta, impl=impl)
            assert torch.equal(C, by_three)


@pytest.mark.skipif(choice.native is None or not hasattr(os, "fork"), reason="no compiled code, or no fork")
def test_a_forked_process_multiplies_too() -> None:
    """Its parent's threads are not there: it must neither wait for them nor give other numbers."""
    code = (
        "import os, torch\n"
        "from lstlm.kernels.ops import gemm\n"
        "torch.set_num_threads(3)\n"
        "A = torch.rand(100, 900); expected = gemm(A, A.T).clone()\n"
        "torch.set_num_threads(1); assert torch.equal(gemm(A, A.T), expected); torch.set_num_threads(3)\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    os._exit(0 if torch.equal(gemm(A, A.T), expected) else 1)\n"
        "raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=PATIENCE_S).returncode == 0


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("terms", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("dtype", DTYPES, ids=["float32", "float64"])
def test_series_of_a_symmetric_matrix(dtype: torch.dtype, terms: int, impl: Impl) -> None:
    X = torch.randn(70, 70, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    K = 0.5 * (X + X.T) / torch.linalg.matrix_norm(X + X.T, ord=2)
    expected = sum(torch.linalg.matrix_power(K, n) for n in range(1, terms + 1))
    found = symmetric_series(K.to(dtype), terms, impl=impl)
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=8 * torch.finfo(dtype).eps)
