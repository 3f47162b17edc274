"""`lstlm selftest`: nothing is lost, and if something were, it would be seen."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

import lstlm.selftest.trials as trials
from lstlm.cli import cli
from lstlm.streams import Forgiving
from lstlm.training.loop.trainer import Trainer
from tests.warm import Done, run_lstlm

pytestmark = pytest.mark.slow


def by_kind(done: Done) -> dict[str, dict[str, Any]]:
    assert done.out, done.err
    return {one["kind"]: one for one in json.loads(done.out)["outcomes"]}


def test_nothing_is_lost(tmp_path: Path) -> None:
    done = run_lstlm(["selftest", "--faults", 25, "--json", "--folder", tmp_path / "here"], tmp_path)
    outcomes = by_kind(done)
    assert {kind: one["failures"] for kind, one in outcomes.items()} == {kind: [] for kind in trials.TRIALS}
    assert done.code == 0 and sum(one["faults"] for one in outcomes.values()) >= 25


LOSSES = dict.fromkeys(trials.TRIALS, 1) | {"process killed": 7, "signal": 3, "disk full": 3, "rank killed": 2}
"""Kind → as many faults as it takes to come upon what is lost."""


def lose() -> None:
    """Break what they must find broken: seals that nobody looks at, a console that fails, a resume that forgets."""
    chosen = {kind: (trials.TRIALS[kind][0], share) for kind, share in LOSSES.items()}
    trials.TRIALS.clear()
    trials.TRIALS.update(chosen)
    trials.open_checkpoint = lambda folder: None  # type: ignore[assignment, return-value]
    trials.Corpus = SimpleNamespace(open=lambda folder: None)  # type: ignore[assignment, misc]
    Forgiving._try = lambda self, act: act(self._stream)  # type: ignore[method-assign]
    load = Trainer.load

    def forget(self: Trainer, checkpoint: Any) -> None:
        load(self, checkpoint)
        self.learner.generator.manual_seed(5)
        next(self.learner.network.hidden.parameters()).data += 1e-9

    Trainer.load = forget  # type: ignore[method-assign]


def test_a_loss_would_be_seen(tmp_path: Path) -> None:
    done = run_lstlm(["selftest", "--faults", 100, "--json", "--folder", tmp_path / "here"], tmp_path, lose)
    outcomes = by_kind(done)
    assert done.code == 1 and outcomes.keys() == LOSSES.keys()
    assert all(one["failures"] for one in outcomes.values()), outcomes


def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    result = CliRunner().invoke(cli, ["selftest", "--folder", str(tmp_path)])
    assert result.exit_code == 2 and "not empty; name another" in result.stderr
