"""Training outlives its console: stderr or stdout closed, full, or without a reader."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import PATIENCE_S
from tests.training.harness import arguments, make_corpus, status


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_corpus(tmp_path_factory.mktemp("corpus") / "tiny")


@pytest.mark.parametrize(
    ("redirection", "code", "lines"),
    [
        ("2>&1 | head -1", 0, None),
        ("2>&-", 0, 0),
        ("2>/dev/full", 0, 0),
        (">&-", 1, 1),
        (">/dev/full", 1, 1),
        (">&- 2>&-", 1, 0),
    ],
)
def test_training_goes_on(tmp_path: Path, corpus: Path, redirection: str, code: int, lines: int | None) -> None:
    """`lines` is the number of errors on stderr."""
    command = [sys.executable, "-m", "lstlm", *arguments(corpus, tmp_path / "run")]
    script = f'"$@" {redirection}'
    done = subprocess.run(["bash", "-c", script, "sh", *command], capture_output=True, text=True, timeout=PATIENCE_S)
    assert status(tmp_path / "run")["state"] == "finished" and status(tmp_path / "run")["step"] == 40
    assert "Traceback" not in done.stderr and "Exception" not in done.stderr
    assert done.returncode == code
    if lines is not None:
        assert done.stderr.count("lstlm: error:") == lines


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


def test_a_hangup_is_heeded_and_nohup_too(tmp_path: Path, corpus: Path) -> None:
    command = [sys.executable, "-m", "lstlm", *arguments(corpus, tmp_path / "run")]
    code = "import os, signal, sys\nfrom lstlm.training.loop.learner import Learner\nstep = Learner.step\n"
    code += "def hang_up(self, *a, **k):\n    result = step(self, *a, **k)\n"
    code += (
        "    if self.examples.state()['batch'] in (13, 20): os.kill(os.getpid(), signal.SIGHUP)\n    return result\n"
    )
    code += "Learner.step = hang_up\nfrom lstlm.cli import main\nmain()\n"
    for ignored, expected, step in ((False, 128 + signal.SIGHUP, 13), (True, 0, 40)):
        # the tests themselves may run under nohup: what they ignore, their children ignore too
        heard = "" if ignored else "import signal\nsignal.signal(signal.SIGHUP, signal.SIG_DFL)\n"
        run = [sys.executable, "-c", heard + code, *command[3:]]
        if ignored:
            run = ["nohup", *run, "--resume", "auto"]
        done = subprocess.run(run, capture_output=True, text=True, timeout=PATIENCE_S, stdin=subprocess.DEVNULL)
        assert done.returncode == expected, done.stderr
        assert status(tmp_path / "run")["step"] == step
        assert os.readlink(tmp_path / "run" / "checkpoints" / "last") == f"step-{step:08d}"
