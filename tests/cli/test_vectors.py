"""`lstlm vectors`: own text to word vectors in one command."""

import gzip
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import lstlm as library
from lstlm.config import vector_config
from lstlm.data.prepare import usual_min_count
from lstlm.files import locked
from lstlm.vectors import load_vectors
from tests.helpers import tiny_text

Call = Callable[..., object]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "mine.txt"
    path.write_text(tiny_text().upper().replace("\n", ".\n"))  # raw: capitals, and signs that stick to words
    return path


def test_text_becomes_a_file_that_others_open(lstlm: Call, text: Path) -> None:
    models = pytest.importorskip("gensim.models")
    done = lstlm("vectors", text, "--out", "mine.vec", "--threads", 1)
    assert (done.code, done.out.splitlines()[0]) == (0, "vectors  mine.vec"), done.err
    theirs = models.KeyedVectors.load_word2vec_format("mine.vec")
    ours = load_vectors("mine.vec")
    assert "w0" in ours and "." in ours and "W0" not in ours and "<unk>" not in ours
    assert np.linalg.norm(ours.matrix, axis=1).min() > 0
    pairs = zip(theirs.most_similar("w0", topn=5), ours.most_similar("w0", k=5), strict=True)
    for (their_word, their_cosine), (word, cosine) in pairs:
        assert word == their_word and cosine == pytest.approx(their_cosine, abs=1e-5)
    summed = theirs.most_similar(positive=["w0", "w2"], negative=["w1"], topn=3)
    assert [word for word, _ in ours.most_similar(["w0", "w2"], ["w1"], k=3)] == [word for word, _ in summed]


def test_the_ending_chooses_the_format_and_all_hold_the_same(lstlm: Call, text: Path) -> None:
    found = {}
    for name in ("a.txt", "a.vec", "a.bin", "a.vec.gz", "a.bin.gz"):
        assert lstlm("vectors", text, "--out", name, "--quiet", "--threads", 1).code == 0
        found[name] = load_vectors(name)
        assert (Path(name).read_bytes()[:2] == b"\x1f\x8b") == name.endswith(".gz")
    assert gzip.decompress(Path("a.bin.gz").read_bytes()) == Path("a.bin").read_bytes() != Path("a.txt").read_bytes()
    for vectors in found.values():
        np.testing.assert_array_equal(vectors.matrix, found["a.txt"].matrix)


