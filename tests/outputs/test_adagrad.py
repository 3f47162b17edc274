"""Row-wise Adagrad of the layers whose rows may have rates: equal to one written out over dense gradients."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from lstlm.config import parse_config, with_rates
from lstlm.errors import ConfigError
from lstlm.outputs import make_output
from tests.outputs.dense_outputs import Dense
from tests.outputs.test_outputs_battery import COUNTS, HIDDEN, TOLERANCE, batch, config_of, dense_of

LAYERS = ["softmax", "hierarchical", "hierarchical-brown", "sampled", "sampled-all", "adaptive", "shortlist-taylor"]
# leaves of the dense definition that share one row, weights and bias, and so one rate; a tail learns by SGD
ROWS = {"shortlist": [("S", "s")], "hierarchical": [("W", "b"), ("R", "r")]}


def make(name: str, seed: int = 3) -> nn.Module:
    place = {"dtype": torch.float64, "generator": torch.Generator().manual_seed(seed)}
    return make_output(config_of(name), HIDDEN, COUNTS, optimiser="adagrad", **place)


class ByHand:
    """Adagrad over the leaves of a dense definition: one number a row, the sum of the mean squares of its gradients."""

    def __init__(self, name: str, layer: nn.Module) -> None:
        self.dense: Dense = dense_of(name, layer)
        kind = name.partition("-")[0]
        adaptive = [(leaf,) for leaf in self.dense.leaves]
        self.rows = adaptive if kind == "adaptive" else ROWS.get(kind, [("W", "b")])
        self.squares: dict[str, Tensor] = {}

    def step(self, lr: float, decay: float) -> None:
        leaves = self.dense.leaves
        with torch.no_grad():
            for group in self.rows:
                found = [leaves[leaf] for leaf in group if leaves[leaf].grad is not None]
                if not found:
                    continue
                gradient = torch.cat([leaf.grad.reshape(len(leaf), -1) for leaf in found], 1)
                self.squares[group[0]] = self.squares.get(group[0], 0) + gradient.square().mean(1)
                for leaf in found:
                    rate = lr / (self.squares[group[0]].sqrt() + 1e-10)
                    leaf.grad.mul_((rate if leaf.ndim == 1 else rate[:, None]) / lr)
        self.dense.sgd(lr, decay)


def same_weights(hand: ByHand) -> None:
    for leaf, now in hand.dense.layer_weights().items():
        torch.testing.assert_close(now, hand.dense.leaves[leaf].detach(), msg=lambda m: f"{leaf}: {m}", **TOLERANCE)  # noqa: B023


@pytest.mark.parametrize("decay", [0.0, 0.4])
@pytest.mark.parametrize("name", LAYERS)
def test_ten_steps_equal_adagrad_by_hand(name: str, decay: float) -> None:
    layer = make(name)
    hand = ByHand(name, layer)
    for step in range(10):
        h, ids, values = batch(100 + step)
        hand.dense.before_forward()
        found, expected = layer(h, ids, values), hand.dense.losses(h.detach(), ids, values)
        torch.testing.assert_close(found, expected, **TOLERANCE)
        found.mean().backward()
        expected.mean().backward()
        layer.update(0.1, decay)
        hand.step(0.1, decay)
        same_weights(hand)


@pytest.mark.parametrize("name", [name for name in LAYERS if name != "sampled"])
def test_two_backward_passes_are_one_larger_minibatch(name: str) -> None:
    layer = make(name)
    hand = ByHand(name, layer)
    for seeds in ((21, 22), (23, 24)):
        parts = [batch(seed)[:2] for seed in seeds]
        for h, ids in parts:
            layer(h, ids).mean().backward()
        sum(hand.dense.losses(h.detach(), ids, torch.ones_like(h[:, :1])).mean() for h, ids in parts).backward()
        layer.update(0.1, 0.2)
        hand.step(0.1, 0.2)
        same_weights(hand)


@pytest.mark.parametrize("name", LAYERS)
def test_a_restored_layer_continues_bit_for_bit(name: str) -> None:
    first, second = make(name), make(name, seed=99)
    for layer, steps in ((first, range(4)), (None, ()), (first, range(4, 8)), (second, range(4, 8))):
        if layer is None:
            second.load_state_dict(first.state_dict())
            continue
        for step in steps:
            h, ids, _ = batch(step)
            layer(h, ids).mean().backward()
            layer.update(0.1)
    state = second.state_dict()
    assert any("squares" in key for key in state)
    assert all(torch.equal(value, state[key]) for key, value in first.state_dict().items())


@pytest.mark.parametrize("kind", ["factored", "naive"])
def test_factored_layers_say_why_they_have_no_adagrad(kind: str) -> None:
    with pytest.raises(ConfigError, match=r"optim\.output: adagrad gives every row a rate of its own.*one matrix"):
        parse_config(f"output: {{kind: {kind}}}\noptim: {{output: adagrad}}")
    with pytest.raises(ConfigError, match="no rates for single rows"):
        make_output(config_of(f"{kind}-z"), HIDDEN, COUNTS, optimiser="adagrad")


def test_the_default_rate_follows_the_optimiser() -> None:
    def rate(text: str) -> float | None:
        return with_rates(parse_config(text), 1000).optim.output_lr

    assert rate("output: {kind: softmax}") == 1.0
    assert rate("output: {kind: softmax}\noptim: {output: adagrad}") == 0.05
    assert rate("output: {kind: shortlist, loss: taylor}") == 0.05  # adagrad is its own
    assert rate("output: {kind: shortlist, loss: taylor}\noptim: {output: sgd}") == 1.0
