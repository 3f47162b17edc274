"""A loss and an output layer of one's own, added through the public registry, are as good as those of the package."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from torch import Tensor

from lstlm.bench import check
from lstlm.bench.methods import Method, expand, method_names
from lstlm.bench.verification import compare
from lstlm.cli import cli
from lstlm.config import output_rate, parse_config
from lstlm.errors import ConfigError
from lstlm.outputs.base import RecordedOutput, RecordedStep
from lstlm.outputs.rows import Making
from lstlm.protocol.scan import Scan
from lstlm.registry import LOSSES, OUTPUTS, LossKind, OutputKind, constant
from lstlm.spherical import SphericalLoss, make_loss
from lstlm.spherical.losses import Partials
from tests.outputs import test_outputs_battery as battery
from tests.outputs.dense_outputs import DenseLinear, DenseSpherical

TESTS_OF_EVERY_LAYER = [
    battery.test_ten_steps_equal_dense_autograd_sgd,
    battery.test_weight_decay_reaches_every_row,
    battery.test_one_example,
    battery.test_more_examples_than_hidden_units_and_words,
    battery.test_several_targets_are_a_weighted_mixture,
    battery.test_flat_ids_without_values_mean_one_target_of_value_one,
    battery.test_value_and_grad_is_forward_and_backward,
    battery.test_topk_orders_the_vocabulary_as_the_definition_does,
    battery.test_a_restored_layer_continues_bit_for_bit,
    battery.test_two_backward_passes_count_as_one_larger_minibatch,
    battery.test_update_needs_exactly_one_backward,
    battery.test_discarded_gradients_are_gone,
    battery.test_the_protocol_is_satisfied,
]


class Halves(SphericalLoss):
    """ℓ = slope·(q/D + Σ t·(t − 2o)): squared error whose unexplained part counts by its mean. `a` is the slope."""

    uses_sum = False

    def __init__(self, a: float = 1.0) -> None:
        self.a = a

    def partials(self, q: Any, s: Any, o: Any, t: Any, D: float) -> Partials:
        value = self.a * (q / D + (t * (t - 2 * o)).sum(1))
        return Partials(value, 0 * q + self.a / D, None, -2 * self.a * t)


class DenseHalves(DenseSpherical):
    def losses(self, h: Tensor, ids: Tensor, t: Tensor) -> Tensor:
        o = self.outputs(h)
        if self.loss != "halves":
            return super().losses(h, ids, t)
        Y = torch.zeros_like(o).scatter_add(1, ids, t)
        return self.a * (o.square().mean(1) + (Y * (Y - 2 * o)).sum(1))


class Logistic(RecordedOutput):
    """The full softmax, written plainly: what a newcomer would write first."""

    def __init__(self, hidden: int, counts: Tensor, **making: Any) -> None:
        super().__init__(hidden, len(counts))
        self.rows = Making(**making).rows(len(counts), hidden)

    @property
    def like(self) -> Tensor:
        return self.rows.matrix

    def _losses(self, h: Tensor, ids: Tensor, t: Tensor) -> tuple[Tensor, RecordedStep]:
        step = LogisticStep(self, h, ids, t)
        return step.losses, step

    def log_prob(self, h: Tensor, ids: Tensor) -> Tensor:
        self._check(h, ids)
        return self.rows.log_softmax(h, ids)

    def _scan(self, h: Tensor) -> Scan:
        return lambda: [(torch.arange(self.vocab), lambda: self.rows.scores(h, slice(None)).log_softmax(1))]

    def weight(self) -> Tensor:
        return self.rows.weight()

    def bias_vector(self) -> Tensor:
        return self.rows.bias_vector()


class LogisticStep(RecordedStep):
    def __init__(self, layer: Logistic, h: Tensor, ids: Tensor, t: Tensor) -> None:
        self.layer, self.h, self.ids, self.t = layer, h, ids, t
        self.log_p = layer.rows.scores(h, slice(None)).log_softmax(1)
        self.losses = -(t * self.log_p.gather(1, ids)).sum(1)

    def backward(self, upstream: Tensor) -> Tensor:
        c = upstream[:, None] * self.t
        self.G = (self.log_p.exp() * c.sum(1, keepdim=True)).scatter_add_(1, self.ids, -c)
        return self.G @ self.layer.rows.weight()

    def apply(self, lr: float, keep: float) -> None:
        self.layer.rows.decay_(keep)
        self.layer.rows.add_(torch.arange(self.layer.vocab), self.G.T @ self.h, self.G.sum(0), -lr)


@pytest.fixture
def toys(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Register a loss and a kind, as a program would, and tell the battery their dense definitions."""
    LOSSES.add(LossKind("halves", Halves, constant(0.3), verify_rate=20.0, settings=("a",)))
    OUTPUTS.add(
        OutputKind(
            "logistic",
            lambda config, hidden, counts, **making: Logistic(hidden, counts, **making),
            rate=constant(1.5),
            dense=True,
            reference="lstlm.bench.check:SoftmaxOracle",
        )
    )
    monkeypatch.setattr(battery, "DenseSpherical", DenseHalves)
    monkeypatch.setitem(battery.DENSE, "logistic", DenseLinear)
    monkeypatch.setattr(battery, "NORMALISED", [*battery.NORMALISED, "logistic"])
    yield
    LOSSES.remove("halves")
    OUTPUTS.remove("logistic")


