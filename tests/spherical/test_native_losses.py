"""The losses of compiled code, which `value_and_grad` and `learn` take, are those of Python."""

from __future__ import annotations

from types import MethodType

import pytest
import torch
from torch import Tensor

from lstlm.errors import NumericsError
from lstlm.kernels import choice
from lstlm.spherical import SphericalLoss, SphericalOutput, ZLoss
from lstlm.spherical.head import NATIVE
from lstlm.spherical.losses import Partials
from tests.spherical.oracle import NORMALISED, InTorch, loss_of, random_weight

D, hidden, m = 43, 30, 11
NAMES = ["squared", "spherical", "taylor", "z"]
pytestmark = pytest.mark.skipif(choice.native is None, reason="no compiled code")


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def twins(loss: SphericalLoss, prior: Tensor | None = None) -> tuple[SphericalOutput, SphericalOutput]:
    heads = []
    for kind in (SphericalOutput, InTorch):
        head = kind(hidden, D, loss, dtype=torch.float64, init_scale=0.0, prior=prior)
        head.set_weight(random_weight(D, hidden + 1))
        heads.append(head)
    return heads[0], heads[1]


def assert_alike(
    one: SphericalOutput, other: SphericalOutput, values: Tensor | None = None, weight: Tensor | None = None
) -> None:
    """Take two minibatches for one update, and one for the next."""
    for step in range(3):
        h, ids = random(m, hidden, seed=step), torch.arange(step, step + m) % 7
        got, expected = (head.value_and_grad(h, ids, values, weight) for head in (one, other))
        for mine, theirs in zip(got, expected, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12)
        if step > 0:
            assert one.grad_norm() == pytest.approx(other.grad_norm(), rel=1e-11)
            for head in (one, other):
                head.update(0.002)
    torch.testing.assert_close(one.weight(), other.weight(), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("name", NAMES)
def test_target_values_and_weights(name: str) -> None:
    values, weight = random(m, seed=5), random(m, seed=6).float().abs()
    values[2] = 0.0
    assert_alike(*twins(loss_of(name)), values, weight)
    assert_alike(*twins(loss_of(name)), torch.stack([values, values], 1)[:, 0])


@pytest.mark.parametrize("name", NORMALISED)
def test_with_a_prior(name: str) -> None:
    assert_alike(*twins(loss_of(name), prior=torch.arange(1.0, D + 1)), random(m, seed=5).abs())


def test_every_loss_of_the_configuration_is_compiled() -> None:
    assert {type(loss_of(name)) for name in NAMES} == set(NATIVE)


class Doubled(ZLoss):
    """A loss that is not the one it inherits from."""

    def partials(self, *arguments: Tensor) -> Partials:
        return Partials(*(2 * part for part in super().partials(*arguments)))


def test_a_loss_that_somebody_changed_is_taken_as_it_is() -> None:
    changed = ZLoss()
    changed.partials = MethodType(lambda self, *arguments: Doubled.partials(Doubled(), *arguments), changed)
    h, ids = random(m, hidden), torch.arange(m)
    plain, _ = twins(ZLoss())[0].value_and_grad(h, ids)
    for loss in (Doubled(), changed):
        losses, _ = twins(loss)[0].value_and_grad(h, ids)
        torch.testing.assert_close(losses, 2 * plain)
    loss = ZLoss(a=0.5, b=3.0)
    head, _ = twins(loss)
    before, _ = head.value_and_grad(h, ids)
    loss.a = 0.1
    after, _ = head.value_and_grad(h, ids)
    torch.testing.assert_close(after, twins(ZLoss(a=0.1, b=3.0))[0].value_and_grad(h, ids)[0])
    assert not torch.allclose(before, after)


def test_what_is_not_finite_is_said_as_without_compiled_code() -> None:
    for h, words in ((random(m, hidden) * 1e200, "outputs are not finite"), (random(m, hidden) * torch.nan, "finite")):
        for head in twins(loss_of("taylor")):
            with pytest.raises(NumericsError, match=words):
                head.value_and_grad(h, torch.arange(m))
            with pytest.raises(NumericsError, match="needs a backward"):
                head.update(0.1)
