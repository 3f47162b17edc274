"""Shared by the tests of commands that use a trained model: the command line in this process, and small runs."""

import io
import json
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lstlm.cli import cli
from lstlm.cli.outcome import run_and_report

TEXT = """old new smart intelligent hard difficult happy cheerful fast rapid short long stupid dumb weird strange
wide narrow wife husband book text go come take possess the a of and"""


class Outcome(SimpleNamespace):
    """How a command ended: code, out, err."""

    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def lstlm(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Outcome]]:
    """Run `lstlm …` as the shell would: lstlm("nn", path, "word", stdin=b"…")."""
    handler = signal.getsignal(signal.SIGTERM)

    def call(*arguments: object, stdin: bytes = b"") -> Outcome:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        capsys.readouterr()
        code = run_and_report(cli, [str(argument) for argument in arguments])
        return Outcome(code=code, **capsys.readouterr()._asdict())

    yield call
    signal.signal(signal.SIGTERM, handler)


def _train(folder: Path, name: str, *settings: str) -> Path:
    """Prepare a small corpus in `folder` once, and train a run on it for a few steps."""
    text, corpus, run = folder / "text.txt", folder / "corpus", folder / name
    if not corpus.exists():
        generator = np.random.default_rng(0)
        lines = [" ".join(generator.choice(TEXT.split(), size=generator.integers(3, 9))) for _ in range(400)]
        text.write_text("\n".join(lines) + "\n")
        command = ["prepare", "--source", str(text), "--out", str(corpus), "--valid-fraction", "0.1", "--workers", "1"]
        assert run_and_report(cli, command) == 0
    config = folder / f"{name}.yaml"
    config.write_text("train: {max_steps: 20, batch_size: 32, eval_every: 20, checkpoint_every: 20, simlex: false}\n")
    sizes = ("model.embedding=6", "model.hidden=[6]", f"data.dir={corpus}")
    sets = [part for setting in (*sizes, *settings) for part in ("--set", setting)]
    command = ["train", "--config", str(config), "--run", str(run), "--threads", "1", "--quiet", *sets]
    assert run_and_report(cli, command) == 0
    return run


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="session")
def run_z(runs: Path) -> Path:
    """A run without probabilities: the Z-loss."""
    return _train(runs, "z", "output.loss=z")


@pytest.fixture(scope="session")
def run_spherical(runs: Path) -> Path:
    """A run with probabilities: the spherical softmax."""
    return _train(runs, "spherical", "output.loss=spherical")


@pytest.fixture(scope="session")
def run_window(runs: Path) -> Path:
    """A run that fills a gap, by a full softmax, with input and output vectors of two lengths."""
    return _train(runs, "window", "output.kind=softmax", "data.context_kind=window", "model.hidden=[5]")
