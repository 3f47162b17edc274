"""T⁻¹: the threads that LAPACK gets for it."""

import pytest
import torch

from lstlm.spherical.shrink import ALONE_UP_TO, inverse_excess


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
