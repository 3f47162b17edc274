"""`lstlm selftest`: nothing is lost, and if something were, it would be seen."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lstlm.selftest.trials import TRIALS
from tests.helpers import PATIENCE_S

pytestmark = pytest.mark.slow

# What each kind of fault would find broken, were it so.
BROKEN = """
import sys
import lstlm.selftest.trials as trials
from lstlm.cli import main
kind = sys.argv.pop()
trial, _ = trials.TRIALS[kind]
trials.TRIALS.clear()
trials.TRIALS[kind] = trial, 100
if kind == "checkpoint damaged":
    trials.open_checkpoint = lambda folder: None
elif kind == "corpus damaged":
    trials.Corpus.open = lambda folder: None
else:
    import lstlm.training.loop.trainer as trainer
    load = trainer.Trainer.load
    def forget(self, checkpoint):
        load(self, checkpoint)
        self.learner.generator.manual_seed(5)
        next(self.learner.network.hidden.parameters()).data += 1e-9
    trainer.Trainer.load = forget
main()
"""


def run(*command: str) -> tuple[int, dict[str, dict[str, Any]]]:
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.stdout, done.stderr
    return done.returncode, {one["kind"]: one for one in json.loads(done.stdout)["outcomes"]}


def test_nothing_is_lost(tmp_path: Path) -> None:
    code, outcomes = run("-m", "lstlm", "selftest", "--faults", "40", "--json", "--folder", str(tmp_path / "here"))
    assert {kind: one["failures"] for kind, one in outcomes.items()} == {kind: [] for kind in TRIALS}
    assert code == 0 and sum(one["faults"] for one in outcomes.values()) >= 40


@pytest.mark.parametrize("kind", ["checkpoint damaged", "corpus damaged", "process killed", "rank killed"])
def test_a_loss_would_be_seen(tmp_path: Path, kind: str) -> None:
    arguments = ["selftest", "--faults", "6", "--json", "--folder", str(tmp_path / "here"), kind]
    code, outcomes = run("-c", BROKEN, *arguments)
    assert code == 1 and outcomes[kind]["failures"]


def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    done = subprocess.run(
        [sys.executable, "-m", "lstlm", "selftest", "--folder", str(tmp_path)], capture_output=True, text=True
    )
    assert done.returncode == 2 and "not empty; name another" in done.stderr
