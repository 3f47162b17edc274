"""The step for m above d: compiled and interpreted alike, h in rows or columns, on any number of threads."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from lstlm.kernels import choice
from lstlm.spherical import SphericalOutput
from lstlm.spherical.steps import Square
from tests.spherical.oracle import LOSSES, NORMALISED, RATE, InTorch, loss_of

pytestmark = pytest.mark.skipif(choice.native is None, reason=f"no compiled code: {choice.problem}")
D, d, m = 90, 70, 400


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def batch(step: int) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(step)
    h = torch.randn(m, d - 1, generator=random, dtype=torch.float64).tanh()
    return h, torch.randint(0, D, (m, 2), generator=random)


def learned(kind: type[SphericalOutput], loss: str, prior: bool, threads: int, columns: bool) -> dict[str, Tensor]:
    """Return all that four steps leave: the state, and the last losses and gradients."""
    torch.set_num_threads(threads)
    random = torch.Generator().manual_seed(9)
    tilt = torch.linspace(0.1, 2, D, dtype=torch.float64) if prior else None
    settings = {"prior": tilt, "init_scale": 0.3, "generator": random, "dtype": torch.float64}
    head = kind(d - 1, D, loss_of(loss), **settings)  # type: ignore[arg-type]
    for step in range(4):
        h, ids = batch(step)
        h = h.T.contiguous().T if columns else h
        losses, gradient = head.learn(h, ids, RATE[loss] / 8)
    return {**head.state.state_dict(), "losses": losses, "gradient": gradient}


CASES = [*((loss, False) for loss in LOSSES), *((loss, True) for loss in NORMALISED)]


@pytest.mark.parametrize(("loss", "prior"), CASES)
def test_compiled_is_interpreted(loss: str, prior: bool) -> None:
    expected = learned(InTorch, loss, prior, 1, columns=False)
    for name, value in learned(SphericalOutput, loss, prior, 1, columns=True).items():
        torch.testing.assert_close(value, expected[name], rtol=1e-9, atol=1e-9, msg=lambda m, n=name: n + m)


def test_the_same_bits_on_any_number_of_threads() -> None:
    assert m * d * d > 1 << 20  # below it one thread multiplies: native/common.h
    one, three = (learned(SphericalOutput, "z", False, threads, columns=False) for threads in (1, 3))
    for name, value in one.items():
        assert torch.equal(value, three[name]), name


def test_the_same_bits_where_passes_over_the_table_are_shared() -> None:
    wide, many = 300, 1200  # d², n·d and the losses of m examples are worth sharing: WORTH_SHARING of native/common.h

    def state(threads: int) -> dict[str, Tensor]:
        random = torch.Generator().manual_seed(5)
        torch.set_num_threads(1)  # W and its first WᵀW are PyTorch's
        head = SphericalOutput(wide - 1, 2000, loss_of("z"), init_scale=0.3, generator=random)
        torch.set_num_threads(threads)
        for _ in range(3):
            h = torch.randn(many, wide - 1, generator=random).tanh()
            losses, gradient = head.learn(h, torch.randint(0, 2000, (many,), generator=random), 0.05)
        return {**head.state.state_dict(), "losses": losses, "gradient": gradient}

    one = state(1)
    for threads in (2, 3):
        for name, value in state(threads).items():
            assert torch.equal(one[name], value), (threads, name)


def test_the_gradient_norm_survives_a_changed_gradient() -> None:
    head = SphericalOutput(d - 1, D, loss_of("z"), dtype=torch.float64)
    h, ids = batch(0)
    _, gradient = head.value_and_grad(h, ids)
    assert isinstance(head._pending[0].step, Square)
    before = head.grad_norm()
    gradient.zero_()
    assert head.grad_norm() == before
