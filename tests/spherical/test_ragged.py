"""Targets that differ in number from example to example, flat with offsets: equal to dense autograd in float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from lstlm.errors import ConfigError
from lstlm.kernels import choice, ops
from lstlm.kernels.targets import Targets
from lstlm.spherical import DenseSphericalOutput, SphericalOutput, make_loss
from tests.spherical.oracle import (
    EXACT,
    LOSSES,
    NORMALISED,
    RATE,
    Batch,
    Dense,
    InTorch,
    Layer,
    assert_same_step,
    assert_same_weights,
    loss_of,
    make_batch,
    random_weight,
)

D, d, STEPS = 41, 11, 30
KINDS = {"native": SphericalOutput, "torch": InTorch, "naive": DenseSphericalOutput}
CLOSE = {"rtol": 1e-12, "atol": 1e-12}


def lengths_of(m: int, generator: torch.Generator, least: int) -> Tensor:
    """Between `least` and 6 targets an example, and one example with many."""
    lengths = torch.randint(least, 7, (m,), generator=generator)
    lengths[m // 2] = 25
    return lengths


class Ragged:
    """A minibatch of bags, and the same as the dense oracle takes it: padded with targets of value 0."""

    def __init__(self, seed: int, m: int, *, least: int = 1, words: int = D) -> None:
        generator = torch.Generator().manual_seed(seed)
        lengths = lengths_of(m, generator, least)
        n, width = int(lengths.sum()), int(lengths.max())
        self.ids = torch.randint(words, (n,), generator=generator)  # repeated, also within an example
        self.values = torch.rand(n, generator=generator, dtype=torch.float64) + 0.2
        self.offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
        filled = torch.arange(width) < lengths[:, None]
        ids, values = torch.zeros(m, width, dtype=torch.int64), torch.zeros(m, width, dtype=torch.float64)
        ids[filled], values[filled] = self.ids, self.values
        weight = (torch.rand(m, generator=generator, dtype=torch.float64) + 0.5) / m
        self.padded: Batch = replace(make_batch(seed, D, d, m, width, ids=ids), values=values, weight=weight)

    @property
    def h(self) -> Tensor:
        return self.padded.H[:, :-1].clone()

    def learn(self, head: SphericalOutput, lr: float) -> tuple[Tensor, Tensor]:
        return head.learn(self.h, self.ids, lr, self.values, self.padded.weight, self.offsets)


def least_of(loss: str) -> int:
    return 0 if loss in ("squared", "custom") else 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("m", [1, 6, 25], ids=["one", "low_rank", "square"])
@pytest.mark.parametrize("loss", LOSSES)
def test_equal_to_dense_autograd(loss: str, m: int, kind: str) -> None:
    settings = {} if kind == "naive" else {"stabilise": "none"}
    W = random_weight(D, d)
    layer, dense = Layer(W, loss, KINDS[kind], **settings), Dense(W, loss)
    rate = RATE[loss] / 8  # several targets pull as many times as hard
    for step in range(STEPS):
        batch = Ragged(step, m, least=least_of(loss))
        expected = dense.step(batch.padded, rate)
        if step % 2:
            got = batch.learn(layer.head, rate)
        else:
            h = batch.h.requires_grad_()
            starts = batch.offsets if step % 4 else batch.offsets[:-1]
            losses = layer.head(h, batch.ids, batch.values, offsets=starts)
            (losses * batch.padded.weight).sum().backward()
            layer.head.update(rate)
            assert h.grad is not None
            got = losses.detach(), h.grad
        assert_same_step(got, expected)
    assert float((dense.W - W).norm()) > 0.05, "steps that hardly move W prove little"
    assert_same_weights(layer, dense.W)


@pytest.mark.parametrize("kind", ["native", "torch"])
@pytest.mark.parametrize("m", [6, 25], ids=["low_rank", "square"])
def test_with_repairs(kind: str, m: int) -> None:
    W = torch.zeros(D, d, dtype=torch.float64)
    layer, dense = Layer(W, "squared", KINDS[kind], stabilise_range=(0.9, 1.1)), Dense(W, "squared")
    for step in range(STEPS):
        batch = Ragged(step, m, least=0, words=D if step % 3 else 5)
        assert_same_step(batch.learn(layer.head, 0.02), dense.step(batch.padded, 0.02))
    assert layer.head.stabiliser.total > 20
    assert_same_weights(layer, dense.W)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("m", [6, 25], ids=["low_rank", "square"])
@pytest.mark.parametrize("loss", LOSSES)
def test_a_step_is_exact(loss: str, m: int, kind: str) -> None:
    W, batch = random_weight(D, d), Ragged(7, m, least=least_of(loss))
    layer, dense = Layer(W, loss, KINDS[kind]), Dense(W, loss)
    losses, grad_H, grad_W = dense.gradients(batch.padded)
    got = layer.head.value_and_grad(batch.h, batch.ids, batch.values, batch.padded.weight, batch.offsets)
    torch.testing.assert_close(got[0], losses, **CLOSE)
    torch.testing.assert_close(got[1], grad_H[:, :-1], **CLOSE)
    assert layer.head.grad_norm() == pytest.approx(float(grad_W.norm()), rel=1e-11)
    layer.head.update(RATE[loss] / 8)
    torch.testing.assert_close(layer.weight(), W - RATE[loss] / 8 * grad_W, **CLOSE)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("m", [6, 25], ids=["low_rank", "square"])
@pytest.mark.parametrize("loss", LOSSES)
def test_as_many_targets_each_is_the_same_as_a_matrix(loss: str, m: int, kind: str) -> None:
    W, batch = random_weight(D, d), make_batch(3, D, d, m, 4)
    one, other = Layer(W, loss, KINDS[kind]), Layer(W, loss, KINDS[kind])
    h = batch.H[:, :-1]
    flat, offsets = batch.ids.reshape(-1).int(), torch.arange(0, 4 * m, 4, dtype=torch.int32)
    one.head.learn(h, flat, RATE[loss] / 8, batch.values.reshape(-1).float().double(), None, offsets)
    other.head.learn(h, batch.ids, RATE[loss] / 8, batch.values.float())
    torch.testing.assert_close(one.weight(), other.weight(), **CLOSE)


@pytest.mark.parametrize("kind", ["native", "torch"])
@pytest.mark.parametrize("loss", NORMALISED)
def test_with_a_prior(loss: str, kind: str) -> None:
    prior, batch = torch.arange(1.0, D + 1), Ragged(2, 6)
    ragged, matrix = (Layer(0.3 * random_weight(D, d), loss, KINDS[kind], prior=prior) for _ in range(2))
    got = batch.learn(ragged.head, 0.02)
    padded = batch.padded
    expected = matrix.head.learn(batch.h, padded.ids, 0.02, padded.values, padded.weight)
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one, other, **CLOSE)
    torch.testing.assert_close(ragged.weight(), matrix.weight(), **CLOSE)


def test_backward_passes_of_all_kinds_before_one_update() -> None:
    W, ragged = random_weight(D, d), [Ragged(1, 6), Ragged(2, 5)]
    layer, dense = Layer(W, "taylor"), Dense(W, "taylor")
    single, several = make_batch(3, D, d, 4), make_batch(4, D, d, 3, 2)
    gradient = torch.zeros_like(W)
    for batch in ragged:
        layer.head.value_and_grad(batch.h, batch.ids, batch.values, batch.padded.weight, batch.offsets)
        gradient += dense.gradients(batch.padded)[2]
    for batch in (single, several):
        layer.head.value_and_grad(batch.H[:, :-1], batch.ids, batch.values)
        gradient += dense.gradients(batch)[2]
    layer.head.update(0.05)
    torch.testing.assert_close(layer.weight(), W - 0.05 * gradient, **EXACT)


@pytest.mark.parametrize("kind", KINDS)
def test_nobody_has_a_target(kind: str) -> None:
    W, nothing = random_weight(D, d), torch.zeros(0, dtype=torch.int64)
    for m in (4, 25):
        layer, dense = Layer(W, "squared", KINDS[kind]), Dense(W, "squared")
        batch = replace(make_batch(1, D, d, m), values=torch.zeros(m, 1, dtype=torch.float64))
        losses, grad_H = dense.step(batch, 0.02)
        offsets = torch.zeros(m, dtype=torch.int64)
        got = layer.head.learn(batch.H[:, :-1], nothing, 0.02, nothing.double(), None, offsets)
        assert_same_step(got, (losses, grad_H))
        assert_same_weights(layer, dense.W)


def test_sequences_and_half_precision() -> None:
    head = SphericalOutput(d - 1, D, make_loss("taylor"))
    batch = Ragged(1, 6)
    flat = head(batch.h.float(), batch.ids, batch.values, batch.padded.weight, batch.offsets)
    weight = batch.padded.weight.view(2, 3)
    shaped = head(batch.h.float().view(2, 3, -1), batch.ids, batch.values, weight, batch.offsets)
    torch.testing.assert_close(shaped, flat.view(2, 3))
    assert head(batch.h.bfloat16(), batch.ids, offsets=batch.offsets).dtype == torch.float32


@pytest.mark.parametrize("loss", ["spherical", "taylor", "z"])
def test_an_empty_bag_is_refused_where_the_loss_is_a_sum_over_targets(loss: str) -> None:
    head = SphericalOutput(d - 1, D, loss_of(loss), dtype=torch.float64)
    with pytest.raises(ConfigError, match="example 1 has no target.*SquaredError"):
        head(make_batch(0, D, d, 3).H[:, :-1], torch.tensor([1, 2, 3]), offsets=torch.tensor([0, 2, 2]))


@pytest.mark.parametrize(
    ("offsets", "words"),
    [
        (torch.tensor([0, 2]), "shape"),
        (torch.tensor([0, 1, 2, 3, 4]), "shape"),
        (torch.tensor([1, 2, 3]), "start at 0"),
        (torch.tensor([0, 3, 2]), "never to go back"),
        (torch.tensor([0, 2, 5]), "end with the 4"),
        (torch.tensor([0, 1, 2, 3]), "end with the 4"),
        (torch.tensor([0.0, 1.0, 2.0]), "integers"),
        ([0, 1, 2], "integers"),
    ],
)
def test_offsets_that_cannot_be_right(offsets: Tensor, words: str) -> None:
    head = SphericalOutput(d - 1, D, make_loss("squared"), dtype=torch.float64)
    h, ids = make_batch(0, D, d, 3).H[:, :-1], torch.tensor([1, 2, 3, 4])
    with pytest.raises(ConfigError, match=words):
        head(h, ids, offsets=offsets)
    with pytest.raises(ConfigError, match="as there are offsets"):
        head(h, ids.view(2, 2), offsets=torch.tensor([0, 1, 2]))
    with pytest.raises(ConfigError, match="target_values"):
        head(h, ids, torch.ones(3), offsets=torch.tensor([0, 1, 2]))


@pytest.mark.skipif(choice.native is None, reason="no compiled code")
@pytest.mark.parametrize("K", [1, 3, "ragged"])
@pytest.mark.parametrize("m", [6, 25], ids=["low_rank", "square"])
def test_compiled_code_is_reached(m: int, K: int | str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the torch form out of the way, a step with any number of targets goes through."""

    def forbidden(*_: object, **__: object) -> None:
        raise AssertionError("the torch form was called")

    for name in ("distinct", "dot_bags", "sum_bags", "add_bags", "low_rank_outputs", "low_rank_backward"):
        monkeypatch.setattr(f"lstlm.kernels.reference.{name}", forbidden)
    monkeypatch.setattr("lstlm.spherical.losses.SquaredError.partials", forbidden)
    batch = Ragged(1, m) if K == "ragged" else make_batch(1, D, d, m, int(K))
    head = SphericalOutput(d - 1, D, make_loss("squared"), dtype=torch.float64)
    if isinstance(batch, Ragged):
        batch.learn(head, 0.01)
    else:
        head.learn(batch.H[:, :-1], batch.ids, 0.01, batch.values)
    with pytest.raises(AssertionError, match="torch form"):
        InTorch(d - 1, D, make_loss("squared")).learn(torch.zeros(m, d - 1), torch.arange(m), 0.1)


