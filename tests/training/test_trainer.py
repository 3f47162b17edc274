"""The loop: it learns, stops when told, keeps the best, and survives numbers that are not numbers."""

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from lstlm.errors import NumericsError
from lstlm.training.loop.learner import Learner
from lstlm.training.loop.progress import Progress
from lstlm.training.loop.validate import Validator
from lstlm.training.run.background import CheckpointWriter
from lstlm.training.run.checkpoint import step_folders
from lstlm.training.run.saved import load_run
from lstlm.training.run.session import Options
from tests.training.harness import LOW_RANK, Cli, figures, fingerprint, status


def test_it_learns_and_leaves_what_it_promises(lstlm: Cli, tmp_path: Path) -> None:
    run = tmp_path / "run"
    outcome = lstlm.ok(run, "--json", train__max_steps=150, train__eval_every=50, train__checkpoint_every=50)
    summary = json.loads(outcome.out)
    assert (summary["state"], summary["step"], summary["run"]) == ("finished", 150, str(run))
    losses = figures(run, "eval/loss")
    assert list(losses) == [50, 100, 150] and losses[150] < losses[50] - 0.1
    assert summary["evaluation"]["eval/perplexity"] == pytest.approx(torch.tensor(losses[150]).exp().item(), rel=1e-5)
    names = {path.name for path in run.iterdir()}
    assert names >= {"config.yaml", "vocab.tsv", "environment.json", "metrics.jsonl", "status.json", "checkpoints"}
    assert any(name.startswith("events.out.tfevents") for name in names)
    assert [p.name for p in step_folders(run / "checkpoints")] == [f"step-{n:08d}" for n in (150, 100, 50)]
    assert os.readlink(run / "checkpoints" / "best") == "step-00000150"
    assert status(run)["state"] == "finished" and status(run)["pid"] == os.getpid()
    assert "step 10/150 | epoch" in outcome.err and "words/s" in outcome.err


@pytest.mark.parametrize("more", [{}, LOW_RANK], ids=["softmax", "low rank"])
def test_two_runs_of_one_seed_are_equal_and_of_two_seeds_are_not(
    lstlm: Cli, tmp_path: Path, more: dict[str, str]
) -> None:
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        lstlm.ok(tmp_path / name, train__seed=seed, **more)
    first = fingerprint(tmp_path / "a", 40)
    assert first == fingerprint(tmp_path / "b", 40)
    assert first["network"] != fingerprint(tmp_path / "c", 40)["network"]


def test_metrics_hold_every_figure(lstlm: Cli, tmp_path: Path) -> None:
    lstlm.ok(tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    logged = next(line for line in lines if "loss/train" in line)
    phases = {f"time/{name}" for name in ("data", "hidden_forward", "output", "backward", "update", "stabilise")}
    assert logged.keys() >= phases | {"loss/train", "throughput/words_per_s", "optim/lr_scale", "progress/epoch"}
    assert all(logged[phase] >= 0 for phase in phases) and logged["time/update"] > 0


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"optim__schedule": "linear", "optim__warmup_steps": 20}, [0.5 * 0.775, 0.5, 0.25, 0.0]),
        ({"optim__schedule": "constant"}, [1.0, 1.0, 1.0, 1.0]),
    ],
)
def test_the_schedule_reaches_the_optimisers(
    lstlm: Cli, tmp_path: Path, settings: dict[str, object], expected: list[float]
) -> None:
    seen: list[float] = []
    step = Learner.step

    def watch(self: Learner, lr_scale: float, *, measured: bool = True) -> object:
        seen.append(lr_scale)
        return step(self, lr_scale, measured=measured)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Learner, "step", watch)
        lstlm.ok(tmp_path / "run", **settings)
    assert len(seen) == 40
    if settings["optim__schedule"] == "linear":
        assert seen[:3] == pytest.approx([(n + 1) / 20 * (1 - n / 40) for n in range(3)])
        assert seen[-1] == pytest.approx(1 / 40)
    else:
        assert set(seen) == {1.0}


