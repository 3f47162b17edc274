"""`lstlm eval`: the documents that are read from outside, the tables, and the refusals."""

import gzip
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from lstlm.data import Corpus
from lstlm.training.run.saved import load_run

Call = Callable[..., object]

PAIRS = "word1 word2 POS SimLex999\nold new A 1\nsmart hard A 5\nwife book N 3\ngo come V 2\ngo zebra V 9\n"


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    path = tmp_path / "pairs.txt"
    path.write_text(PAIRS)
    return path


def test_simlex_document(lstlm: Call, run_z: Path) -> None:
    pytest.importorskip("gensim")
    document = lstlm("eval", "simlex", run_z, "--json").json()
    assert list(document)[:6] == ["dataset", "spearman", "pearson", "pairs_used", "pairs_total", "oov"]
    assert (document["dataset"], document["pairs_total"], document["which"]) == ("simlex", 999, "input")
    assert 5 <= document["pairs_used"] < 30
    low, high = document["interval"]
    assert low <= document["spearman"] <= high
    assert "abdomen" in document["oov"] and "old" not in document["oov"]


def test_bootstrap_is_seeded(lstlm: Call, run_z: Path) -> None:
    pytest.importorskip("gensim")

    def interval(*extra: object) -> list[float]:
        return lstlm("eval", "simlex", run_z, "--json", *extra).json()["interval"]

    assert interval() == interval("--seed", 1) != interval("--seed", 2)
    assert interval("--resamples", 0) is None


def test_by_part_of_speech(lstlm: Call, run_z: Path, pairs: Path) -> None:
    document = lstlm("eval", "simlex", run_z, "--pairs", pairs, "--by-pos", "--json").json()
    used = {name: (part["pairs_used"], part["pairs_total"]) for name, part in document["by_pos"].items()}
    assert used == {"adjectives": (2, 2), "nouns": (1, 1), "verbs": (1, 2)}
    table = lstlm("eval", "simlex", run_z, "--pairs", pairs, "--by-pos")
    assert [line.split()[0] for line in table.out.splitlines()] == ["spearman", "all", "adjectives", "nouns", "verbs"]
    assert "1 words without a vector: zebra" in table.err


def test_which_vectors(lstlm: Call, run_z: Path, pairs: Path) -> None:
    command = ("eval", "simlex", run_z, "--pairs", pairs, "--json", "--which")
    pearsons = {lstlm(*command, which).json()["pearson"] for which in ("input", "output", "sum")}
    assert len(pearsons) == 3


def test_any_vector_file_gzipped_too(lstlm: Call, pairs: Path, tmp_path: Path) -> None:
    text = "old 1 0\nnew 0 1\nsmart 1 1\nhard 1 0.9\nwife 1 2\nbook 2 1\ngo 1 0\nCOME 0.5 1\n"
    path = tmp_path / "glove.txt.gz"
    path.write_bytes(gzip.compress(text.encode()))
    document = lstlm("eval", "simlex", path, "--pairs", pairs, "--json").json()
    assert (document["pairs_used"], document["oov"], document["which"]) == (4, ["zebra"], None)
    assert document["spearman"] == pytest.approx(1.0)
    assert lstlm("eval", "simlex", path, "--pairs", pairs, "--json", "--case", "exact").json()["pairs_used"] == 3


def test_no_usable_pair_is_null_and_said(lstlm: Call, pairs: Path, tmp_path: Path) -> None:
    path = tmp_path / "v.txt"
    path.write_text("1 2\nqwerty 1 0\n")
    done = lstlm("eval", "simlex", path, "--pairs", pairs, "--json")
    assert (done.code, done.json()["spearman"], done.json()["pairs_used"]) == (0, None, 0)
    assert "0 of 5 pairs have both words" in done.err


def test_wordsim(lstlm: Call, run_z: Path, tmp_path: Path) -> None:
    path = tmp_path / "men.txt"
    path.write_text("old new 1\nsmart hard 5\nwife book 3\n")
    document = lstlm("eval", "wordsim", run_z, "--pairs", path, "--json").json()
    assert (document["dataset"], document["pairs_used"], document["pairs_total"]) == ("wordsim", 3, 3)
    done = lstlm("eval", "wordsim", run_z, "--pairs", path, "--by-pos")
    assert (done.code, "does not name parts of speech" in done.err) == (2, True)


