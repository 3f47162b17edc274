"""`lstlm train`: flags, refusals, the dry run, and every shipped configuration."""

import json
import os
from pathlib import Path

import pytest
import torch

from lstlm.config import load_config
from lstlm.training.run.saved import load_run
from tests.training.harness import Cli, make_corpus

CONFIGS = sorted((Path(__file__).parents[2] / "configs").glob("*.yaml"))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_corpus(tmp_path_factory.mktemp("corpus") / "tiny")


@pytest.fixture
def lstlm(corpus: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    return Cli(corpus, capsys)


def test_there_are_configurations() -> None:
    assert {path.stem for path in CONFIGS} >= {"tiny", "demo"}


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_configuration_trains(lstlm: Cli, corpus: Path, tmp_path: Path, path: Path) -> None:
    """Three steps with the configuration's own kinds and losses, at sizes and a rate that fit a corpus of 200 words."""
    config = load_config(path)
    rate = config.optim.output_lr
    sizes = {
        "data.dir": corpus,
        "model.embedding": min(config.model.embedding, 8),
        "model.hidden": str([min(size, 8) for size in config.model.hidden]),
        "output.candidates": 64,
        "output.classes": "null",
        "optim.output_lr": "null"
        if rate is None
        else min(rate, 4.0),  # the largest stable rate falls with the vocabulary
        "optim.warmup_steps": 0,
        "train.batch_size": min(config.train.batch_size, 16),
        "train.max_steps": 3,
        "train.eval_every": 3,
        "train.eval_examples": 64,
    }
    sets = [part for key, value in sizes.items() for part in ("--set", f"{key}={value}")]
    outcome = lstlm.run("train", "--config", str(path), "--run", str(tmp_path / "run"), "--json", *sets)
    assert outcome.code == 0, outcome.err
    summary = json.loads(outcome.out)
    assert (summary["state"], summary["step"]) == ("finished", 3)
    assert summary["evaluation"]["eval/loss"] is not None


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"WORLD_SIZE": "abc"}, "WORLD_SIZE=abc in the environment is not a number of ranks; start with torchrun"),
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE=0 in the environment is not a number of ranks; start with torchrun"),
        ({"WORLD_SIZE": "2"}, "WORLD_SIZE=2 in the environment, but no RANK; start with torchrun"),
        (
            {"WORLD_SIZE": "2", "RANK": "x", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"},
            "RANK=x in the environment is not a whole number; start with torchrun",
        ),
    ],
)
def test_half_of_torchruns_environment_is_refused_in_one_line(
    lstlm: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], message: str
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    outcome = lstlm(tmp_path / "run")
    assert outcome.code == 2 and message in outcome.err and outcome.err.count("\n") == 1


def test_more_threads_than_openmp_can_make_are_refused(lstlm: Cli, tmp_path: Path) -> None:
    outcome = lstlm(tmp_path / "run", "--threads", "100000")
    assert outcome.code == 2 and "100000 is not in the range 1<=x<=1024" in outcome.err


def test_the_summary_is_one_line_on_stdout(lstlm: Cli, tmp_path: Path) -> None:
    outcome = lstlm.ok(tmp_path / "run")
    assert outcome.out.count("\n") == 1
    assert outcome.out.startswith("finished step=40 words=640 elapsed_s=") and f"run={tmp_path / 'run'}" in outcome.out


def test_quiet_leaves_stderr_empty(lstlm: Cli, tmp_path: Path) -> None:
    assert lstlm.ok(tmp_path / "run", "--quiet").err == ""


