"""`ShortlistSoftmax` where torch's adaptive softmax would stand, and the same inputs for `SphericalOutput`."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from lstlm import ShortlistSoftmax, SphericalOutput, TaylorSoftmax
from lstlm.errors import ConfigError, LstlmError

HIDDEN, CLASSES = 6, 40


def make(**settings: object) -> ShortlistSoftmax:
    generator = torch.Generator().manual_seed(3)
    return ShortlistSoftmax(HIDDEN, CLASSES, shortlist=9, init_scale=0.3, generator=generator, **settings)


def examples(*shape: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(4)
    return torch.randn(*shape, HIDDEN, generator=g).to(dtype), torch.randint(CLASSES, shape, generator=g)


def test_it_answers_as_torchs_adaptive_softmax_does() -> None:
    h, target = examples(11)
    ours, torchs = make(), nn.AdaptiveLogSoftmaxWithLoss(HIDDEN, CLASSES, [9, 20])
    for head in (ours, torchs):
        result = head(h, target)
        assert result.output.shape == (11,) and result.loss.shape == ()
        torch.testing.assert_close(result.loss, -result.output.mean())
        everything = head.log_prob(h)
        assert everything.shape == (11, CLASSES)
        torch.testing.assert_close(everything.gather(1, target[:, None])[:, 0], result.output.detach())
        torch.testing.assert_close(everything.exp().sum(1), torch.ones(11))
        assert torch.equal(head.predict(h), everything.argmax(1))


def test_a_sequence_is_its_examples_one_by_one() -> None:
    h, target = examples(3, 5)
    one, other = make(), make()
    leaf, flat = h.clone().requires_grad_(), h.reshape(15, HIDDEN).clone().requires_grad_()
    result, expected = one(leaf, target), other(flat, target.reshape(15))
    assert result.output.shape == (3, 5)
    torch.testing.assert_close(result.output.reshape(15), expected.output)
    result.loss.backward()
    expected.loss.backward()
    torch.testing.assert_close(leaf.grad.reshape(15, HIDDEN), flat.grad)
    one.update(0.1)
    other.update(0.1)
    torch.testing.assert_close(one.layer.weight(), other.layer.weight())
    assert one.log_prob(h).shape == (3, 5, CLASSES) and one.predict(h).shape == (3, 5)


def test_ignored_targets_count_for_nothing() -> None:
    h, target = examples(12)
    target[::3] = -100
    one, other = make(), make()
    leaf, kept = h.clone().requires_grad_(), h[target >= 0].clone().requires_grad_()
    result, expected = one(leaf, target), other(kept, target[target >= 0])
    torch.testing.assert_close(result.loss, expected.loss)
    assert float(result.output.detach()[::3].abs().max()) == 0
    result.loss.backward()
    expected.loss.backward()
    torch.testing.assert_close(leaf.grad[target >= 0], kept.grad)
    assert float(leaf.grad[::3].abs().max()) == 0


@pytest.mark.parametrize("shape", [(0,), (0, 4), (3,)])
def test_an_empty_minibatch_and_one_without_targets_change_nothing(shape: tuple[int, ...]) -> None:
    head = make(ignore_index=7)
    h, target = examples(*shape)
    before = copy.deepcopy(head.state_dict())
    leaf = h.requires_grad_()
    result = head(leaf, torch.full_like(target, 7))
    assert float(result.loss.detach()) == 0 and result.output.shape == shape
    result.loss.backward()
    assert leaf.grad is not None and not leaf.grad.any()
    head.update(0.1)
    assert all(torch.equal(value, before[key]) for key, value in head.state_dict().items())
    assert head.predict(h.detach()[:0]).shape == (0, *shape[1:])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", ["shortlist", "spherical"])
def test_half_precision_is_taken_and_computed_in_float32(kind: str, dtype: torch.dtype) -> None:
    h, target = examples(11, dtype=dtype)

    def train(h: Tensor, *, autocast: bool) -> tuple[Tensor, Tensor, Tensor]:
        head = make().layer if kind == "shortlist" else spherical()
        leaf = h.clone().requires_grad_()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            losses = head(leaf, target)
            losses.mean().backward()
            head.update(0.1)
        return losses.detach(), leaf.grad, head.weight()

    found, exact = train(h, autocast=True), train(h.float(), autocast=False)
    assert found[0].dtype == torch.float32 and found[1].dtype == dtype
    assert torch.equal(found[0], exact[0]) and torch.equal(found[2], exact[2])
    torch.testing.assert_close(found[1], exact[1].to(dtype))


def spherical() -> SphericalOutput:
    generator = torch.Generator().manual_seed(3)
    return SphericalOutput(HIDDEN, CLASSES, TaylorSoftmax(), generator=generator)


def test_a_spherical_output_takes_sequences_and_empty_minibatches() -> None:
    one, other = spherical(), spherical()
    h, target = examples(3, 5)
    leaf = h.clone().requires_grad_()
    losses = one(leaf, target)
    torch.testing.assert_close(losses.reshape(15), other(h.reshape(15, HIDDEN), target.reshape(15)))
    losses.mean().backward()
    one.update(0.1)
    assert leaf.grad.shape == h.shape
    weighted = one(h, target, None, torch.full((3, 5), 2.0))
    torch.testing.assert_close(weighted, 2 * one(h, target))
    assert one(h[:0], target[:0]).shape == (0, 5)
    assert one(torch.zeros(0, HIDDEN), torch.zeros(0, dtype=torch.int64)).shape == (0,)


def test_it_follows_an_optimizer_and_its_schedule() -> None:
    trunk, head, by_hand = nn.Linear(4, HIDDEN), make(), make()
    other = copy.deepcopy(trunk)
    optimizer, plain = (torch.optim.SGD(net.parameters(), lr=0.5) for net in (trunk, other))
    head.follow(optimizer, lr=0.1)
    schedules = [torch.optim.lr_scheduler.LambdaLR(o, lambda step: 1 / (1 + step)) for o in (optimizer, plain)]
    x, (_, target) = torch.randn(8, 4, generator=torch.Generator().manual_seed(1)), examples(8)
    for step in range(3):
        for net, tail, o in ((trunk, head, optimizer), (other, by_hand, plain)):
            o.zero_grad()
            tail(net(x), target).loss.backward()
            o.step()
        by_hand.update(0.1 / (1 + step))
        for schedule in schedules:
            schedule.step()
    assert torch.equal(head.layer.weight(), by_hand.layer.weight()) and torch.equal(trunk.weight, other.weight)


def test_what_it_shows_and_what_it_refuses() -> None:
    assert "6, 40, shortlist=9, tail_inputs=6, loss=TaylorSoftmax()" in repr(make())
    assert "6, 40, loss=TaylorSoftmax()" in repr(spherical())
    head, (h, target) = make(), examples(3)
    assert not list(head.parameters())  # nothing for an optimizer
    for bad in ((h, target[1:]), (h[:, 1:], target), (h, target + CLASSES), (h.double(), target)):
        with pytest.raises(LstlmError):
            head(*bad)
    with pytest.raises(LstlmError, match="backward"):
        head.update(0.1)
    for counts in (torch.ones(3), [1.0] * CLASSES):
        with pytest.raises(ConfigError, match="counts"):
            ShortlistSoftmax(HIDDEN, CLASSES, counts=counts)
    assert torch.equal(
        ShortlistSoftmax(4, 50, counts=torch.arange(50.0)).layer.word_of_rank[:2], torch.tensor([49, 48])
    )


def test_what_is_no_tensor_is_refused() -> None:
    head, (h, target) = make(), examples(3)
    for call in (lambda: head(h, target.tolist()), lambda: head(h.tolist(), target), lambda: head.predict(h.tolist())):
        with pytest.raises(ConfigError, match="is a list; expected a tensor"):
            call()
    for read in (head.predict, head.log_prob):
        with pytest.raises(ConfigError, match="expected \\(…, 6\\)"):
            read(h[:, 1:])


def test_a_saved_head_continues() -> None:
    first, second = make(), ShortlistSoftmax(HIDDEN, CLASSES, shortlist=9)
    h, target = examples(8)
    first(h, target).loss.backward()
    first.update(0.1)
    second.load_state_dict(first.state_dict())
    assert torch.equal(first(h, target).output, second(h, target).output)
