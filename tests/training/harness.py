"""Shared by the trainer's tests: a tiny corpus, the command line in this process, and what makes two runs equal."""

import json
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from lstlm.cli import cli
from lstlm.cli.outcome import run_and_report
from tests.helpers import write_tiny_corpus

SMALL = {
    "model.embedding": "8",
    "model.hidden": "[12]",
    "output.kind": "softmax",
    "train.batch_size": "16",
    "train.max_epochs": "null",
    "train.max_steps": "40",
    "train.log_every": "10",
    "train.eval_every": "20",
    "train.eval_examples": "200",
    "train.checkpoint_every": "10",
    "train.simlex": "false",
}
# m below d, so that the whole step is compiled code's where there is any; with repairs
LOW_RANK = {
    "output__kind": "factored",
    "output__loss": "squared",
    "output__stabilise_range": "[0.97, 1.03]",
    "train__batch_size": "8",
    "optim__hidden": "adagrad",
}
CLOCKS = ("elapsed", "aside")  # the counters that hold seconds


@dataclass(frozen=True)
class Outcome:
    """How a command ended: exit code, stdout, stderr."""

    code: int
    out: str
    err: str


def make_corpus(folder: Path) -> Path:
    """Prepare the tiny corpus in `folder` and write an empty configuration beside it."""
    write_tiny_corpus(folder)
    folder.with_suffix(".yaml").write_text("{}\n")
    return folder


def arguments(corpus: Path, run: Path | str, *extra: str, **settings: Any) -> list[str]:
    """Return `train …` with the small settings; keywords change them (`__` stands for the dot)."""
    chosen = {
        **SMALL,
        "data.dir": str(corpus),
        **{key.replace("__", "."): str(value) for key, value in settings.items()},
    }
    sets = [part for key, value in chosen.items() for part in ("--set", f"{key}={value}")]
    config = str(corpus.with_suffix(".yaml"))
    return ["train", "--config", config, "--run", str(run), "--threads", "1", *sets, *extra]


class Cli:
    """Runs lstlm in this process, as `lstlm` itself would, and restores the signal handler it installs."""

    def __init__(self, corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.corpus, self._capsys = corpus, capsys

    def __call__(self, run: Path | str, *extra: str, **settings: Any) -> Outcome:
        return self.run(*arguments(self.corpus, run, *extra, **settings))

    def run(self, *words: str) -> Outcome:
        """Run a command line as it stands."""
        self._capsys.readouterr()
        previous = signal.getsignal(signal.SIGTERM)
        try:
            code = run_and_report(cli, list(words))
        finally:
            signal.signal(signal.SIGTERM, previous)
        captured = self._capsys.readouterr()
        return Outcome(code, captured.out, captured.err)

    def without_run(self, *extra: str, **settings: Any) -> Outcome:
        """Run without --run, and insist on success."""
        words = arguments(self.corpus, "?", *extra, **settings)
        at = words.index("--run")
        outcome = self.run(*words[:at], *words[at + 2 :])
        assert outcome.code == 0, outcome.err
        return outcome

    def ok(self, run: Path | str, *extra: str, **settings: Any) -> Outcome:
        """Run and insist on success."""
        outcome = self(run, *extra, **settings)
        assert outcome.code == 0, outcome.err
        return outcome


def fingerprint(run: Path, step: int) -> dict[str, Any]:
    """Return what must be equal between two runs at a step: hashes of all tensors, counters, data position."""
    folder = run / "checkpoints" / f"step-{step:08d}"
    files = json.loads((folder / "manifest.json").read_text())["files"]
    counters = json.loads((folder / "counters.json").read_text())
    for name in CLOCKS:
        del counters["progress"][name]
    return {"network": files["network.pt"], "training": files["training.pt"], **counters}


def figures(run: Path, tag: str) -> dict[int, float]:
    """Return step → value of a tag in metrics.jsonl."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return {line["step"]: line[tag] for line in lines if tag in line}


def status(run: Path) -> dict[str, Any]:
    """Return status.json."""
    value: dict[str, Any] = json.loads((run / "status.json").read_text())
    return value
