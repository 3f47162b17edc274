"""What every command promises: one line that names the culprit, the exit code of the contract, nothing half-made."""

import json
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.bench.test_figures import distributed_records
from tests.warm import close, run_lstlm

Call = Callable[..., Any]


def refused(outcome: Any, code: int, *parts: str) -> None:
    assert (outcome.code, outcome.out) == (code, ""), outcome.err
    assert outcome.err.startswith("lstlm: error: ") and outcome.err.count("\n") == 1
    assert len(outcome.err) < 300
    for part in parts:
        assert part in outcome.err


@pytest.mark.parametrize(
    "device",
    [
        "meta",
        "mps",
        "nonsense",
        pytest.param("cuda", marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is CUDA")),
    ],
)
def test_a_device_that_cannot_compute_is_wrong_usage(
    lstlm: Call, run_z: Path, runs: Path, tmp_path: Path, device: str
) -> None:
    if device == "mps" and torch.backends.mps.is_available():
        pytest.skip("there is MPS")
    refused(lstlm("eval", "perplexity", run_z, "--device", device), 2, f"--device {device}: not usable here")
    folder = tmp_path / "run"
    arguments = ["--set", f"data.dir={runs / 'corpus'}", "--run", folder, "--device", device]
    refused(lstlm("train", *arguments), 2, f"--device {device}: not usable here")
    assert not folder.exists()


@pytest.mark.parametrize("command", [["nn", "{run}"], ["predict", "{run}"], ["prepare", "-", "--out", "{corpus}"],
                                     ["eval", "perplexity", "{run}", "--text", "-"]])  # fmt: skip
def test_a_closed_standard_input_is_said(run_spherical: Path, tmp_path: Path, command: list[str]) -> None:
    words = [word.format(run=run_spherical, corpus=tmp_path / "corpus") for word in command]
    done = run_lstlm(words, tmp_path, partial(close, 0))
    line = "lstlm: error: -: the standard input is closed; name a file, or give the text through a pipe\n"
    assert done == (3, "", line)
    assert not (tmp_path / "corpus").exists()


@pytest.mark.parametrize(
    ("command", "named"),
    [
        (["prepare", "{text}", "--workers", "1", "--out", "{out}/corpus"], "{out}/corpus: cannot be written"),
        (["prepare", "{text}", "--workers", "2", "--out", "{out}/corpus"], "{out}/corpus: cannot be written"),
        (["export", "{run}", "--format", "npy", "--out", "{out}/v.npy"], "{out}/v.npy: cannot be written"),
        (["export", "{run}", "--format", "word2vec", "--out", "{out}/v.txt"], "{out}/v.txt: cannot be written"),
        (["export", "{run}", "--format", "projector", "--out", "{out}/p"], "{out}/p/vectors.tsv: cannot be written"),
    ],
)
def test_a_full_disk_is_named_and_nothing_is_left(run_z: Path, tmp_path: Path, command: list[str], named: str) -> None:
    text, vectors, out = tmp_path / "text.txt", tmp_path / "vectors.npy", tmp_path / "out"
    text.write_text("words upon words upon words\n" * 250_000)
    np.save(vectors, np.ones((3000, 10), dtype=np.float32))
    vectors.with_name("vectors.vocab.tsv").write_text("".join(f"w{row}\n" for row in range(3000)))
    out.mkdir()
    words = [word.format(text=text, run=vectors, out=out) for word in command]
    # a file may grow to 32 KiB: what a disk without room does, at the same calls
    line = f"ulimit -f 64; exec '{sys.executable}' -m lstlm {' '.join(words)}"
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert named.format(out=out) in done.stderr and done.stderr.count("\n") == 1
    assert list(out.iterdir()) == []


def test_a_picture_without_room_is_named_and_not_left(tmp_path: Path) -> None:
    document: dict[str, Any] = {"benchmark": "distributed", "records": distributed_records(), "environment": {}}
    (tmp_path / "r.json").write_text(json.dumps(document))
    done = run_lstlm(["bench", "plot", str(tmp_path / "r.json")], tmp_path)
    assert done.code == 3 and "r.json: a record lacks 'step_ms'; " in done.err
    document |= {"benchmark": "data", "records": []}
    for what, rates in (("prepare", ("mib_per_s", "words_per_s")), ("minibatches", ("examples_per_s", "batch_us"))):
        how = {"what": what, "method": "lstlm", "workers": 1, "kind": "bag", "context": 4, "m": 8, "seconds": 1.0}
        document["records"].append(how | dict.fromkeys(rates, 1e6))
    (tmp_path / "r.json").write_text(json.dumps(document))
    pytest.importorskip("matplotlib.font_manager")  # its cache is larger than what may be written below
    line = f"ulimit -f 4; exec '{sys.executable}' -m lstlm bench plot r.json --plot new/r.png"
    done = subprocess.run(["sh", "-c", line], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1 and "lstlm: error: new/r.png: cannot be written: " in done.stderr
    assert not (tmp_path / "new").exists()


def test_a_picture_that_could_not_be_drawn_is_refused_before_it_is_measured(
    lstlm: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setattr("lstlm.bench.output.run", lambda *_: pytest.fail("it measured"))
    (tmp_path / "f.png").mkdir()
    outcome = lstlm("bench", "output", "--quick", "--plot", tmp_path / "f.png")
    refused(outcome, 2, f"--plot {tmp_path / 'f.png'}: cannot be written")


def test_folders_that_were_made_for_nothing_go(lstlm: Call, tmp_path: Path) -> None:
    (tmp_path / "empty.txt").touch()
    outcome = lstlm("prepare", tmp_path / "empty.txt", "--out", tmp_path / "new" / "er" / "corpus")
    refused(outcome, 3, "no words for training")
    assert [path.name for path in tmp_path.iterdir()] == ["empty.txt"]


def test_a_run_that_is_not_there_is_said_before_the_missing_pairs(
    lstlm: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lstlm.evaluation.datasets.find_dataset", lambda *_: pytest.fail("it looked for the pairs"))
    for kind in ("simlex", "wordsim", "analogy"):
        refused(lstlm("eval", kind, tmp_path / "none"), 3, f"{tmp_path / 'none'}: no such run folder or file")


def test_a_value_that_is_not_finite_is_refused_by_all_who_read_the_file(lstlm: Call, tmp_path: Path) -> None:
    pairs, bad = tmp_path / "pairs.txt", tmp_path / "bad.txt"
    pairs.write_text("old new 1\nhard easy 2\n")
    bad.write_text("old 1 2\nnew 2 1\nhard 1 1\neasy 0 1\nother nan 1\n")
    for command in (["nn", bad, "old"], ["eval", "wordsim", bad, "--pairs", pairs]):
        refused(lstlm(*command), 3, f"{bad}: line 5 holds a value that is not finite")


@pytest.mark.parametrize(("lines", "rows"), [(20_000, 3), (2, 3), (0, 3)])
def test_words_beside_a_matrix_are_counted_to_the_end(lstlm: Call, tmp_path: Path, lines: int, rows: int) -> None:
    vectors, words = tmp_path / "v.npy", tmp_path / "words.txt"
    np.save(vectors, np.ones((rows, 2), dtype=np.float32))
    words.write_text("".join(f"w{number}\n" for number in range(lines)))
    refused(lstlm("nn", vectors, "w0", "--vocab", words), 3, f"{lines} lines, but the matrix has {rows} rows")


def test_records_that_could_not_be_written_are_refused_before_they_are_measured(
    lstlm: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lstlm.bench.output.run", lambda *_: pytest.fail("it measured"))
    (tmp_path / "file").touch()
    outcome = lstlm("bench", "output", "--quick", "--json", tmp_path / "file" / "records.json")
    refused(outcome, 2, f"--json {tmp_path / 'file' / 'records.json'}: cannot be written")


def test_a_corpus_without_validation_text_says_so_instead_of_nan(lstlm: Call, tmp_path: Path) -> None:
    text, corpus = tmp_path / "text.txt", tmp_path / "corpus"
    text.write_text("a few words\nand a few more\n" * 20)
    assert lstlm("prepare", text, "--out", corpus, "--valid-fraction", "0").code == 0
    small = ("train.max_steps=2", "train.simlex=false", "model.embedding=4", "model.hidden=[]", f"data.dir={corpus}")
    arguments = ["train", "--run", tmp_path / "run", *(part for setting in small for part in ("--set", setting))]
    outcome = lstlm(*arguments)
    assert outcome.code == 0
    assert outcome.out.startswith("finished step=1 ") and "nan" not in outcome.out
    assert "no validation text" in outcome.err and "loss nan" not in outcome.err
    assert lstlm(*arguments, "--force", "--json").json()["evaluation"] == {}


def test_an_interrupted_run_does_not_speak_of_missing_text(
    lstlm: Call, run_z: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lstlm.training.run import session

    report = {"evaluation": {}, "step": 1, "words": 2, "elapsed_s": 0.1}
    early = session.Summary(run_z, "interrupted", 2, report)
    monkeypatch.setattr(session, "train", lambda *_, **__: early)
    outcome = lstlm("train", "--run", run_z, "--resume", "auto")
    assert outcome.code == 130 and "validation" not in outcome.err, outcome.err


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="a folder that nobody can write to, not even root")
def test_a_place_that_cannot_be_written_is_named_as_it_was_given(lstlm: Call, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("a few words\n" * 9)
    refused(lstlm("prepare", tmp_path / "text.txt", "--out", "/proc/none"), 1, "/proc/none: cannot be written")
