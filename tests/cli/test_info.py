"""`lstlm info`: runs, checkpoints, corpora and vector files."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

Call = Callable[..., object]


def test_a_run_and_its_checkpoint(lstlm: Call, run_spherical: Path) -> None:
    facts = lstlm("info", run_spherical, "--json").json()
    status = json.loads((run_spherical / "status.json").read_text())
    assert (facts["kind"], facts["state"], facts["step"], facts["words_seen"]) == ("run", "finished", 20, 20 * 32)
    assert facts["scores"]["perplexity"] == status["evaluation"]["eval/perplexity"]
    assert facts["vocabulary"] == len((run_spherical / "vocab.tsv").read_text().splitlines())
    assert facts["output"] == {"kind": "factored", "loss": "spherical"}
    assert facts["model"]["embedding"] == 6
    checkpoint = run_spherical / "checkpoints" / facts["checkpoints"][-1]
    inner = lstlm("info", checkpoint, "--json").json()
    assert (inner["kind"], inner["step"], inner["vocabulary"]) == ("checkpoint", 20, facts["vocabulary"])
    out = lstlm("info", run_spherical).out
    assert "state        finished\n" in out and "perplexity" in out and "elapsed      0:00:0" in out


def test_a_corpus(lstlm: Call, run_z: Path) -> None:
    corpus = run_z.parent / "corpus"
    facts = lstlm("info", corpus, "--json").json()
    manifest = json.loads((corpus / "manifest.json").read_text())
    assert (facts["kind"], facts["vocabulary"]) == ("corpus", manifest["vocabulary"]["size"])
    assert facts["splits"]["valid"]["sentences"] == manifest["splits"]["valid"]["sentences"]
    assert facts["settings"]["min_count"] == 1
    assert "frequent words" in lstlm("info", corpus).out


@pytest.mark.parametrize("form", ["word2vec", "word2vec-bin", "npy"])
def test_files_of_vectors(lstlm: Call, run_z: Path, tmp_path: Path, form: str) -> None:
    file = tmp_path / ("v.npy" if form == "npy" else "v.txt")
    written = lstlm("export", run_z, "--format", form, "--out", file, "--json").json()
    facts = lstlm("info", file, "--json").json()
    assert (facts["kind"], facts["words"], facts["length"]) == ("vectors", written["words"], written["dim"])
    words = [line.split("\t")[0] for line in (run_z / "vocab.tsv").read_text().splitlines()]
    assert set(facts["first_words"]) <= set(words) and len(facts["first_words"]) == 10
    assert facts["bytes"] == file.stat().st_size


def test_a_file_without_a_header_is_counted(lstlm: Call, tmp_path: Path) -> None:
    file = tmp_path / "glove.txt"
    file.write_text("a 1 2\nb 3 4\nc 5 6\n")
    facts = lstlm("info", file, "--json").json()
    assert (facts["words"], facts["length"], facts["first_words"]) == (3, 2, ["a", "b", "c"])


def test_a_run_that_has_only_begun(lstlm: Call, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("train: {seed: 1}\n")
    done = lstlm("info", tmp_path)
    assert done.code == 0 and "state        ?" in done.out


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no such run, corpus or file"),
        ({}, "neither config.yaml"),
        ({"config.yaml": "data: {}\n", "status.json": "{"}, "status.json: cannot be read"),
        ({"config.yaml": "data: {}\n", "status.json": "[1]"}, "status.json: cannot be read .expected an object"),
        ({"manifest.json": "{}"}, "not the manifest of a corpus"),
        ("\x80 pickle", "line 1|pickle|not UTF-8|vector file"),
    ],
)
def test_refusals(lstlm: Call, tmp_path: Path, content: object, message: str) -> None:
    import re

    place = tmp_path / "it"
    if isinstance(content, dict):
        place.mkdir()
        for name, text in content.items():
            (place / name).write_text(text)
    elif content is not None:
        place.write_text(str(content))
    done = lstlm("info", place)
    assert (done.code, done.out, done.err.count("\n")) == (3, "", 1)
    assert re.search(message, done.err)


def test_a_damaged_file_of_a_corpus_is_named(lstlm: Call, run_z: Path, tmp_path: Path) -> None:
    corpus = tmp_path / "corpus"
    shutil.copytree(run_z.parent / "corpus", corpus)
    ids = np.fromfile(corpus / "train.ids", dtype="<u4")
    ids[:-1].tofile(corpus / "train.ids")
    done = lstlm("info", corpus)
    assert (done.code, done.err.count("\n")) == (3, 1) and "train.ids" in done.err
