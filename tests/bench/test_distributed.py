"""`lstlm bench distributed`: numbers of ranks are checked, what was sent stays below the model of it."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from lstlm.bench.distributed import Plan, _figures, _Turn
from lstlm.bench.distributed import run as measure
from lstlm.bench.model import synthetic_corpus
from lstlm.cli import cli
from lstlm.config import Config
from lstlm.errors import LstlmError, NumericsError
from lstlm.training.loop.learner import Learner
from tests.helpers import PATIENCE_S
from tests.warm import warm

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("worlds", ["0", "1,x", "1,,2"])
def test_numbers_of_ranks_are_whole_and_positive(worlds: str) -> None:
    outcome = CliRunner().invoke(cli, ["bench", "distributed", "--worlds", worlds])
    assert outcome.exit_code == 2 and "is not a " in outcome.output


def test_the_size_of_a_minibatch_is_spelled_as_in_the_other_benchmarks() -> None:
    outcome = CliRunner().invoke(cli, ["bench", "distributed", "--batch-size", "0"])
    assert outcome.exit_code == 2 and "0 is not a whole number from 1 to 2,147,483,648" in outcome.output


def test_the_model_is_that_of_the_recipes() -> None:
    model = Plan(worlds=[1], vocab_sizes=[200], batch_sizes=[4], hidden=8, layers=3).config(200, 4).model
    assert (model.combine, model.hidden) == ("concat", (8, 8, 8))


def test_a_rate_that_is_refused_is_halved() -> None:
    plan = Plan(worlds=[1], vocab_sizes=[200], batch_sizes=[4], hidden=8)
    config = plan.config(200, 4)
    config = replace(config, optim=replace(config.optim, output_lr=1000.0))
    turn = _Turn(Learner(config, synthetic_corpus(200, 2000), torch.device("cpu")))
    alone: Any = SimpleNamespace(first=True, sent=0, on_first=lambda work: work(), collect=lambda mine: [mine])
    turn.steps = 10
    turn.take(alone)
    assert turn.halvings >= 1 and len(turn.times) == 10
    figures = _figures(plan, turn, alone)
    assert figures["lr"] == 1000 / 2**turn.halvings and figures["lr_halvings"] == turn.halvings


@pytest.fixture
def started_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lstlm.bench.processes.get_context", lambda way: warm())


def test_two_ranks_are_measured_beside_one(started_at_once: None) -> None:
    arguments = "bench distributed --quick --budget 0.05 --hidden 16 --batch-sizes 64 --json -"
    outcome = CliRunner().invoke(cli, arguments.split())
    assert outcome.exit_code == 0, outcome.output
    one, two = json.loads(outcome.stdout)["records"]
    assert (one["world"], two["world"]) == (1, 2) and one["bytes"] == 0 and one["speedup"] == 1
    assert 0 < two["bytes"] <= two["bytes_bound"] * 1.02  # sizes and flags are not in the model
    assert two["latency_us"] > 0 and two["of_independent"] > 0


class Refused(Plan):
    """A plan with which every rank fails."""

    def config(self, vocab: int, m: int) -> Config:
        raise NumericsError("the loss became nan")


def test_an_error_of_a_rank_is_said_once_with_its_own_exit_code(
    started_at_once: None, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(LstlmError, match=r"^bench distributed: the loss became nan$") as error:
        measure(Refused(worlds=[1], vocab_sizes=[200], batch_sizes=[4]), print)
    assert error.value.exit_code == 4
    assert capfd.readouterr() == ("", "")


class Sleeping(Plan):
    """A plan with which every rank says that it is there, and then hangs."""

    def config(self, vocab: int, m: int) -> Config:
        print("ready", file=sys.stderr, flush=True)
        time.sleep(1000)
        raise AssertionError


HANGING = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever runs the tests may ignore it
import lstlm.bench.distributed
from lstlm.cli import cli
from tests.bench.test_distributed import Sleeping
if __name__ == "__main__":
    lstlm.bench.distributed.Plan = Sleeping
    cli.main(["bench", "distributed", "--worlds", "1", "--vocab-sizes", "200"])
"""


@pytest.mark.parametrize(
    ("number", "tell", "code", "line"),
    [(signal.SIGINT, os.killpg, 130, "lstlm: error: interrupted\n"), (signal.SIGTERM, os.kill, 143, "")],
    ids=["Ctrl-C", "SIGTERM"],
)
def test_signals_end_the_ranks_too_and_in_silence(
    number: signal.Signals, tell: Callable[[int, int], None], code: int, line: str
) -> None:
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", HANGING]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=root, start_new_session=True)
    try:
        assert process.stderr is not None and process.stderr.readline() == "ready\n"
        tell(process.pid, number)
        _, err = process.communicate(timeout=PATIENCE_S)  # until the rank, too, has closed stderr
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert (process.returncode, err) == (code, line)
