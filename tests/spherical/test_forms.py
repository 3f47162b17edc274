"""The compiled step and row functions give what the interpreted ones give, and leave as little behind when refused."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler

import pytest
import torch
from torch import Tensor

from lstlm.errors import ConfigError, NumericsError
from lstlm.kernels import choice
from lstlm.spherical import SphericalOutput, make_loss
from lstlm.spherical.state import Sizes
from tests.spherical.oracle import EPSILON, LOSSES, NORMALISED, RATE, InTorch, loss_of, random_weight

D, d, m = 57, 37, 21
compiled = pytest.mark.skipif(choice.native is None, reason=f"no compiled code: {choice.problem}")


@pytest.mark.skipif(not sys.platform.startswith("linux") or shutil.which("g++") is None, reason="no C compiler")
def test_where_there_is_a_compiler_the_kernel_is_built() -> None:
    assert choice.native is not None, choice.problem


def batch(step: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    h = torch.randn(m, d - 1, generator=generator, dtype=torch.float64).tanh()
    return h.to(dtype), torch.randint(0, D // 4, (m,), generator=generator)  # several targets twice


def twins(loss: str, dtype: torch.dtype = torch.float64, **settings: object) -> list[SphericalOutput]:
    heads = []
    for kind in (SphericalOutput, InTorch):
        head = kind(d - 1, D, loss_of(loss), dtype=dtype, init_scale=0.0, **settings)
        head.set_weight(random_weight(D, d).to(dtype))
        heads.append(head)
    return heads


def same_state(one: SphericalOutput, other: SphericalOutput, tolerance: float) -> None:
    expected = other.state_dict()
    for name, value in one.state_dict().items():
        torch.testing.assert_close(value, expected[name], rtol=tolerance, atol=tolerance, msg=lambda m, n=name: n + m)


@compiled
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("loss", LOSSES)
def test_the_whole_state_is_that_of_the_interpreted_step(loss: str, dtype: torch.dtype) -> None:
    one, other = twins(loss, dtype, stabilise="none")
    tolerance = 1e-11 if dtype == torch.float64 else 2e-4
    for step in range(140):  # past a fold
        h, ids = batch(step, dtype)
        got, expected = one.learn(h, ids, RATE[loss] / 4), other.learn(h, ids, RATE[loss] / 4)
        for mine, theirs in zip(got, expected, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=tolerance, atol=tolerance)
    same_state(one, other, tolerance)


@compiled
def test_repairs_leave_the_weights_of_a_layer_without_compiled_code() -> None:
    one, other = twins("squared", stabilise_range=(0.9, 1.1), sizes=Sizes(repairs=5))  # several segments
    for step in range(60):
        for head in (one, other):
            head.learn(*batch(step), 0.02)
    assert one.stabiliser.total > 30
    assert one.state.history.open > 3
    torch.testing.assert_close(one.weight(), other.weight(), rtol=1e-10, atol=1e-10)
    assert one.gram_error() < 1e-12


@compiled
@pytest.mark.parametrize("loss", NORMALISED)
def test_with_a_prior(loss: str) -> None:
    prior = torch.arange(1.0, D + 1)
    heads = [
        kind(d - 1, D, make_loss(loss, epsilon=EPSILON), dtype=torch.float64, prior=prior, init_scale=0.0)
        for kind in (SphericalOutput, InTorch)
    ]
    for head in heads:
        head.set_weight(0.3 * random_weight(D, d))
    for step in range(10):
        for head in heads:
            head.learn(*batch(step), 0.05)
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
def test_the_norm_of_the_gradient() -> None:
    one, other = twins("taylor")
    for head in (one, other):
        head.value_and_grad(*batch(3))
    assert one.grad_norm() == pytest.approx(other.grad_norm(), rel=1e-12)


def test_ids_need_not_be_neighbours_in_memory() -> None:
    one, other = twins("z")
    h, ids = batch(4)
    apart = torch.stack([ids, torch.zeros_like(ids)], 1)[:, 0]
    assert not apart.is_contiguous()
    one.learn(h, apart, 1.0)
    other.learn(h, ids, 1.0)
    same_state(one, other, 1e-11)


def test_what_happens_to_the_ids_afterwards_does_not_matter() -> None:
    one, other = twins("taylor")
    h, ids = batch(7)
    one.value_and_grad(h, ids)
    other.value_and_grad(h, ids.clone())
    ids.fill_(-100)
    one.update(0.1)
    other.update(0.1)
    same_state(one, other, 1e-11)


@pytest.mark.parametrize("examples", [m, 2 * d], ids=["few", "many"])
@pytest.mark.parametrize("kind", [SphericalOutput, InTorch])
def test_the_gradient_belongs_to_the_caller(kind: type, examples: int) -> None:
    """Clipping it in place must not change what the layer itself learns."""
    heads = [kind(d - 1, D, loss_of("taylor"), dtype=torch.float64, init_scale=0.0) for _ in range(2)]
    h = torch.cat([batch(8)[0]] * 4)[:examples]
    ids = torch.cat([batch(8)[1]] * 4)[:examples]
    norms = []
    for head, factor in zip(heads, (0.1, 1.0), strict=True):
        head.set_weight(random_weight(D, d))
        _, gradient = head.value_and_grad(h, ids)
        gradient.mul_(factor)
        norms.append(head.grad_norm())
        head.update(0.1)
    assert norms[0] == norms[1]
    same_state(heads[0], heads[1], 0.0)


def test_ids_that_share_their_memory() -> None:
    head = twins("taylor")[0]
    h = torch.cat([batch(9)[0]] * 2)[: d - 2]
    same = torch.tensor([3]).expand(len(h))
    torch.testing.assert_close(head.log_prob(h, same), head.log_prob(h, same.clone()), rtol=0, atol=0)


def test_a_state_of_another_dtype_that_replaces_this_one() -> None:
    one, other = twins("taylor")
    single = twins("taylor", torch.float32)[0]
    single.load_state_dict(one.state_dict(), assign=True)
    for step in range(3):
        single.learn(*batch(step), 0.1)
        other.learn(*batch(step), 0.1)
    same_state(single, other, 1e-11)


def test_buffers_that_are_not_there_any_more() -> None:
    head = twins("taylor")[0]
    others = {name: value.clone() for name, value in head.named_buffers()}
    h, ids = batch(10)
    losses = torch.func.functional_call(head, others, (h.requires_grad_(), ids))
    losses.mean().backward()
    del others, losses
    with pytest.raises(NumericsError, match="replaced|changed"):
        head.update(0.1)


def test_a_default_device_does_not_matter() -> None:
    one, other = twins("z")
    h, ids = batch(11)
    with torch.device("meta"):
        one.learn(h, ids, 1.0)
    other.learn(h, ids, 1.0)
    same_state(one, other, 1e-11)


def test_a_layer_that_is_converted_meanwhile_refuses_the_update() -> None:
    head = twins("z")[0]
    head.value_and_grad(*batch(5))
    head.float()
    with pytest.raises(NumericsError, match="have changed"):
        head.update(0.1)


def test_without_compiled_code_everything_works(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = twins("z")
    one.learn(*batch(6), 1.0)
    other.impl = other.state.impl = "auto"
    monkeypatch.setattr(choice, "native", None)
    other.learn(*batch(6), 1.0)
    same_state(one, other, 1e-11)
    with pytest.raises(ConfigError, match="impl='native'"):
        SphericalOutput(d - 1, D, impl="native").learn(*batch(6, torch.float32), 0.1)


def warm(**settings: object) -> SphericalOutput:
    """Return a layer whose history is not empty."""
    head = twins("squared", stabilise_range=(0.9, 1.1), **settings)[0]
    for step in range(20):
        head.learn(*batch(step), 0.02)
    assert not head.state.history.empty
    return head


@pytest.mark.parametrize("moved", ["before the step", "before the update"])
@pytest.mark.parametrize("examples", [m, 3 * m], ids=["few", "many"])
def test_buffers_that_move(moved: str, examples: int) -> None:
    """Sending a layer to another process puts its buffers elsewhere."""
    one, other = twins("taylor")
    h, ids = (torch.cat([x] * 3)[:examples] for x in batch(12))
    if moved == "before the step":
        ForkingPickler.dumps(one)
        one.value_and_grad(h, ids)
    else:
        one.value_and_grad(h, ids)
        ForkingPickler.dumps(one)
    one.update(0.1)
    other.learn(h, ids, 0.1)
    same_state(one, other, 1e-11)
    one.restore()
    assert one.gram_error() < 1e-12


def test_a_history_whose_memory_has_gaps() -> None:
    one, other = warm(), warm()
    one.to(memory_format=torch.channels_last)
    turned = {
        name: value.transpose(-1, -2).contiguous().transpose(-1, -2) if value.dim() > 1 else value.clone()
        for name, value in other.state_dict().items()
    }
    third = twins("squared", stabilise_range=(0.9, 1.1))[0]
    third.load_state_dict(turned, assign=True)
    for step in range(20, 25):
        for head in (one, other, third):
            head.learn(*batch(step), 0.02)
    torch.testing.assert_close(one.weight(), other.weight(), rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(third.weight(), other.weight(), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize(
    "stored", [Tensor.long, lambda stamp: torch.stack([stamp, stamp], 1)[:, 0]], ids=["long", "gaps"]
)
def test_stamps_that_are_stored_in_another_way(stored: Callable[[Tensor], Tensor]) -> None:
    one, other = warm(), twins("squared", stabilise_range=(0.9, 1.1))[0]
    state = {name: value.clone() for name, value in one.state_dict().items()}
    state["state.history.stamp"] = stored(state["state.history.stamp"])
    other.load_state_dict(state, assign=True)
    for step in range(20, 25):
        for head in (one, other):
            head.learn(*batch(step), 0.02)
    torch.testing.assert_close(other.weight(), one.weight(), rtol=1e-11, atol=1e-11)


def test_repairs_under_another_default_device() -> None:
    one, other = warm(), warm()
    for step in range(20, 30):
        h, ids = batch(step)
        with torch.device("meta"):
            one.learn(h, ids, 0.02)
        other.learn(h, ids, 0.02)
    assert one.stabiliser.total == other.stabiliser.total > 0
    torch.testing.assert_close(one.weight(), other.weight(), rtol=1e-12, atol=1e-12)


def test_one_hidden_unit_is_repaired_too() -> None:
    head = SphericalOutput(1, 20, make_loss("squared"), bias=False, dtype=torch.float64)
    for step in range(40):
        generator = torch.Generator().manual_seed(step)
        head.learn(torch.rand(1, 1, generator=generator, dtype=torch.float64) + 0.5, torch.tensor([step % 20]), 0.1)
    assert head.stabiliser.total > 0
    assert head.gram_error() < 1e-12