def test_analogy(lstlm: Call, tmp_path: Path) -> None:
    vectors, questions = tmp_path / "v.txt", tmp_path / "q.txt"
    vectors.write_text("man 1 0 0\nwoman 1 1 0\nking 0 0 1\nqueen 0 1 1\nx -1 -1 -1\n")
    questions.write_text(": family\nman woman king queen\nman woman boy girl\n: gram1-x\nman king woman x\n")
    document = lstlm("eval", "analogy", vectors, "--pairs", questions, "--json").json()
    for method in ("add", "mul"):
        totals = [document[method][part] for part in ("semantic", "syntactic", "total")]
        assert [(part["correct"], part["used"], part["total"]) for part in totals] == [(1, 1, 2), (0, 1, 1), (1, 2, 3)]
        assert document[method]["sections"][0]["name"] == "family"
    done = lstlm("eval", "analogy", vectors, "--questions", questions, "--method", "mul")
    assert done.out.splitlines()[0].split() == ["section", "used", "of", "3CosMul"]
    assert done.out.splitlines()[-1].split() == ["total", "2", "3", "50.0", "%"]


def test_perplexity_is_the_mean_over_all_held_out_words(lstlm: Call, run_spherical: Path) -> None:
    document = lstlm("eval", "perplexity", run_spherical, "--json", "--rank-examples", 100_000).json()
    run = load_run(run_spherical)
    ids = Corpus.open(run.config.data.dir).valid.ids
    context, logs, ranks = [1] * 4, [], []
    for word in ids.tolist():
        h = run.network.encode(torch.tensor([context[-4:]]))
        everything = run.network.output.log_prob(h.expand(len(run.vocabulary), -1), torch.arange(len(run.vocabulary)))
        logs.append(float(everything[word]))
        ranks.append(1 + int((everything > everything[word]).sum()))
        context = [1] * 4 if word == 2 else [*context, word]
    assert document["perplexity"] == pytest.approx(float(np.exp(-np.mean(logs))), rel=1e-5)
    assert (document["tokens"], document["rank_examples"], document["split"]) == (len(ids), len(ids), "valid")
    # two words of all but equal probability may change places in float32
    assert document["top1"] == pytest.approx(np.mean(np.array(ranks) == 1), abs=0.02)
    assert document["top10"] == pytest.approx(np.mean(np.array(ranks) <= 10), abs=0.02)
    assert document["mrr"] == pytest.approx(np.mean(1 / np.array(ranks)), abs=0.02)


def test_perplexity_of_a_text_equals_that_of_the_same_split(lstlm: Call, run_spherical: Path, tmp_path: Path) -> None:
    run = load_run(run_spherical)
    ids = Corpus.open(run.config.data.dir).valid.ids.tolist()
    text = " ".join(run.vocabulary.words[word] for word in ids).replace(" </s> ", "\n").replace(" </s>", "\n")
    path = tmp_path / "text.txt"
    path.write_text(text.upper().replace("<UNK>", "<unk>"))
    of_text = lstlm("eval", "perplexity", run_spherical, "--json", "--text", path).json()
    of_split = lstlm("eval", "perplexity", run_spherical, "--json").json()
    assert of_text.pop("split") == str(path)
    assert of_split.pop("split") == "valid"
    assert of_text == of_split


def test_perplexity_of_a_damaged_corpus_is_refused(lstlm: Call, run_spherical: Path, tmp_path: Path) -> None:
    copied = Path(shutil.copytree(load_run(run_spherical).config.data.dir, tmp_path / "corpus"))
    assert lstlm("eval", "perplexity", run_spherical, "--data", copied).code == 0
    ids = bytearray((copied / "valid.ids").read_bytes())
    ids[40] ^= 1  # another word
    (copied / "valid.ids").write_bytes(ids)
    done = lstlm("eval", "perplexity", run_spherical, "--data", copied)
    assert done.code == 3 and "valid.ids: damaged: its SHA-256 is not the manifest's" in done.err


def test_perplexity_without_probabilities_is_refused_with_the_reason(lstlm: Call, run_z: Path) -> None:
    done = lstlm("eval", "perplexity", run_z, "--json", "--limit", 50)
    document = done.json()
    assert (done.code, document["perplexity"], document["tokens"]) == (0, None, 50)
    assert "output.loss z defines no probabilities" in document["reason"]
    assert 0 <= document["top1"] <= document["top10"] <= 1
    table = lstlm("eval", "perplexity", run_z, "--rank-examples", 0, "--limit", 10)
    assert table.out.splitlines()[0].split() == ["perplexity", "–"]


