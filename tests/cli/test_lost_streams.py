"""Training outlives its console: stderr or stdout closed, full, or without a reader."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lstlm.training.loop.learner import Learner
from tests.helpers import PATIENCE_S
from tests.training.harness import arguments, make_corpus, status
from tests.warm import close, redirect, run_lstlm


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_corpus(tmp_path_factory.mktemp("corpus") / "tiny")


def assert_survived(run: Path, err: str) -> None:
    assert status(run)["state"] == "finished" and status(run)["step"] == 40
    assert "Traceback" not in err and "Exception" not in err


@pytest.mark.parametrize(("redirection", "code"), [("2>&1 | head -1", 0), (">&- 2>&-", 1)])
def test_training_goes_on(tmp_path: Path, corpus: Path, redirection: str, code: int) -> None:
    command = [sys.executable, "-m", "lstlm", *arguments(corpus, tmp_path / "run")]
    script = f'"$@" {redirection}'
    done = subprocess.run(["bash", "-c", script, "sh", *command], capture_output=True, text=True, timeout=PATIENCE_S)
    assert_survived(tmp_path / "run", done.stderr)
    assert (done.returncode, done.stderr) == (code, "")


@pytest.mark.parametrize(
    ("lose", "code"),
    [
        (partial(close, 2), 0),
        (partial(redirect, 2, "/dev/full"), 0),
        (partial(close, 1), 1),
        (partial(redirect, 1, "/dev/full"), 1),
    ],
    ids=["2>&-", "2>/dev/full", ">&-", ">/dev/full"],
)
def test_one_stream_is_lost(tmp_path: Path, corpus: Path, lose: Callable[[], None], code: int) -> None:
    """A console falls silent; results that cannot be written are an error, at the end, in one line."""
    done = run_lstlm(arguments(corpus, tmp_path / "run"), tmp_path, lose)
    assert_survived(tmp_path / "run", done.err)
    assert (done.code, done.err.count("lstlm: error: the standard output cannot be written: ")) == (code, code)
    assert done.err.count("error") == code


CUT = """
import os, sys
import numpy as np
import lstlm.environment
from lstlm.cli import main
path = sys.argv.pop()
def describe():
    np.arange(1 << 16).tofile(path)
    mapped = np.memmap(path, dtype=np.int64, mode="r")
    os.truncate(path, 4096)
    return {"sum": int(mapped.sum())}
lstlm.environment.describe = describe
main()
"""


def test_a_mapped_file_that_is_cut_short_is_one_line(tmp_path: Path) -> None:
    command = [sys.executable, "-c", CUT, "env", str(tmp_path / "ids")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 3, (done.returncode, done.stderr)
    assert done.stderr.startswith("lstlm: error: a file that is being read has been cut short")
    assert done.stderr.count("\n") == 1


def hang_up(answer: signal.Handlers) -> None:
    """Let this process be hung up on after steps 13 and 20; SIG_IGN is how nohup starts it."""
    signal.signal(signal.SIGHUP, answer)
    step = Learner.step

    def then_hang_up(self: Learner, *some: Any, **more: Any) -> Any:
        result = step(self, *some, **more)
        if self.examples.state()["batch"] in (13, 20):
            os.kill(os.getpid(), signal.SIGHUP)
        return result

    Learner.step = then_hang_up  # type: ignore[method-assign]


def test_a_hangup_is_heeded_and_nohup_too(tmp_path: Path, corpus: Path) -> None:
    run = tmp_path / "run"
    for answer, code, step in ((signal.SIG_DFL, 128 + signal.SIGHUP, 13), (signal.SIG_IGN, 0, 40)):
        done = run_lstlm(arguments(corpus, run, "--resume", "auto"), tmp_path, partial(hang_up, answer))
        assert done.code == code, done.err
        assert status(run)["step"] == step
        assert os.readlink(run / "checkpoints" / "last") == f"step-{step:08d}"


def lose_the_terminal() -> None:
    redirect(1, "/dev/full")
    hang_up(signal.SIG_DFL)


def test_a_hangup_is_told_where_the_terminal_has_gone_too(tmp_path: Path, corpus: Path) -> None:
    done = run_lstlm(arguments(corpus, tmp_path / "run"), tmp_path, lose_the_terminal)
    assert done.code == 128 + signal.SIGHUP and "error" not in done.err
    assert status(tmp_path / "run")["step"] == 13
