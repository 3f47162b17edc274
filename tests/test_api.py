"""The library on a postcard: load, train, prepare, and what a run answers."""

import inspect
import math
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import lstlm
from tests.helpers import tiny_text

SMALL = {"model": {"embedding": 8, "hidden": [8]}, "data": {"context": 3}}
QUICK = {"train.max_steps": 30, "train.batch_size": 64, "train.simlex": False}


def sentences() -> Iterator[str]:
    yield from tiny_text().splitlines()


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> lstlm.Corpus:
    return lstlm.prepare(sentences(), tmp_path_factory.mktemp("api") / "corpus")


@pytest.fixture(scope="module")
def run(corpus: lstlm.Corpus) -> lstlm.Run:
    """A language model with probabilities."""
    config = {**SMALL, "output": {"loss": "taylor"}}
    return lstlm.train(config, data=corpus, run=corpus.folder.parent / "lm", settings=QUICK, threads=1, quiet=True)


def log_probs_one_by_one(run: lstlm.Run, words: list[str]) -> list[float]:
    """p(word | three words before), each from the whole distribution of its own context."""
    known, found = run.vocabulary, []
    ids = [known.index.get(word, known.unk_id) for word in words]
    for at, target in enumerate([*ids, known.eos_id]):
        context = ([known.bos_id] * 3 + ids)[at : at + 3]
        h = run.network.encode(torch.tensor([context]))
        everything = run.network.output.log_prob(h, torch.arange(len(known))[None])[0].double().log_softmax(0)
        found.append(float(everything[target]))
    return found


def test_sentences_or_a_file_give_the_same_corpus(corpus: lstlm.Corpus, tmp_path: Path) -> None:
    file = tmp_path / "text.txt"
    file.write_text(tiny_text())
    for number, source in enumerate([file, str(file), [file], [line.split() for line in sentences()]]):
        other = lstlm.prepare(source, tmp_path / str(number))
        assert other.vocabulary == corpus.vocabulary
        np.testing.assert_array_equal(other.train.ids, corpus.train.ids)
    record = corpus.manifest["source"]["files"][0]
    assert (record["bytes"], len(record["sha256"])) == (len(tiny_text()), 64)


def test_options_of_prepare(tmp_path: Path) -> None:
    text = ["The cat. Then the dog!", "A line\nbreak is no sentence end"]
    corpus = lstlm.prepare(
        [*text * 10, "\ud800"], tmp_path / "c", tokenise="simple", lowercase=True, min_count=20, valid_fraction=0
    )
    assert corpus.vocabulary.words == ["<unk>", "<s>", "</s>", "the"]
    assert corpus.train.sentences == 31  # the tokeniser cuts where a capital follows, before text is lowered
    assert corpus.manifest["found"]["invalid_utf8"] > 0
    with pytest.raises(lstlm.ConfigError, match="not empty"):
        lstlm.prepare(text, tmp_path / "c")
    assert len(lstlm.prepare(text, tmp_path / "c", force=True).vocabulary) > 4