BAD = {
    "malformed pair": (["simlex", "RUN", "--pairs", "BAD"], 3, "line 2"),
    "no such pairs": (["simlex", "RUN", "--pairs", "absent"], 3, "--pairs absent: no such file"),
    "no such run": (["simlex", "absent"], 3, "absent: no such run"),
    "sum of nothing": (["simlex", "FILE", "--which", "sum", "--pairs", "GOOD"], 2, "is a file"),
    "perplexity of a file": (["perplexity", "FILE"], 2, "needs a run folder"),
    "no such text": (["perplexity", "RUN", "--text", "absent"], 3, "absent: no such file"),
    "no such corpus": (["perplexity", "RUN", "--data", "absent"], 3, "name it with --data"),
    "no test part": (["perplexity", "RUN", "--split", "test"], 3, "has no test part"),
    "text and data": (["perplexity", "RUN", "--text", "a", "--data", "b"], 2, "give one of them"),
}


@pytest.mark.parametrize(("arguments", "code", "message"), BAD.values(), ids=BAD)
def test_refusals(
    lstlm: Call, run_z: Path, pairs: Path, tmp_path: Path, arguments: list[str], code: int, message: str
) -> None:
    bad, file = tmp_path / "bad.txt", tmp_path / "v.txt"
    bad.write_text("a b 1\nc d\n")
    file.write_text("1 1\nold 1\n")
    named = {"RUN": run_z, "BAD": bad, "FILE": file, "GOOD": pairs}
    done = lstlm("eval", *[named.get(argument, argument) for argument in arguments])
    assert (done.code, done.out) == (code, "")
    assert message in done.err.splitlines()[-1]


def test_download_failure_is_one_clear_line(
    lstlm: Call, run_z: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("lstlm.evaluation.datasets.importlib.util.find_spec", lambda name: None)
    done = lstlm("eval", "simlex", run_z)
    assert (done.code, "--download fetches it" in done.err) == (3, True)

    def refuse(*args: object, **kwargs: object) -> None:
        raise OSError("no route to host")

    monkeypatch.setattr("lstlm.evaluation.datasets.open_address", refuse)
    done = lstlm("eval", "simlex", run_z, "--download")
    assert done.code == 3
    assert "the download failed (no route to host)" in done.err


def test_oov_words_are_scored_by_their_spelling(lstlm: Call, run_z: Path, tmp_path: Path) -> None:
    pairs = tmp_path / "rare.txt"
    pairs.write_text("old new 1\nsmart harder 5\nwives husbands 3\ngo Ш 2\n")
    before = lstlm("eval", "wordsim", run_z, "--pairs", pairs, "--json").json()
    assert (before["pairs_used"], "guessed" in before) == (1, False)
    done = lstlm("eval", "wordsim", run_z, "--pairs", pairs, "--oov", "--json")
    after = done.json()
    assert (after["pairs_used"], after["guessed"], after["oov"]) == (3, 3, ["Ш"])
    assert "3 of the 8 words have no vector and get one by their spelling" in done.err
    exported = tmp_path / "v.txt"
    assert lstlm("export", run_z, "--format", "word2vec", "--out", exported).code == 0
    same = lstlm("eval", "wordsim", exported, "--pairs", pairs, "--oov", "--json").json()
    assert same["spearman"] == pytest.approx(after["spearman"], abs=1e-6)


@pytest.mark.parametrize("as_json", [[], ["--json"]])
def test_no_word_of_a_file_commands_the_terminal(lstlm: Call, tmp_path: Path, as_json: list[str]) -> None:
    odd, vectors, pairs = ("a\x1b]0;x\x07", "b\x9b31m", "c\x7f"), tmp_path / "v.vec", tmp_path / "p.tsv"
    words = [*odd, "plain", "other"]
    vectors.write_text("".join(f"{word} {number} {number**2} 1\n" for number, word in enumerate(words)))
    pairs.write_text("".join(f"{word}\tmissing {word}\t1\n{word}\tplain\t2\n" for word in odd))
    missing = lstlm("eval", "wordsim", vectors, "--pairs", pairs, *as_json)
    near = lstlm("nn", vectors, "plain", *as_json)
    for done in (missing, near):
        assert done.code == 0, done.err
        shown = (done.out + done.err).replace("\n", "")
        assert not [sign for sign in shown if ord(sign) < 32 or 127 <= ord(sign) < 160]
    if as_json:  # and JSON means the very words
        assert {one["word"] for one in near.json()["queries"][0]["neighbours"]} == {*odd, "other"}
        assert set(missing.json()["oov"]) == {f"missing {word}" for word in odd}