def test_the_corpus_is_kept_and_used_again_until_the_text_changes(lstlm: Call, text: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache" / "lstlm" / "vectors"
    first = lstlm("vectors", text, "--out", "1.vec", "--threads", 1)
    (corpus,) = (path for path in cache.iterdir() if path.is_dir())  # the run is gone
    assert f"the corpus is kept in {corpus}" in first.err
    again = lstlm("vectors", text, "--out", "2.vec", "--dim", 3, "--threads", 1, "--json")
    assert f"the corpus is there already: {corpus}" in again.err
    assert again.json()["length"] == 3
    text.write_text(text.read_text() * 2)
    other = lstlm("vectors", text, "--out", "3.vec", "--threads", 1)
    assert "is there already" not in other.err and len(list(cache.glob("*/manifest.json"))) == 2


def test_a_cache_that_was_left_half_made_or_damaged_is_made_anew(lstlm: Call, text: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache" / "lstlm" / "vectors"
    assert lstlm("vectors", text, "--out", "1.vec", "--threads", 1).code == 0
    (note,) = cache.glob("*.json")
    said = note.read_text()
    note.write_bytes(b"\xff\xfe")  # and not what it was
    assert lstlm("vectors", text, "--out", "0.vec", "--threads", 1).code == 0 and note.read_text() == said
    note.unlink()  # killed between the corpus and its note
    killed = lstlm("vectors", text, "--out", "2.vec", "--threads", 1)
    assert killed.code == 0, killed.err
    assert note.read_text() == said
    (ids,) = cache.glob("*/vocab.tsv")
    ids.write_bytes(ids.read_bytes()[:-5])
    damaged = lstlm("vectors", text, "--out", "3.vec", "--threads", 1)
    assert damaged.code == 0 and "vocab.tsv" in damaged.err and "prepared anew" in damaged.err
    assert Path("1.vec").read_bytes() == Path("2.vec").read_bytes() == Path("3.vec").read_bytes()


def test_a_home_that_cannot_be_written_is_one_line_with_the_remedy(
    lstlm: Call, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(text))  # a file
    done = lstlm("vectors", text, "--out", "1.vec", "--threads", 1)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert f"{text}/lstlm/vectors: cannot be written" in done.err and "name a folder with --keep" in done.err
    assert lstlm("vectors", text, "--out", "1.vec", "--threads", 1, "--keep", "kept").code == 0


def test_a_user_without_a_home_is_told_the_remedy(lstlm: Call, text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", home)
    done = lstlm("vectors", text, "--out", "1.vec", "--threads", 1)
    assert done.code == 2 and "no home folder" in done.err and "name a folder with --keep" in done.err


def test_keep_holds_corpus_and_run(lstlm: Call, text: Path, tmp_path: Path) -> None:
    assert lstlm("vectors", text, "--out", "1.vec", "--keep", "kept", "--threads", 1).code == 0
    run = library.load("kept/run")
    np.testing.assert_array_equal(run.vectors.without_empty().matrix, load_vectors("1.vec").matrix)
    assert library.Corpus.open("kept/corpus").manifest["settings"]["lowercase"] is True
    assert not (tmp_path / "cache").exists()
    again = lstlm("vectors", text, "--out", "2.vec", "--keep", "kept", "--threads", 1)
    assert again.code == 0 and "is there already" in again.err
    assert Path("1.vec").read_bytes() == Path("2.vec").read_bytes()
    other = lstlm("vectors", text, "--out", "3.vec", "--keep", "kept", "--cased", "--threads", 1)
    assert (other.code, "--keep kept: holds another corpus" in other.err) == (2, True)
    assert lstlm("vectors", text, "--out", "3.vec", "--keep", "kept", "--cased", "--threads", 1, "--force").code == 0
    assert "W0" in load_vectors("3.vec")


def test_stdin_is_read_and_nothing_is_kept(lstlm: Call, text: Path, tmp_path: Path) -> None:
    done = lstlm("vectors", "-", "--out", "pipe.vec", "--threads", 1, stdin=text.read_bytes())
    assert done.code == 0 and "kept" not in done.err
    assert list((tmp_path / "cache" / "lstlm" / "vectors").iterdir()) == []
    assert lstlm("vectors", text, "--out", "file.vec", "--threads", 1).code == 0
    assert Path("pipe.vec").read_bytes() == Path("file.vec").read_bytes()


def test_what_a_killed_process_left_is_removed_and_nothing_of_a_living_one(
    lstlm: Call, text: Path, tmp_path: Path
) -> None:
    cache = tmp_path / "cache" / "lstlm" / "vectors"
    for name in ("tmp-killed", "tmp-at-work", "tmp-just-made"):
        (cache / name).mkdir(parents=True)
    for name in ("tmp-killed", "tmp-at-work"):
        (cache / name / "run").mkdir()
    with locked(cache / "tmp-at-work"):
        assert lstlm("vectors", "-", "--out", "1.vec", "--threads", 1, stdin=text.read_bytes()).code == 0
    assert {path.name for path in cache.iterdir()} == {"tmp-at-work", "tmp-just-made"}


def test_the_json_says_what_was_done(lstlm: Call, text: Path) -> None:
    facts = lstlm("vectors", text, "--out", "m.vec", "--min-count", 4, "--window", 2, "--threads", 1, "--json").json()
    assert (facts["out"], facts["min_count"]) == ("m.vec", 4)
    assert facts["words"] == len(load_vectors("m.vec"))
    assert 0.5 < facts["coverage"] <= 1 and facts["text_words"] > 2000


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["TEXT", "--out", "v.npy"], 2, "ends with none of .txt, .vec, .bin"),
        (["TEXT", "--out", "taken.vec"], 2, "exists; choose another name or add --force"),
        (["TEXT", "--out", "taken.vec/v.vec"], 2, "lies inside a file"),
        (["absent.txt", "--out", "v.vec"], 3, "no such file"),
        (["short.txt", "--out", "v.vec"], 3, "so there is nothing to learn; give more text"),
        (["TEXT", "--out", "v.vec", "--dim", "60000"], 2, "a vector can be no longer than that"),
        ([], 2, "Missing"),
    ],
)
def test_refusals(lstlm: Call, text: Path, arguments: list[str], code: int, message: str) -> None:
    Path("taken.vec").write_text("precious")
    Path("short.txt").write_text("hello\nworld\nhello\nworld\n")
    done = lstlm("vectors", *[str(text) if word == "TEXT" else word for word in arguments], "--quiet")
    assert (done.code, done.out, done.err.count("\n")) == (code, "", 1), done.err
    assert message in done.err
    assert Path("taken.vec").read_text() == "precious" and not Path("v.vec").exists()


def test_settings_follow_the_size_of_the_text() -> None:
    assert [usual_min_count(words) for words in (1000, 200_000, 10**6, 10**9)] == [2, 3, 5, 10]
    lengths = [vector_config(words, 10**5).model.embedding for words in (10**5, 10**6, 5 * 10**6)]
    assert lengths == [100, 200, 300]
    assert vector_config(10**4, 30).model.embedding == 15


def test_from_python_it_is_two_calls(text: Path, tmp_path: Path) -> None:
    corpus = library.prepare(text, "corpus", tokenise="simple", lowercase=True, min_count=None, valid_fraction=0)
    assert corpus.manifest["settings"]["min_count"] == 2
    run = library.train_vectors(corpus, run="run", settings={"model.embedding": 5}, threads=1, quiet=True)
    assert run.vectors.dim == 5 and len(run.most_similar("w0", k=3)) == 3


def test_a_text_of_too_few_words_is_refused_in_its_own_terms(lstlm: Call, tmp_path: Path) -> None:
    text = tmp_path / "few.txt"
    text.write_text("water water water\n" * 3)
    done = lstlm("vectors", text, "--out", "few.vec")
    assert done.code == 3 and "a single word of the text is frequent" in done.err and not Path("few.vec").exists()
    text.write_text("water flows and water falls\n" * 3)
    done = lstlm("vectors", text, "--out", "few.vec", "--dim", 5)
    assert done.code == 2 and "--dim 5: the text has 4 different words" in done.err
