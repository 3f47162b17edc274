"""What does not need Linux works without it: here, with all that other systems lack taken away."""

import subprocess
import sys
from pathlib import Path

from tests.helpers import tiny_text

PROGRAM = """
import os, select, signal, sys
import torch, torch.utils.tensorboard  # they may know Linux
for name in ("fcntl", "resource"):
    sys.modules[name] = None
del os.sched_getaffinity, select.poll, signal.SIGHUP
from lstlm.cli import cli
from lstlm.cli.outcome import run_and_report
small = [part for key in ("train.max_steps=3", "model.embedding=4", "train.simlex=false") for part in ("--set", key)]
train = ["train", "--config", "tiny", "--set", "data.dir=corpus", "--run", "run", "--quiet", *small]
for command in (
    ["prepare", "text.txt", "--out", "corpus"],
    [*train, "--dry-run"],
    train,
    [*train, "--resume", "auto", "--set", "train.max_steps=4"],
    ["eval", "perplexity", "run"],
    ["nn", "run", "w1"],
    ["export", "run", "--format", "word2vec", "--out", "vectors.txt"],
    ["env"],
):
    assert run_and_report(cli, command) == 0, command
"""


def test_without_what_only_unix_has(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(tiny_text())
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
