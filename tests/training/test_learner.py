"""A learner's steps: the same by every form of the operations, and nothing moves where something is wrong."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from lstlm.bench.model import synthetic_corpus
from lstlm.config import Config, DataConfig, ModelConfig, OptimConfig, OutputConfig, TrainConfig
from lstlm.errors import ConfigError, DataError, NumericsError
from lstlm.kernels import choice
from lstlm.training.loop.learner import Learner

VOCAB, m = 60, 16
compiled = pytest.mark.skipif(choice.native is None, reason=f"no compiled code: {choice.problem}")
CORPUS = synthetic_corpus(VOCAB, tokens=330)  # 20 minibatches and a smaller one an epoch
USUAL = {"hidden": (21, 24), "combine": "sum", "activation": "tanh", "optimiser": "adagrad", "dtype": "float64"}


def learner(**settings: Any) -> Learner:
    of = {**USUAL, "m": m, "rate": 0.05, **settings}
    output = {name: of[name] for name in ("loss", "kind", "prior") if name in of}
    config = Config(
        data=DataConfig(context=3),
        model=ModelConfig(embedding=7, hidden=of["hidden"], combine=of["combine"], activation=of["activation"]),
        output=OutputConfig(**output),
        optim=OptimConfig(output_lr=of["rate"], hidden=of["optimiser"]),
        train=TrainConfig(batch_size=of["m"], dtype=of["dtype"]),
    )
    return Learner(config, CORPUS, torch.device("cpu"))


def state(of: Learner) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for file, parts in of.tensors().items():
        flat = torch.utils._pytree.tree_flatten_with_path(parts)[0]
        tensors |= {f"{file} {path}": value for path, value in flat if isinstance(value, Tensor)}
    return tensors


@compiled
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"combine": "mean", "loss": "taylor", "prior": "unigram"},
        {"combine": "concat", "loss": "spherical", "hidden": (30,)},
        {"activation": "relu", "loss": "squared", "hidden": (9, 40, 25), "optimiser": "adam"},
        {"activation": "identity", "m": 1, "optimiser": "sgd"},
        {"m": 40},
    ],
    ids=str,
)
def test_the_same_steps(settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """In float64, where rounding cannot hide a mistake."""
    one, other = learner(**settings), learner(**settings)
    for step in range(50):
        mine = one.step(1.0, measured=step % 7 == 0)
        with monkeypatch.context() as patch:
            patch.setattr(choice, "native", None)
            theirs = other.step(1.0, measured=step % 7 == 0)
        assert mine.loss == pytest.approx(theirs.loss, rel=1e-9)
        assert one.grad_norm == pytest.approx(other.grad_norm, rel=1e-9)
    expected = state(other)
    for name, value in state(one).items():
        torch.testing.assert_close(value, expected[name], rtol=1e-9, atol=1e-9, msg=lambda m, n=name: n + m)


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


def test_two_backward_passes_before_one_update_count_both_once() -> None:
    """Through the way that training takes: the weights move as for one minibatch of all the examples."""
    context = torch.randint(0, VOCAB, (2 * m, 3), generator=torch.Generator().manual_seed(5))
    ids = torch.randint(0, VOCAB, (2 * m,), generator=torch.Generator().manual_seed(6))
    apart, together = learner(), learner()
    for half in (slice(0, m), slice(m, 2 * m)):
        apart.gradients(context[half], ids[half], None, lambda phase: None)
    together.gradients(context, ids, None, lambda phase: None)
    apart.network.output.update(0.05)
    together.network.output.update(0.1)  # each half had weights 1/m, all of them have 1/2m
    torch.testing.assert_close(apart.network.output.weight(), together.network.output.weight(), rtol=1e-11, atol=1e-11)


def test_the_search_for_classes_is_part_of_the_training_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([10.0, 13.5])
    monkeypatch.setattr("lstlm.training.loop.learner.time.process_time", lambda: next(clock))
    output = OutputConfig(kind="shortlist", loss="taylor", shortlist=5, middle=20)
    found = Learner(Config(output=output, data=DataConfig(context=3)), CORPUS, torch.device("cpu"))
    assert found.network.output.middle is not None
    assert found.seconds_before == 3.5