OPERATIONS: dict[str, Callable[[Tensor, Targets, Tensor, Tensor, choice.Impl], Tensor]] = {
    "dot": lambda rows, targets, X, w, impl: ops.dot_bags(rows, targets, X, impl=impl),
    "sum": lambda rows, targets, X, w, impl: ops.sum_bags(rows, targets, w, impl=impl),
    "add": lambda rows, targets, X, w, impl: ops.add_bags(rows, targets, X, w, -2.0, impl=impl) or rows,
}


@pytest.mark.skipif(choice.native is None, reason="no compiled code")
@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_in_both_forms(name: str) -> None:
    batch = Ragged(3, 9, least=0)
    found = {}
    for impl in ("native", "torch"):
        targets = Targets(batch.ids, batch.values, 9, batch.offsets, impl=impl)
        assert torch.equal(targets.words[targets.place], batch.ids) and len(targets.words.unique()) == len(
            targets.words
        )
        rows, X = random_weight(D, d)[targets.words], random_weight(9, d, seed=1)
        result = OPERATIONS[name](rows, targets, X, batch.values.clone(), impl)
        whole = torch.zeros(D, d, dtype=torch.float64)
        found[impl] = whole.index_copy(0, targets.words, result) if name == "add" else result
    torch.testing.assert_close(found["native"], found["torch"], **CLOSE)


