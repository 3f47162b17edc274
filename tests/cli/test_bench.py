"""``lstlm bench`` as it is called: the JSON contract, tables on stdout, the rest on stderr. Times are not judged."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from lstlm.cli import cli
from tests.helpers import write_tiny_corpus

SMALL = ["--budget", "0.02", "--steps", "3"]
CONTRACT = {"method", "loss", "D", "d", "m", "threads", "dtype", "step_ms", "step_ms_p10", "step_ms_p90", "steps"}
CONTRACT |= {"stabilise", "stabilise_ms", "gemm_floor_ms"}


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["bench", *map(str, arguments)])


def records(result: Result) -> list[dict[str, Any]]:
    assert result.exit_code == 0, result.stderr
    document = json.loads(result.stdout)
    assert document["environment"]["threads"] >= 1
    found: list[dict[str, Any]] = document["records"]
    return found


def test_output_prints_one_json_document_with_every_method() -> None:
    sizes = ["--vocab-sizes", "64,3e2", "--hidden", 12, "--batch-size", 5, "--stabilise-every", 4]
    result = run("output", *sizes, *SMALL, "--json", "-")
    found = records(result)
    assert all(set(record) >= CONTRACT for record in found)
    assert {(r["D"], r["d"], r["m"]) for r in found} == {(64, 12, 5), (300, 12, 5)}
    assert {r["method"] for r in found} == {
        "factored", "naive", "naive-blocked", "softmax", "hierarchical", "adaptive", "sampled", "shortlist", "log_prob",
    }  # fmt: skip
    factored = {(r["loss"], r["stabilise"]) for r in found if r["method"] == "factored"}
    skipped = {(r["loss"], r["stabilise"]) for r in json.loads(result.stdout)["skipped"]}
    assert len(factored | skipped) == 4 * 2 + 2 * 3  # sweeping stabilisers for two losses
    for record in found:
        assert 0 < record["step_ms_p10"] <= record["step_ms"] <= record["step_ms_p90"] <= record["step_ms_max"]
        assert record["verified_error"] < 1e-8 and record["gemm_floor_ms"] > 0 and record["steps"] >= 3
    assert "left" in result.stderr and "verified against plain autograd" in result.stderr


def test_output_writes_records_table_and_figures(tmp_path: Path) -> None:
    json_file, picture = tmp_path / "r.json", tmp_path / "r.svg"
    sizes = ["--vocab-sizes", "64,200", "--hidden", 12, "--batch-size", 30]
    options = ["--methods", "factored,naive", "--losses", "z", "--stabilise", "lazy", "--dtype", "float64"]
    result = run("output", *sizes, *options, *SMALL, "--threads", 1, "--json", json_file, "--plot", picture)
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0].startswith("| method ") and len(lines) == 2 + 4
    assert {r["dtype"] for r in json.loads(json_file.read_text())["records"]} == {"float64"}
    assert picture.is_file() and (tmp_path / "r-speedup.svg").is_file()
    again = run("plot", json_file, "--plot", tmp_path / "again.png")
    assert run("plot", json_file, "--extrapolate", "naive=factored").exit_code == 2
    assert run("plot", json_file, "--scores", "simlex").exit_code == 2
    assert again.stdout == result.stdout and (tmp_path / "again-speedup.png").is_file()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--methods", "factord"], "--methods 'factord': unknown here; did you mean 'factored'?"),
        (["--losses", "hinge"], "--losses 'hinge': unknown here; known: z, squared, spherical, taylor"),
        (["--methods", ","], "names nothing"),
        (["--vocab-sizes", "1000,x"], "'x' is not a number"),
        (["--vocab-sizes", "3"], "3 is not a whole number from 16 to 2,147,483,648"),
        (["--vocab-sizes", "1e11"], "1e11 is not a whole number from 16 to 2,147,483,648"),
        (["--threads", "100000"], "100000 is not in the range 1<=x<=1024"),
        (["--quick", "--plot", "figure.bmp"], "the ending says the format"),
        (["--hidden", "1"], "1 is not in the range"),
    ],
)
def test_bad_input_is_one_line_before_any_work(arguments: list[str], message: str) -> None:
    result = run("output", *arguments)
    assert result.exit_code == 2 and result.stdout == ""
    assert message in result.stderr and len(result.stderr.splitlines()) == 1


def test_model_times_whole_steps_and_their_phases(tmp_path: Path) -> None:
    sizes = ["--vocab-sizes", 300, "--hidden", 12, "--batch-size", 8]
    methods = ["--methods", "naive,naive-blocked,hierarchical,factored"]
    found = records(run("model", *sizes, *methods, *SMALL, "--json", "-", "--plot", tmp_path / "model.png"))
    assert [r["method"] for r in found] == ["factored", "naive", "naive-blocked", "hierarchical"]
    for record in found:
        assert CONTRACT | {"words_per_s", "output_ms", "hidden_ms", "hidden_floor_ms", "phases_ms"} <= set(record)
        assert {"data", "hidden_forward", "output", "backward", "output_update"} <= set(record["phases_ms"])
        assert record["d"] == 13 and record["speedup_output"] > 0
    assert "paper_cpu_output" not in found[0]  # which is of another vocabulary
    assert (tmp_path / "model.png").is_file()


def test_data_rates_have_others_beside_them(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("the cat sat on the mat\n" * 500, encoding="utf-8")
    found = records(run("data", "--source", text, "--quick", "--budget", 0.02, "--threads", 1, "--json", "-"))
    assert {(r["what"], r["method"]) for r in found} >= {("prepare", "lstlm"), ("count", "collections.Counter")}
    assert {r["kind"] for r in found if r["what"] == "minibatches"} == {"previous", "window", "bag"}
    assert all(r["words"] == 3000 for r in found if r["what"] == "prepare")
    assert "| minibatches |" in run("data", "--quick", "--words", 1000, "--budget", 0.02, "--threads", 1).stdout


def test_data_refuses_packed_text(tmp_path: Path) -> None:
    (tmp_path / "text.gz").write_bytes(b"")
    result = run("data", "--source", tmp_path / "text.gz")
    assert result.exit_code == 2 and "unpack it" in result.stderr


def test_learning_scores_configurations_and_gensim_over_seeds(tmp_path: Path) -> None:
    pytest.importorskip("gensim")
    write_tiny_corpus(tmp_path / "corpus")
    config = tmp_path / "small.yaml"
    config.write_text("model: {embedding: 8, hidden: [8]}\noutput: {loss: taylor}\ntrain: {eval_examples: 50}\n")
    pairs = tmp_path / "pairs.txt"
    pairs.write_text("w1 w2 3.0\nw3 w4 5.0\nw5 w6 1.0\nw1 w5 2.0\n")
    files = ["--data", tmp_path / "corpus", "--config", config, "--simlex", pairs, "--wordsim", pairs]
    peers = ["--methods", "gensim-cbow", "--epochs", 2, "--dimension", 8]
    limits = ["--budget", 0.3, "--seeds", 2, "--points", 2, "--threads", 1, "--cpu-time"]
    found = records(run("learning", *files, *peers, *limits, "--json", "-", "--plot", tmp_path / "l.png"))
    ends = [r for r in found if r["final"]]
    assert sorted((r["label"], r["seed"]) for r in ends) == [
        ("gensim-cbow", 1), ("gensim-cbow", 2), ("small", 1), ("small", 2),
    ]  # fmt: skip
    own = [r for r in ends if r["label"] == "small"]
    assert all(r["perplexity"] > 1 and 0 <= r["top10"] <= 1 and r["train_s"] > 0 for r in own)
    assert all({"simlex", "simlex_output", "wordsim"} <= set(r) and r["clock"] == "cpu" for r in own)
    assert all(r["simlex"] is not None and r["epochs"] == 2 for r in ends if r["label"] == "gensim-cbow")


def test_learning_for_equal_steps_with_other_seeds(tmp_path: Path) -> None:
    write_tiny_corpus(tmp_path / "corpus")
    settings = "model: {embedding: 8, hidden: [8]}\ntrain: {eval_examples: 50, batch_size: 16}\n"
    for name, output in (("factored", "{loss: taylor}"), ("softmax", "{kind: softmax}")):
        (tmp_path / f"{name}.yaml").write_text(f"output: {output}\n{settings}")
    files = [
        "--data",
        tmp_path / "corpus",
        "--config",
        tmp_path / "factored.yaml",
        "--config",
        tmp_path / "softmax.yaml",
    ]
    limits = ["--steps", 24, "--points", 3, "--seeds", 2, "--first-seed", 7, "--threads", 1]
    found = records(run("learning", *files, *limits, "--json", "-"))
    assert {(r["label"], r["seed"]) for r in found} == {(n, s) for n in ("factored", "softmax") for s in (7, 8)}
    assert [r["step"] for r in found if r["label"] == "softmax" and r["seed"] == 7] == [8, 16, 24]
    assert {r["step"] for r in found if r["final"]} == {24}
    assert run("learning", *files, *limits, "--json", tmp_path / "l.json").exit_code == 0
    shown = run("plot", tmp_path / "l.json", "--extrapolate", "softmax=factored")
    assert shown.exit_code == 0 and "softmax (extrapolated)" in shown.stdout
    wrong = run("plot", tmp_path / "l.json", "--extrapolate", "softmax")
    assert wrong.exit_code == 2 and "--extrapolate softmax=: needs steps of both" in wrong.stderr
    some = run("plot", tmp_path / "l.json", "--scores", "top10")
    assert "perplexity" in shown.stdout and "top-10" in some.stdout and "perplexity" not in some.stdout
    assert "did you mean 'simlex'?" in run("plot", tmp_path / "l.json", "--scores", "simlx").stderr


def test_learning_goes_on_where_it_was_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupted in the first of two runs; the same command ends with the records of a run that never was."""
    from lstlm.training.loop.learner import Learner

    write_tiny_corpus(tmp_path / "corpus")
    for name in ("one", "two"):
        settings = "{embedding: 8, hidden: [8]}\ntrain: {eval_examples: 50, batch_size: 16}\n"
        (tmp_path / f"{name}.yaml").write_text(f"model: {settings}")
    configs = [part for name in ("one", "two") for part in ("--config", tmp_path / f"{name}.yaml")]
    limits = ["--steps", 24, "--points", 3, "--threads", 1, "--json", "-"]
    words = ["learning", "--data", tmp_path / "corpus", *configs, *limits]
    step, taken = Learner.step, []

    def interrupted(self: Learner, lr_scale: float, *, measured: bool = True) -> object:
        taken.append(1)
        if len(taken) == 13:
            os.kill(os.getpid(), signal.SIGINT)
        return step(self, lr_scale, measured=measured)

    with monkeypatch.context() as patch:
        patch.setattr(Learner, "step", interrupted)
        stopped = run(*words, "--runs", tmp_path / "runs")
    assert stopped.exit_code == 130 and len(taken) == 13 and not (tmp_path / "runs" / "two-1").exists()
    found = records(run(*words, "--runs", tmp_path / "runs"))
    whole = records(run(*words))
    scores = ("label", "seed", "step", "loss_value", "simlex_output", "final")
    assert [[r.get(name) for name in scores] for r in found] == [[r.get(name) for name in scores] for r in whole]

    def never(self: Learner, *rest: Any, **named: Any) -> object:
        raise AssertionError("all of it was done")

    with monkeypatch.context() as patch:
        patch.setattr(Learner, "step", never)
        assert records(run(*words, "--runs", tmp_path / "runs")) == found


def test_learning_needs_something_to_train(tmp_path: Path) -> None:
    result = run("learning", "--data", tmp_path)
    assert result.exit_code == 2 and "nothing to train: give --config FILE" in result.stderr


def test_peers_read_the_words_of_the_corpus(tmp_path: Path) -> None:
    from lstlm.bench.peers import write_sentences

    corpus = write_tiny_corpus(tmp_path / "corpus")
    write_sentences(corpus, tmp_path / "text.txt")
    lines = (tmp_path / "text.txt").read_text(encoding="utf-8").splitlines()
    assert len(lines) == corpus.train.sentences
    assert sum(len(line.split()) for line in lines) == corpus.train.words