@pytest.mark.parametrize("name", ["factored-halves", "naive-halves", "logistic"])
@pytest.mark.parametrize("check_layer", TESTS_OF_EVERY_LAYER, ids=lambda test: test.__name__.removeprefix("test_"))
def test_the_battery_holds_for_what_a_program_registered(toys: None, name: str, check_layer: Any) -> None:
    check_layer(name)


def test_everyone_asks_the_registry(toys: None) -> None:
    config = parse_config("output: {kind: logistic, loss: halves, a: 0.5}")
    assert output_rate(config, 1000) == 1.5
    assert output_rate(parse_config("output: {loss: halves}"), 1000) == 0.3
    assert make_loss("halves", a=0.5, epsilon=9.0).a == 0.5  # type: ignore[attr-defined]
    assert "logistic" in method_names()
    for method in (Method("logistic", "softmax"), *expand(["factored", "naive-blocked"], ["halves"], ["lazy"])):
        assert check.verify(method, d=300, m=128) <= check.TOLERANCE
    assert compare("halves", 20, "float64", 1).worst() < 1e-9


def test_what_is_not_registered_is_refused_with_the_names_that_are() -> None:
    for text in ("output: {kind: logistic}", "output: {loss: halves}"):
        with pytest.raises(ConfigError, match="is not one of"):
            parse_config(text)
    with pytest.raises(ConfigError, match=r"output\.loss 'halves' is unknown; choose one of z, squared"):
        make_loss("halves")
    with pytest.raises(ConfigError, match="no loss has a setting 'slope'"):
        make_loss("z", slope=1.0)
    with pytest.raises(ConfigError, match="registered already"):
        LOSSES.add(LOSSES["z"])


def test_a_layer_without_a_reference_is_not_timed(toys: None) -> None:
    OUTPUTS.add(OutputKind("plain", OUTPUTS["logistic"].make, rate=constant(1.0)))
    try:
        with pytest.raises(ConfigError, match="not verified is not timed"):
            check.verify(Method("plain", "softmax"), d=300, m=128)
    finally:
        OUTPUTS.remove("plain")


def test_help_and_configuration_need_no_torch() -> None:
    code = (
        "import sys; from lstlm.config import load_config, parse_config; parse_config('output: {kind: naive}');"
        "from lstlm.cli import cli; cli(['bench', 'output', '--help'], standalone_mode=False);"
        "cli(['verify', '--help'], standalone_mode=False); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0
    assert "taylor" in CliRunner().invoke(cli, ["verify", "--help"]).output