@pytest.mark.parametrize("impl", ["auto", "torch"])
def test_repeated_targets_of_an_example_are_merged_into_the_first(impl: choice.Impl) -> None:
    ids, offsets = torch.tensor([4, 7, 4, 7, 4, 4, 9, 4]), torch.tensor([0, 4, 4, 5, 8])
    values = torch.tensor([1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0], dtype=torch.float64)
    merged = Targets(ids, values, 4, offsets, impl=impl).merged()
    assert merged.values.tolist() == [5.0, 10.0, 0.0, 0.0, 16.0, 160.0, 64.0, 0.0]
    assert torch.equal(merged.ids, ids) and torch.equal(merged.offsets, offsets)
    assert torch.equal(merged.words[merged.place], ids)
    square = Targets(ids, values, 4, impl=impl).merged()  # (m,K)
    assert square.each == 2 and square.values.tolist() == [1.0, 2.0, 4.0, 8.0, 48.0, 0.0, 64.0, 128.0]


@pytest.mark.skipif(choice.native is None, reason="no compiled code")
def test_compiled_code_refuses_bags_that_lead_out_of_its_tables() -> None:
    rows, X, weights = torch.zeros(3, 4), torch.zeros(2, 4), torch.zeros(3)
    place, offsets = torch.tensor([0, 1, 2]), torch.tensor([0, 1, 3])
    choice.native.add_bags(rows, place, offsets, X, weights, 1.0)
    for wrong, error in (
        ((place + 1, offsets), IndexError),
        ((place, offsets + 1), ValueError),
        ((place, torch.tensor([0, 4, 3])), ValueError),
        ((place, torch.tensor([0, 3])), ValueError),
        ((place[:2], offsets), ValueError),
    ):
        with pytest.raises(error):
            choice.native.add_bags(rows, *wrong, X, weights, 1.0)
        with pytest.raises(error):
            choice.native.sum_bags(rows, *wrong, weights, torch.zeros(2, 4))
