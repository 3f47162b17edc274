"""The compiled way through the whole network gives, bit for bit, what the network's own way gives."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lstlm.bench.model import synthetic_corpus
from lstlm.config import Config, DataConfig, ModelConfig, OptimConfig, OutputConfig, TrainConfig
from lstlm.errors import ConfigError, DataError, NumericsError
from lstlm.nn.whole_pass import WholePass
from lstlm.spherical.native import kernel_for
from lstlm.training.loop.learner import Learner

VOCAB, m = 60, 16
pytestmark = pytest.mark.skipif(kernel_for(torch.zeros(1)) is None, reason="the kernel was not compiled")
CORPUS = synthetic_corpus(VOCAB, tokens=330)  # 20 minibatches and a smaller one an epoch
USUAL = {"hidden": (21, 24), "combine": "sum", "activation": "tanh", "optimiser": "adagrad", "dtype": "float32"}


def learner(*, whole: bool = True, **settings: Any) -> Learner:
    """Return a learner that may or may not take the compiled way."""
    of = {**USUAL, "m": m, "rate": 0.05, **settings}
    output = {name: of[name] for name in ("loss", "kind", "prior") if name in of}
    config = Config(
        data=DataConfig(context=3),
        model=ModelConfig(embedding=7, hidden=of["hidden"], combine=of["combine"], activation=of["activation"]),
        output=OutputConfig(**output),
        optim=OptimConfig(output_lr=of["rate"], hidden=of["optimiser"]),
        train=TrainConfig(batch_size=of["m"], dtype=of["dtype"]),
    )
    made = Learner(config, CORPUS, torch.device("cpu"))
    if not whole:
        made._whole = False
    return made


def state(of: Learner) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for file, parts in of.tensors().items():
        flat = torch.utils._pytree.tree_flatten_with_path(parts)[0]
        tensors |= {f"{file} {path}": value for path, value in flat if isinstance(value, Tensor)}
    return tensors


def assert_same(one: Learner, other: Learner, steps: int = 50) -> None:
    for step in range(steps):
        mine, theirs = (of.step(1.0, measured=step % 7 == 0) for of in (one, other))
        assert mine.loss == pytest.approx(theirs.loss, rel=1e-6)
        assert one.grad_norm == other.grad_norm
    expected = state(other)
    for name, value in state(one).items():
        assert torch.equal(value, expected[name]), name


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"combine": "mean", "loss": "taylor", "prior": "unigram"},
        {"combine": "concat", "loss": "spherical", "hidden": (30,)},
        {"activation": "relu", "loss": "squared", "hidden": (9, 40, 25), "optimiser": "adam"},
        {"activation": "identity", "m": 1, "optimiser": "sgd"},
    ],
    ids=str,
)
def test_the_same_steps(settings: dict[str, Any]) -> None:
    one, other = learner(**settings), learner(whole=False, **settings)
    assert_same(one, other)
    assert isinstance(one._whole, WholePass) and other._whole is False


def test_the_same_steps_while_the_stabiliser_repairs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lstlm.spherical.stabilise.LAZY_RANGE", (0.97, 1.03))
    one, other = (learner(whole=whole, loss="squared", rate=0.02) for whole in (True, False))
    assert_same(one, other)
    assert one.network.output.stabiliser.total > 5


@pytest.mark.parametrize(
    "settings",
    [{"kind": "naive"}, {"kind": "softmax"}, {"dtype": "float64"}, {"hidden": ()}, {"m": 40}],
    ids=str,
)
def test_other_networks_go_their_own_way(settings: dict[str, Any]) -> None:
    made = learner(**settings)
    made.step(1.0)
    assert made._whole is False


def test_what_is_wrong_is_said_by_the_network_itself() -> None:
    context, ids = torch.ones(m, 3, dtype=torch.int64), torch.ones(m, dtype=torch.int64)
    made = learner()
    made.step(1.0)
    before = {name: value.clone() for name, value in state(made).items()}
    for error, words, wrong_context, wrong_ids in (
        (DataError, "word id 60", context * VOCAB, ids),
        (DataError, "word id -1", -context, ids),
        (ConfigError, "target id 60", context, ids * VOCAB),
        (ConfigError, "target_ids", context, ids[:3]),
    ):
        made.optimisers.zero()
        with pytest.raises(error, match=words):
            made.gradients(wrong_context, wrong_ids, None, lambda phase: None)
        with pytest.raises(NumericsError, match="needs a backward"):
            made.optimisers.step()
    for name, value in state(made).items():
        assert torch.equal(value, before[name]), name
    with torch.no_grad():
        made.network.hidden[0].weight[0, 0] = torch.nan
    with pytest.raises(NumericsError, match="finite"):
        made.step(1.0)


def test_weights_that_are_moved_are_found_again() -> None:
    one, other = learner(), learner(whole=False)
    assert_same(one, other, 5)
    for made in (one, other):
        first, output = made.network.hidden[0].weight, made.network.output
        first.data = first.data.clone()
        assert isinstance(output, nn.Module)
        output.load_state_dict({name: value.clone() for name, value in output.state_dict().items()}, assign=True)
    assert_same(one, other, 5)
    assert isinstance(one._whole, WholePass)