class Clock:
    """A clock of training that goes a millisecond further whenever somebody looks at it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seconds = 0.0
        monkeypatch.setitem(Options.__init__.__kwdefaults__, "now", self)

    def __call__(self) -> float:
        self.seconds += 1e-3
        return self.seconds


def test_epochs_and_minutes_end_a_run(lstlm: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    by_epochs = json.loads(lstlm.ok(tmp_path / "a", "--json", train__max_steps="null", train__max_epochs=1).out)
    assert by_epochs["epoch"] == 1.0
    Clock(monkeypatch)
    quick = {"train__max_steps": "null", "train__max_minutes": 0.005, "train__eval_every": 10**6}
    by_time = json.loads(lstlm.ok(tmp_path / "b", "--json", **quick).out)
    assert 0.3 <= by_time["elapsed_s"] < 0.32 and by_time["step"] > 0


@pytest.mark.parametrize("aside_counts", [True, False])
def test_an_evaluation_uses_up_minutes_unless_steps_alone_count(
    lstlm: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, aside_counts: bool
) -> None:
    clock = Clock(monkeypatch)
    monkeypatch.setitem(Options.__init__.__kwdefaults__, "aside_counts", aside_counts)

    def slow(self: Validator, network: object, stop: object) -> dict[str, float]:
        clock.seconds += 100
        return {"eval/loss": 1.0}

    monkeypatch.setattr(Validator, "__call__", slow)
    settings = {"train__max_steps": "null", "train__max_minutes": 0.01, "train__eval_every": 10}
    steps = json.loads(lstlm.ok(tmp_path / "run", "--json", **settings).out)["step"]
    assert steps == 10 if aside_counts else steps > 20


def test_minutes_count_over_resumes(lstlm: Cli, tmp_path: Path) -> None:
    settings = {"train__max_steps": "null", "train__max_minutes": 0.005}
    first = json.loads(lstlm.ok(tmp_path / "run", "--json", **settings).out)
    again = json.loads(lstlm.ok(tmp_path / "run", "--json", "--resume", "auto", **settings).out)
    assert again["step"] == first["step"]  # the budget was spent


def test_patience_stops_early_and_best_stays(lstlm: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    losses = iter([5.0, 4.0, 4.5, 4.2, 1.0])
    monkeypatch.setattr(Validator, "__call__", lambda self, network, stop: {"eval/loss": next(losses)})
    settings = {"train__eval_every": 5, "train__patience": 2, "train__max_steps": 1000, "train__keep_checkpoints": 1}
    summary = json.loads(lstlm.ok(tmp_path / "run", "--json", **settings).out)
    assert (summary["step"], summary["best_step"], summary["best_loss"]) == (20, 10, 4.0)
    checkpoints = tmp_path / "run" / "checkpoints"
    assert os.readlink(checkpoints / "best") == "step-00000010"
    assert [p.name for p in step_folders(checkpoints)] == ["step-00000020", "step-00000010"]


def test_a_loss_that_is_not_finite_is_never_the_best(
    lstlm: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses = iter([math.nan, 4.0, math.inf, math.nan])
    monkeypatch.setattr(Validator, "__call__", lambda self, network, stop: {"eval/loss": next(losses)})
    outcome = lstlm.ok(tmp_path / "run", "--json", train__eval_every=10)
    summary = json.loads(outcome.out)
    assert (summary["best_step"], summary["best_loss"]) == (20, 4.0) and outcome.err.count(" | best\n") == 1
    assert os.readlink(tmp_path / "run" / "checkpoints" / "best") == "step-00000020"


def test_without_validation_text_there_is_no_best(lstlm: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Validator, "__call__", lambda self, network, stop: {"eval/loss": math.nan})
    outcome = lstlm.ok(tmp_path / "run")
    assert " | best" not in outcome.err and not (tmp_path / "run" / "checkpoints" / "best").is_symlink()
    saved = Progress.from_dict({"step": 3, "best_loss": math.nan})  # by an older version
    assert saved.note_evaluation(5.0) and saved.best_loss == 5.0


def poison(monkeypatch: pytest.MonkeyPatch, bad: set[int], *, only_above: float = 0.0) -> list[int]:
    """Make the loss of the steps in `bad` not finite while the learning-rate scale is above a limit."""
    calls: list[int] = []
    finite, step = Learner._check_finite, Learner.step
    scale = [1.0]

    def watched_step(self: Learner, lr_scale: float, *, measured: bool = True) -> object:
        scale[0] = lr_scale
        return step(self, lr_scale, measured=measured)

    def poisoned(self: Learner, loss: float, slope: float) -> None:
        number = self.examples.state()["batch"]
        calls.append(number)
        if number in bad and scale[0] > only_above:
            loss = loss * float("nan")
        finite(self, loss, slope)

    monkeypatch.setattr(Learner, "step", watched_step)
    monkeypatch.setattr(Learner, "_check_finite", poisoned)
    return calls


@pytest.mark.parametrize("more", [{}, LOW_RANK], ids=["softmax", "low rank"])
def test_a_bad_step_rolls_back_with_a_lower_rate(
    lstlm: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: dict[str, str]
) -> None:
    poison(monkeypatch, {17}, only_above=0.3)
    outcome = lstlm.ok(tmp_path / "run", "--json", **more)
    summary = json.loads(outcome.out)
    assert (summary["step"], summary["rollbacks"]) == (40, 2)
    assert "step 16: the loss of the batch is nan; back to step 10 with the rates at ×0.5 (1 of 3)" in outcome.err
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "loss/train" in line] == [10, 20, 30, 40]
    assert figures(tmp_path / "run", "optim/lr_scale")[20] == 0.25


class Killed(BaseException):
    """Ends a run like `kill -9` does, as far as checkpoints go: nothing is saved on the way out."""


def test_a_lower_rate_survives_a_kill_right_after_the_roll_back(
    lstlm: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as whole:
        poison(whole, {17}, only_above=0.3)
        lstlm.ok(tmp_path / "whole")
    with monkeypatch.context() as killed:
        calls = poison(killed, {17}, only_above=0.3)
        step = Learner.step

        def short(self: Learner, lr_scale: float, *, measured: bool = True) -> object:
            if calls.count(17) == 2:  # both roll-backs have been made; the next checkpoint is ten steps away
                raise Killed
            return step(self, lr_scale, measured=measured)

        killed.setattr(Learner, "step", short)
        with pytest.raises(Killed):
            lstlm(tmp_path / "run")
    summary = json.loads(lstlm.ok(tmp_path / "run", "--resume", "auto", "--json").out)
    assert summary["rollbacks"] == 2
    assert figures(tmp_path / "run", "optim/lr_scale") == {10: 1.0, 20: 0.25, 30: 0.25, 40: 0.25}
    assert fingerprint(tmp_path / "run", 40) == fingerprint(tmp_path / "whole", 40)


def test_it_gives_up_after_the_last_roll_back(lstlm: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    poison(monkeypatch, {17})
    outcome = lstlm(tmp_path / "run", train__max_rollbacks=2)
    assert outcome.code == 4
    line = outcome.err.strip().splitlines()[-1]
    assert "gave up after 2 roll-backs" in line and "lower optim.output_lr (1)" in line
    assert status(tmp_path / "run")["state"] == "failed" and "gave up" in status(tmp_path / "run")["error"]
    assert load_run(tmp_path / "run").step == 10


def test_nothing_is_updated_by_a_bad_step(lstlm: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that stops at a poisoned step 17 holds, to the bit, the state of an unpoisoned one after 16."""
    lstlm.ok(tmp_path / "clean", train__max_steps=16)
    states: list[dict[str, torch.Tensor]] = []

    def keep(self: object, error: NumericsError) -> None:
        learner = self.learner  # type: ignore[attr-defined]
        states.append({name: value.clone() for name, value in learner.network.state_dict().items()})
        raise error

    poison(monkeypatch, {17})
    monkeypatch.setattr("lstlm.training.loop.trainer.Trainer._roll_back", keep)
    assert lstlm(tmp_path / "bad").code == 4
    clean = load_run(tmp_path / "clean").network.state_dict()
    assert states and all(torch.equal(states[0][name], clean[name]) for name in clean)


