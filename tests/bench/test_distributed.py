"""`lstlm bench distributed`: numbers of ranks are checked, what was sent stays below the model of it."""

import json
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from lstlm.bench.distributed import Plan, _figures, _Turn
from lstlm.bench.model import synthetic_corpus
from lstlm.cli import cli
from lstlm.training.learner import Learner

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("worlds", ["0", "1,x", "1,,2"])
def test_numbers_of_ranks_are_whole_and_positive(worlds: str) -> None:
    outcome = CliRunner().invoke(cli, ["bench", "distributed", "--worlds", worlds])
    assert outcome.exit_code == 2 and "is not a whole number from 1 on" in outcome.output


def test_the_model_is_the_papers() -> None:
    model = Plan(worlds=[1], vocab_sizes=[200], batch_sizes=[4], hidden=8, layers=3).config(200, 4).model
    assert (model.combine, model.hidden) == ("concat", (8, 8, 8))


def test_a_rate_that_is_refused_is_halved() -> None:
    plan = Plan(worlds=[1], vocab_sizes=[200], batch_sizes=[4], hidden=8)
    corpus = synthetic_corpus(200, 2000)
    turn = _Turn(Learner(plan.config(200, 4), corpus, torch.device("cpu")))
    alone: Any = SimpleNamespace(first=True, sent=0, on_first=lambda work: work(), collect=lambda mine: [mine])
    turn.steps = 50
    turn.take(alone)
    assert turn.halvings >= 1 and len(turn.times) == 50
    figures = _figures(plan, turn, alone)
    assert figures["lr"] == 10 / 2**turn.halvings and figures["lr_halvings"] == turn.halvings


def test_two_ranks_are_measured_beside_one() -> None:
    arguments = [
        "bench",
        "distributed",
        "--quick",
        "--budget",
        "0.05",
        "--hidden",
        "16",
        "--batch-sizes",
        "64",
        "--json",
        "-",
    ]
    outcome = CliRunner().invoke(cli, arguments)
    assert outcome.exit_code == 0, outcome.output
    one, two = json.loads(outcome.stdout)["records"]
    assert (one["world"], two["world"]) == (1, 2) and one["bytes"] == 0 and one["speedup"] == 1
    assert 0 < two["bytes"] <= two["bytes_bound"] * 1.02  # sizes and flags are not in the model
    assert two["latency_us"] > 0 and two["of_independent"] > 0
