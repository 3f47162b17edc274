"""Text that a run is asked about becomes words as the text of its corpus did."""

import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lstlm.cli import cli
from lstlm.cli.outcome import run_and_report
from lstlm.data.tokenise import TextOptions

Call = Callable[..., Any]

RAW = "He's here, isn't he? Yes: the cat sat. The dog, too!\n“Water,” said Mr. Smith, “is wet.” It rained.\n"
WORDS = """he 's here , isn 't he ?
yes : the cat sat .
the dog , too !
" water , " said mr. smith , " is wet . "
it rained .
"""


def _train(folder: Path, *text: str, name: str = "run", loss: str = "taylor", kind: str = "previous") -> Path:
    source, corpus, run = folder / "raw.txt", folder / "corpus", folder / name
    if not corpus.exists():
        source.write_text(RAW * 40)
        command = ["prepare", "--source", str(source), "--out", str(corpus), "--valid-fraction", "0.1", *text]
        assert run_and_report(cli, command) == 0
    settings = (
        "train.max_steps=5", "train.batch_size=32", "train.simlex=false", "model.embedding=6", "model.hidden=[6]",
        f"data.dir={os.path.relpath(corpus)}",
        f"data.context_kind={kind}", "data.unknown=0", "output.kind=factored", f"output.loss={loss}",
    )  # fmt: skip
    sets = [part for setting in settings for part in ("--set", setting)]
    assert run_and_report(cli, ["train", "--run", str(run), "--threads", "1", "--quiet", *sets]) == 0
    return run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("text")


@pytest.fixture(scope="module")
def run(folder: Path) -> Path:
    return _train(folder, "--tokenise", "simple", "--lowercase")


def test_sentences_are_found_before_capitals_are_lost() -> None:
    text = TextOptions(lowercase=True, tokenise="simple")
    assert text.apply(RAW) == WORDS
    assert list(text.sentences(RAW)) == [line.split() for line in WORDS.splitlines()]
    assert list(TextOptions().sentences("A\tb\x00c\u00a0d \r\n\n \n E\n")) == [["A", "b", "c\u00a0d"], ["E"]]


def test_a_corpus_and_a_run_say_how_their_text_was_prepared(run: Path, folder: Path) -> None:
    settings = json.loads((folder / "corpus/manifest.json").read_text())["settings"]
    origin = json.loads((run / "corpus.json").read_text())
    assert (settings["tokenise"], settings["lowercase"]) == ("simple", True)
    assert (origin["tokenise"], origin["lowercase"]) == ("simple", True)
    assert origin["folder"] == str((folder / "corpus").resolve())


def test_raw_text_scores_as_the_same_text_prepared(lstlm: Call, run: Path, tmp_path: Path) -> None:
    raw, words = tmp_path / "raw.txt", tmp_path / "words.txt"
    raw.write_text(RAW)
    words.write_text(WORDS)
    truth = lstlm("eval", "perplexity", run, "--text", words, "--tokenised", "--json").json()
    for arguments in (["--text", raw], ["--text", "-"]):
        outcome = lstlm("eval", "perplexity", run, *arguments, "--json", stdin=RAW.encode())
        assert outcome.err == ""
        assert {**outcome.json(), "split": truth["split"]} == truth
    assert truth["tokens"] == len(WORDS.split()) + 5
    assert truth["unknown_share"] == 0


def test_many_unknown_words_are_warned_of_and_left_out_of_a_second_perplexity(lstlm: Call, run: Path) -> None:
    text = b"He's here, quux zork blarg.\n"
    outcome = lstlm("eval", "perplexity", run, "--text", "-", "--json", "--quiet", stdin=text)
    document = outcome.json()
    assert outcome.err.startswith("lstlm: warning: -: 37.5% of the words are <unk>, 0.0% of those of the run's corpus")
    assert "tokenised as its corpus was, in lower case" in outcome.err
    assert (document["tokens"], document["known_tokens"]) == (9, 6)
    line = json.loads(lstlm("eval", "perplexity", run, "--text", "-", "--words", stdin=text).out)
    assert [entry["word"] for entry in line["words"]] == ["he", "'s", "here", ",", "quux", "zork", "blarg", ".", "</s>"]
    scores = [entry["log_prob"] for entry in line["words"]]
    known = [entry["log_prob"] for entry in line["words"] if entry["known"]]
    assert document["perplexity"] == pytest.approx(math.exp(-sum(scores) / 9))
    assert document["known_perplexity"] == pytest.approx(math.exp(-sum(known) / 6))
    assert line["log_prob"] == pytest.approx(sum(scores))


@pytest.mark.parametrize("kind", ["previous", "window"])
def test_scores_of_words_add_up_to_those_of_the_split(lstlm: Call, run: Path, folder: Path, kind: str) -> None:
    model = run if kind == "previous" else _train(folder, name=kind, kind=kind)
    document = lstlm("eval", "perplexity", model, "--json").json()
    lines = [json.loads(line) for line in lstlm("eval", "perplexity", model, "--words").out.splitlines()]
    words = [entry for line in lines for entry in line["words"]]
    assert len(words) == document["tokens"]
    assert math.exp(-sum(entry["log_prob"] for entry in words) / len(words)) == pytest.approx(document["perplexity"])
    assert [line["words"][-1]["word"] == "</s>" for line in lines] == [kind == "previous"] * len(lines)


def test_words_without_probabilities_have_a_loss_and_bags_have_no_words(lstlm: Call, folder: Path, run: Path) -> None:
    z = _train(folder, name="z", loss="z")
    line = json.loads(lstlm("eval", "perplexity", z, "--text", "-", "--words", stdin=b"The cat sat.\n").out)
    assert [set(entry) for entry in line["words"]] == [{"word", "minus_loss", "known"}] * 5
    bag = _train(folder, name="bag", loss="z", kind="bag")
    refused = lstlm("eval", "perplexity", bag, "--words")
    assert refused.code == 2 and "context_kind bag" in refused.err
    assert lstlm("eval", "perplexity", run, "--words", "--json").code == 2
    assert lstlm("eval", "perplexity", run, "--tokenised").code == 2


def test_predict_reads_signs_as_words_and_the_last_sentence(lstlm: Call, run: Path) -> None:
    outcome = lstlm("predict", run, "It rained. The dog,", "-k", "1", "--json")
    assert outcome.err == ""
    assert outcome.json()["queries"][0]["context"] == ["<s>", "the", "dog", ","]


def test_a_run_finds_its_corpus_from_another_folder(
    lstlm: Call, run: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = lstlm("eval", "perplexity", run, "--json").json()
    monkeypatch.chdir(tmp_path)
    assert lstlm("eval", "perplexity", run, "--json").json() == here
    again = lstlm("train", "--run", run, "--resume", "auto", "--set", "train.max_steps=6", "--threads", "1", "--json")
    assert again.code == 0 and again.json()["step"] == 6


def test_a_damaged_note_of_the_corpus_is_one_line_and_none_is_an_older_run(
    lstlm: Call, run: Path, folder: Path
) -> None:
    note, kept = run / "corpus.json", (run / "corpus.json").read_bytes()
    try:
        note.write_text("{}")
        refused = lstlm("eval", "perplexity", run)
        assert refused.code == 3 and refused.err.startswith(f"lstlm: error: {note}: cannot be read")
        note.unlink()
        older = lstlm("predict", run, "The dog,", "-k", "1", "--json").json()
        assert older["queries"][0]["context"] == ["<s>", "<s>", "the", "<unk>"]
    finally:
        note.write_bytes(kept)