@pytest.mark.parametrize(
    ("source", "error", "message"),
    [
        ([["a", "b"], [1, 2]], lstlm.DataError, "sentence 2: a text or a sequence of words is needed, not"),
        ([b"bytes"], lstlm.DataError, "sentence 1"),
        (7, lstlm.ConfigError, "source 7"),
        ([], lstlm.DataError, "no words for training"),
        ("absent.txt", lstlm.DataError, "no such file"),
    ],
)
def test_bad_sources(tmp_path: Path, source: object, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        lstlm.prepare(source, tmp_path / "out")  # type: ignore[arg-type]
    assert not (tmp_path / "out").exists()


def test_load_gives_what_train_returned(run: lstlm.Run) -> None:
    again = lstlm.load(run.folder)
    assert (again.step, again.config, again.vocabulary) == (30, run.config, run.vocabulary)
    np.testing.assert_array_equal(again.vectors.matrix, run.vectors.matrix)
    assert repr(again) == f"<lstlm run {run.folder}: {len(run.vocabulary):,} words, step 30>"
    with pytest.raises(lstlm.CheckpointError, match="neither a run folder nor a checkpoint"):
        lstlm.load(run.folder.parent)


def test_vectors_and_neighbours(run: lstlm.Run) -> None:
    known, table = run.vocabulary, run.network.input_vectors().double().numpy()
    np.testing.assert_array_equal(run.vectors["w5"], run.network.input_vectors()[known.index["w5"]].numpy())
    assert "w5" in run.vectors and "absent" not in run.vectors
    units = table / np.linalg.norm(table, axis=1, keepdims=True)
    asked = [known.index[word] for word in ("w1", "w2", "w3")]
    query = units[asked[0]] - units[asked[1]] + units[asked[2]]
    cosines = units @ (query / np.linalg.norm(query))
    best = [row for row in np.argsort(-cosines) if row not in asked][:4]
    found = run.most_similar(positive=["w1", "w3"], negative=["w2"], k=4)
    assert [word for word, _ in found] == [known.words[row] for row in best]
    assert [score for _, score in found] == pytest.approx(cosines[best].tolist(), abs=1e-6)
    assert run.most_similar("W1") == run.most_similar(["w1"]) != run.word_vectors("output").most_similar("w1")


def test_an_unknown_word_is_a_key_error_and_a_value_error(run: lstlm.Run) -> None:
    for ask in (lambda: run.vectors["w1x"], lambda: run.most_similar("w1x")):
        with pytest.raises(KeyError) as caught:
            ask()
        assert isinstance(caught.value, ValueError) and isinstance(caught.value, lstlm.UnknownWord)
        assert str(caught.value).startswith("'w1x' has no vector; near spellings: w1")
    assert len(run.most_similar("w1x", k=2, oov=True)) == 2
    with pytest.raises(lstlm.ConfigError, match="no word was given"):
        run.most_similar([])


def test_log_probabilities_are_those_of_the_whole_distributions(run: lstlm.Run) -> None:
    words = ["w0", "w3", "absent", "w1", "w0"]
    exact = log_probs_one_by_one(run, words)
    found = run.word_log_probs(" ".join(words).upper())  # the vocabulary has no capitals: text is lowered
    assert [word for word, _ in found] == ["w0", "w3", "<unk>", "w1", "w0", "</s>"]
    assert [score for _, score in found] == pytest.approx(exact, abs=1e-4)
    assert run.log_prob(" ".join(words)) == pytest.approx(sum(exact), abs=1e-4)


def test_perplexity_of_texts_and_of_lines(run: lstlm.Run) -> None:
    text = "w0 w3\n\nw1 w2 w4\n"
    exact = log_probs_one_by_one(run, ["w0", "w3"]) + log_probs_one_by_one(run, ["w1", "w2", "w4"])
    expected = math.exp(-sum(exact) / 7)
    assert run.perplexity(text) == pytest.approx(expected, rel=1e-4)
    assert run.perplexity(iter(text.splitlines(keepends=True))) == pytest.approx(expected, rel=1e-4)
    with pytest.raises(lstlm.DataError, match="holds no words"):
        run.perplexity("  \n")
    with pytest.raises(lstlm.ConfigError, match="2 sentences where one is needed"):
        run.log_prob(text)


def test_words_are_drawn_as_often_as_they_are_probable(run: lstlm.Run) -> None:
    h = run.network.encode(torch.tensor([[run.vocabulary.bos_id] * 3]))
    p = run.network.output.log_prob(h, torch.arange(len(run.vocabulary))[None])[0].double().exp()
    p[[run.vocabulary.unk_id, run.vocabulary.bos_id]] = 0  # never drawn
    p = (p / p.sum()).numpy()
    draws = [run.generate("", words=1, seed=seed) for seed in range(3000)]
    ids = [run.vocabulary.index[word] if word else run.vocabulary.eos_id for word in draws]
    frequent = np.argsort(-p)[:8]
    found = np.bincount(ids, minlength=len(p))[frequent] / len(draws)
    deviation = np.sqrt(p[frequent] * (1 - p[frequent]) / len(draws))
    assert (np.abs(found - p[frequent]) < 4.5 * deviation).all()


def test_generate(run: lstlm.Run) -> None:
    text = run.generate("w0 w3", words=12, seed=1)
    assert text.startswith("w0 w3") and len(text.split()) <= 14
    assert text == run.generate("w0 w3", words=12, seed=1)
    assert len({run.generate("w0 w3", words=12, seed=seed) for seed in range(5)}) > 1
    best = run.generate("w0 w3", words=1, temperature=0)
    likely = next(word for word, _ in run.predict("w0 w3", k=5) if word != "<unk>")
    assert best == ("w0 w3" if likely == "</s>" else f"w0 w3 {likely}")
    assert run.generate("w0 w3", words=1, temperature=1e-6, seed=3) == best
    for temperature in (-1.0, math.inf, math.nan):
        with pytest.raises(lstlm.ConfigError, match="temperature"):
            run.generate("w0", temperature=temperature)


def test_predictions_are_probabilities(run: lstlm.Run) -> None:
    entries = run.predict("w0 w3", k=10_000)
    assert len(entries) == len(run.vocabulary) - 1  # <s> never follows
    assert 0.9 < sum(chance for _, chance in entries) <= 1.0 + 1e-5


def test_what_a_model_without_probabilities_refuses(corpus: lstlm.Corpus) -> None:
    folder = corpus.folder.parent / "z"
    run = lstlm.train(SMALL, data=str(corpus.folder), run=folder, settings=QUICK, threads=1, quiet=True)
    for ask in (run.log_prob, run.perplexity, run.generate):
        with pytest.raises(lstlm.ConfigError, match="defines no probabilities"):
            ask("w0 w3")
    assert run.generate("w0 w3", words=4, temperature=0).startswith("w0 w3")
    assert len(run.predict("w0 w3", k=2)) == 2


@pytest.mark.parametrize("kind", ["window", "cooccurrence"])
def test_what_other_kinds_of_context_refuse(corpus: lstlm.Corpus, kind: str) -> None:
    context = {"context": 4, "context_kind": kind}
    flat = {"hidden": [], "embedding": 8, "combine": "mean"}
    loss = {"output.loss": "taylor"} if kind == "window" else {"output.loss": "squared", "output.bias": False}
    settings = {**QUICK, **loss, "train.max_steps": 3}
    run = lstlm.train(
        {"data": context, "model": flat}, data=corpus, run=corpus.folder.parent / kind, settings=settings, quiet=True
    )
    for ask in (run.log_prob, run.generate):
        with pytest.raises(lstlm.ConfigError, match=f"context_kind {kind}"):
            ask("w0 w3")
    if kind == "window":
        assert run.perplexity("w0 w3 w1") > 1
    else:
        with pytest.raises(lstlm.ConfigError, match="pairs"):
            run.perplexity("w0 w3")
    assert len(run.most_similar("w0", k=3)) == 3


def test_training_by_recipe_config_and_resumption(corpus: lstlm.Corpus, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("model: {embedding: 8, hidden: [8]}\n")
    first = lstlm.train(file, data=corpus, run=tmp_path / "a", settings=QUICK, threads=1, quiet=True)
    second = lstlm.train(first.config, run=tmp_path / "b", threads=1, quiet=True)
    np.testing.assert_array_equal(first.vectors.matrix, second.vectors.matrix)
    more = lstlm.train(first.config, run=tmp_path / "a", resume="auto", settings={"train.max_steps": 40}, quiet=True)
    assert more.step == 40
    with pytest.raises(lstlm.ConfigError, match="not empty"):
        lstlm.train(first.config, run=tmp_path / "a")


@pytest.mark.parametrize(
    ("config", "settings", "message"),
    [
        ({"model": {"embeding": 8}}, {}, "did you mean model.embedding"),
        ({}, {"train.max_steps": -1}, "out of range"),
        ({}, {"train.seed": object()}, "settings: .* use plain numbers"),
        ("no-such-recipe", {}, "no-such-recipe: no such file"),
    ],
)
def test_wrong_settings_are_value_errors(config: object, settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        lstlm.train(config, settings=settings)  # type: ignore[arg-type]


def test_every_public_name_is_there_and_documented() -> None:
    for name in lstlm.__all__:
        assert name == "__version__" or getattr(lstlm, name).__doc__, name
    with pytest.raises(AttributeError, match="public names"):
        lstlm.nothing  # noqa: B018


def test_help_explains_every_argument_of_the_layer() -> None:
    explained = inspect.getdoc(lstlm.SphericalOutput) or ""
    for name in inspect.signature(lstlm.SphericalOutput).parameters:
        assert re.search(rf"^{name}  +\S", explained, flags=re.MULTILINE), f"help(SphericalOutput) is silent on {name}"


def test_importing_costs_neither_torch_nor_numpy() -> None:
    code = "import sys, lstlm; assert not {'torch', 'numpy', 'yaml'} & set(sys.modules), sys.modules.keys()"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