def test_the_default_folder_carries_config_and_time(
    lstlm: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = lstlm.without_run("--json", train__max_steps=5)
    run = Path(json.loads(outcome.out)["run"])
    assert run.parent == Path("runs") and run.name.startswith("tiny-20") and (run / "config.yaml").is_file()
    again = json.loads(lstlm.without_run("--json", "--resume", "auto", train__max_steps=8).out)
    assert (Path(again["run"]), again["step"]) == (run, 8)


@pytest.mark.parametrize("below", ["x", "x/y"])
def test_a_run_inside_a_file_is_refused(lstlm: Cli, tmp_path: Path, below: str) -> None:
    (tmp_path / "text.txt").write_text("words\n")
    outcome = lstlm(tmp_path / "text.txt" / below)
    assert outcome.code == 2 and "lies inside a file; choose another name" in outcome.err


def test_resume_of_nothing_says_that_there_is_no_run(lstlm: Cli, tmp_path: Path) -> None:
    nothing = str(tmp_path / "nothere")
    for words in (["--resume", nothing], ["--run", nothing, "--resume", "auto"]):
        outcome = lstlm.run("train", *words)
        assert outcome.code == 2 and f"no run at {nothing} (no config.yaml there)" in outcome.err
        assert "YAML" not in outcome.err and not (tmp_path / "nothere").exists()


def test_resume_needs_no_config(lstlm: Cli, tmp_path: Path) -> None:
    run = tmp_path / "run"
    lstlm.ok(run, train__max_steps=10)
    sets = ["--set", "train.max_steps=12", "--threads", "1"]
    outcome = lstlm.run("train", "--resume", str(run / "checkpoints" / "last"), "--json", *sets)
    assert outcome.code == 0, outcome.err
    assert json.loads(outcome.out)["step"] == 12 and load_run(run).step == 12


def test_dry_run_writes_nothing_and_estimates(lstlm: Cli, tmp_path: Path) -> None:
    before = sorted(os.listdir(tmp_path))
    shown = lstlm.ok(tmp_path / "run", "--dry-run").out
    for word in ("batch_size: 16", "parameters", "memory", "disk", "steps       40 (", "words/s"):
        assert word in shown
    document = json.loads(lstlm.ok(tmp_path / "run", "--dry-run", "--json").out)
    assert sorted(os.listdir(tmp_path)) == before
    vocabulary = document["vocabulary"]
    hidden = (4 * 8 + 1) * 12
    parts = {"embedding": vocabulary * 8, "hidden": hidden, "output": vocabulary * 13}
    assert document["parameters"] == {**parts, "total": sum(parts.values())}
    assert document["steps"] == 40 and document["words_per_s"] > 0 and document["config"]["train"]["seed"] == 1
    lstlm.ok(tmp_path / "run")
    saved = sum(path.stat().st_size for path in (tmp_path / "run" / "checkpoints" / "last").glob("*.pt"))
    assert document["checkpoint_bytes"] <= saved <= document["checkpoint_bytes"] + 30_000


@pytest.mark.parametrize(
    ("extra", "code", "words"),
    [
        (["--device", "abacus"], 2, "--device abacus: not usable here"),
        (["--device", "cuda:7"], 2, "--device cuda:7: not usable here"),
        (["--threads", "0"], 2, "--threads"),
        (["--set", "train.batchsize=3"], 2, "batch_size"),
        (["--set", "data.dir=/nowhere"], 3, "/nowhere"),
    ],
)
def test_mistakes_are_named_in_one_line(lstlm: Cli, tmp_path: Path, extra: list[str], code: int, words: str) -> None:
    if extra[1].startswith("cuda") and torch.cuda.device_count() > 7:
        pytest.skip("this machine has eight GPUs")
    outcome = lstlm(tmp_path / "run", *extra)
    assert outcome.code == code and words in outcome.err and "Traceback" not in outcome.err
    assert "run folder" not in outcome.err and not (tmp_path / "run").exists()


def test_a_file_is_no_run_folder(lstlm: Cli, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    outcome = lstlm(tmp_path / "file")
    assert outcome.code == 2 and "not a folder" in outcome.err


def test_no_config_is_a_usage_error(lstlm: Cli) -> None:
    outcome = lstlm.run("train")
    assert outcome.code == 2 and "--config" in outcome.err


def test_a_loaded_run_needs_no_corpus(lstlm: Cli, tmp_path: Path) -> None:
    lstlm.ok(tmp_path / "run")
    loaded = load_run(tmp_path / "run")
    assert loaded.step == 40 and not loaded.network.training
    assert len(loaded.vocabulary) == len(loaded.network.input_vectors())
    older = load_run(tmp_path / "run" / "checkpoints" / "step-00000020")
    assert older.step == 20 and not torch.equal(older.network.input_vectors(), loaded.network.input_vectors())
