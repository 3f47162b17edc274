"""T⁻¹: the threads that LAPACK gets for it."""

import pytest
import torch

from lstlm.spherical.shrink import ALONE_UP_TO, inverse_excess, terms_needed


@pytest.mark.parametrize(("rows", "threads"), [(40, 1), (ALONE_UP_TO + 1, 2)])
def test_lapack_has_one_thread_for_small_matrices(rows: int, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # two took up to four times as long; and sums over several threads may differ in their last bits
    seen = []
    factor = torch.linalg.cholesky_ex

    def watched(*args: torch.Tensor) -> object:
        seen.append(torch.get_num_threads())
        return factor(*args)

    monkeypatch.setattr(torch.linalg, "cholesky_ex", watched)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        inverse_excess(0.5 * torch.eye(rows, dtype=torch.float64), 0.25 * rows, 0.1)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert seen and set(seen) == {threads}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("d", [40, 230])
@pytest.mark.parametrize("size", [0.001, 0.029, 0.1, 0.14, 0.3, 0.35, 0.6, 0.95])
def test_series_and_lapack_give_the_same_inverse(d: int, size: float, dtype: torch.dtype) -> None:
    A = torch.randn(d, d, generator=torch.Generator().manual_seed(d), dtype=torch.float64)
    K = size * (A @ A.T) / torch.linalg.matrix_norm(A @ A.T)
    S, bounds = inverse_excess(K.to(dtype), size * size, 0.1)
    expected = torch.linalg.inv(torch.eye(d, dtype=torch.float64) - K) - torch.eye(d, dtype=torch.float64)
    # what I + S is good for, whichever way was taken; where S is summed up, it has all its own digits
    assert (S - expected).abs().max() < 200 * torch.finfo(dtype).eps
    if dtype == torch.float32 and size < 0.14:
        assert terms_needed(size, dtype) <= 8
        assert torch.linalg.matrix_norm(S - expected) < 1e-6 * torch.linalg.matrix_norm(expected)
    assert bounds.shrink == pytest.approx(size)
