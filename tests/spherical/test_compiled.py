"""The compiled step and row functions give what the interpreted ones give, and leave as little behind when refused."""

from __future__ import annotations

import shutil
import sys

import pytest
import torch
from torch import Tensor

from lstlm.errors import NumericsError
from lstlm.spherical import SphericalOutput, make_loss, native
from lstlm.spherical.compiled import CompiledLowRank
from lstlm.spherical.native import kernel_for
from tests.spherical.oracle import EPSILON, LOSSES, NORMALISED, RATE, Interpreted, loss_of, random_weight

D, d, m = 57, 37, 21
LIKE = torch.zeros(0, dtype=torch.float64)
compiled = pytest.mark.skipif(kernel_for(LIKE) is None, reason="the kernel was not compiled")


@pytest.mark.skipif(not sys.platform.startswith("linux") or shutil.which("gcc") is None, reason="no C compiler")
def test_where_there_is_a_compiler_the_kernel_is_built() -> None:
    assert kernel_for(LIKE) is not None
    assert kernel_for(LIKE.float()) is not None


def batch(step: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    h = torch.randn(m, d - 1, generator=generator, dtype=torch.float64).tanh()
    return h.to(dtype), torch.randint(0, D // 4, (m,), generator=generator)  # several targets twice


def twins(loss: str, dtype: torch.dtype = torch.float64, **settings: object) -> list[SphericalOutput]:
    heads = []
    for kind in (SphericalOutput, Interpreted):
        head = kind(d - 1, D, loss_of(loss), dtype=dtype, init_scale=0.0, **settings)
        head.set_weight(random_weight(D, d).to(dtype))
        heads.append(head)
    return heads


def same_state(one: SphericalOutput, other: SphericalOutput, tolerance: float) -> None:
    expected = other.state_dict()
    for name, value in one.state_dict().items():
        torch.testing.assert_close(value, expected[name], rtol=tolerance, atol=tolerance, msg=lambda m, n=name: n + m)


@compiled
@pytest.mark.parametrize("stabilise", ["none", "lazy"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("loss", LOSSES)
def test_the_whole_state_is_that_of_the_interpreted_step(loss: str, dtype: torch.dtype, stabilise: str) -> None:
    one, other = twins(loss, dtype, stabilise=stabilise)
    assert isinstance(one._begin(one._with_bias(batch(0, dtype)[0]), batch(0)[1][:, None]), CompiledLowRank)
    tolerance = 1e-11 if dtype == torch.float64 else 2e-4
    for step in range(140):  # past a fold
        h, ids = batch(step, dtype)
        got, expected = one.learn(h, ids, RATE[loss] / 4), other.learn(h, ids, RATE[loss] / 4)
        for mine, theirs in zip(got, expected, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=tolerance, atol=tolerance)
    same_state(one, other, tolerance)


@compiled
@pytest.mark.parametrize("loss", NORMALISED)
def test_with_a_prior(loss: str) -> None:
    prior = torch.arange(1.0, D + 1)
    heads = [
        kind(d - 1, D, make_loss(loss, epsilon=EPSILON), dtype=torch.float64, prior=prior, init_scale=0.0)
        for kind in (SphericalOutput, Interpreted)
    ]
    for step in range(10):
        for head in heads:
            head.learn(*batch(step), 0.01)
    same_state(heads[0], heads[1], 1e-11)


@compiled
@pytest.mark.parametrize("share", [1e-9, 1e-4, 0.02, 0.2, 0.6, 0.95])
def test_from_a_step_that_hardly_shrinks_to_one_near_the_limit(share: float) -> None:
    """The inverse of T comes from a series of 1 to 16 terms, or from LAPACK."""
    one, other = twins("squared")
    h, ids = batch(1)
    H = torch.cat([h, torch.ones(m, 1)], 1)
    limit = m / (2 * float(torch.linalg.matrix_norm(H, 2)) ** 2)
    for head in (one, other):
        head.learn(h, ids, share * limit)
    same_state(one, other, 1e-11)


@compiled
def test_a_rate_above_the_limit_changes_nothing_and_a_smaller_one_may_follow() -> None:
    one, other = twins("squared")
    h, ids = batch(1)
    before = {name: value.clone() for name, value in one.state_dict().items()}
    one.value_and_grad(h, ids)
    with pytest.raises(NumericsError, match="largest stable"):
        one.update(10.0)
    for name, value in one.state_dict().items():
        assert torch.equal(value, before[name]), name
    one.update(0.01)
    other.learn(h, ids, 0.01)
    same_state(one, other, 1e-11)


@compiled
def test_the_norm_of_the_gradient_and_a_preconditioner() -> None:
    one, other = twins("taylor")
    P = torch.diag(torch.linspace(0.5, 2, d, dtype=torch.float64))
    for head in (one, other):
        head.value_and_grad(*batch(3))
    assert one.grad_norm() == pytest.approx(other.grad_norm(), rel=1e-12)
    for head in (one, other):
        head.update(0.1, preconditioner=P)
    same_state(one, other, 1e-11)


def test_ids_need_not_be_neighbours_in_memory() -> None:
    one, other = twins("z")
    h, ids = batch(4)
    apart = torch.stack([ids, torch.zeros_like(ids)], 1)[:, 0]
    assert not apart.is_contiguous()
    one.learn(h, apart, 1.0)
    other.learn(h, ids, 1.0)
    same_state(one, other, 1e-11)


def test_a_layer_that_is_converted_meanwhile_refuses_the_update() -> None:
    head = twins("z")[0]
    head.value_and_grad(*batch(5))
    head.float()
    with pytest.raises(NumericsError, match="have changed"):
        head.update(0.1)


def test_without_a_kernel_everything_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "find_spec", lambda name: None)
    native._load.cache_clear()
    try:
        assert kernel_for(LIKE) is None
        one, other = twins("z")
        for head in (one, other):
            head.learn(*batch(6), 1.0)
        same_state(one, other, 0.0)
    finally:
        native._load.cache_clear()