def test_restore_is_tried_once_before_a_roll_back(lstlm: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    restored: list[int] = []
    calls = poison(monkeypatch, set())

    def restore(self: Learner) -> bool:
        restored.append(1)
        return True

    finite = Learner._check_finite
    monkeypatch.setattr(Learner, "restore_output", restore)
    monkeypatch.setattr(
        Learner,
        "_check_finite",
        lambda self, loss, grad: finite(
            self, loss * (float("nan") if calls.count(6) == 0 and len(calls) == 5 else 1), grad
        ),
    )
    outcome = lstlm.ok(tmp_path / "run", "--json")
    assert restored == [1] and json.loads(outcome.out)["rollbacks"] == 0
    assert "restored the factored state and went on" in outcome.err


def test_minutes_that_end_during_a_checkpoint_are_found_spent(
    lstlm: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock runs out while step 10 is being saved: the checkpoint is written once more, with the true time."""
    save, clock = CheckpointWriter.save, Clock(monkeypatch)

    def slow(self: CheckpointWriter, step: int, *rest: Any, **named: Any) -> None:
        if step == 10:
            clock.seconds += 100
        save(self, step, *rest, **named)

    monkeypatch.setattr(CheckpointWriter, "save", slow)
    settings = {"train__max_steps": "null", "train__max_minutes": 50 / 60, "train__eval_every": 10}
    first = json.loads(lstlm.ok(tmp_path / "run", "--json", **settings).out)
    again = json.loads(lstlm.ok(tmp_path / "run", "--json", "--resume", "auto", **settings).out)
    assert again["step"] == first["step"] == 10
