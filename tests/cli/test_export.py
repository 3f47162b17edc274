"""`lstlm export`: what gensim, numpy and TensorBoard open is bit for bit what was trained."""

import gzip
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from lstlm.training.run.saved import load_run
from lstlm.vectors import load_vectors

Call = Callable[..., object]


@pytest.mark.parametrize("which", ["input", "output", "sum"])
@pytest.mark.parametrize("form", ["word2vec", "word2vec-bin", "npy"])
def test_a_run_reads_back_bit_for_bit(lstlm: Call, run_z: Path, tmp_path: Path, form: str, which: str) -> None:
    done = lstlm("export", run_z, "--format", form, "--out", tmp_path / "v", "--which", which)
    assert done.code == 0, done.err
    back = load_vectors(done.out.splitlines()[0])
    run = load_run(run_z)
    tables = {"input": run.network.input_vectors(), "output": run.network.output_vectors()}
    tables["sum"] = tables["input"] + tables["output"]
    assert list(back.words) == run.vocabulary.words
    assert np.asarray(back.matrix).tobytes() == tables[which].detach().numpy().tobytes()


def test_gensim_opens_and_scores_it_as_we_do(lstlm: Call, run_z: Path, tmp_path: Path) -> None:
    models = pytest.importorskip("gensim.models")
    from gensim.test.utils import datapath

    path = tmp_path / "v.bin"
    assert lstlm("export", run_z, "--format", "word2vec-bin", "--out", path).code == 0
    theirs = models.KeyedVectors.load_word2vec_format(str(path), binary=True)
    pearson, spearman, _ = theirs.evaluate_word_pairs(datapath("simlex999.txt"))
    for source in (run_z, path):
        ours = lstlm("eval", "simlex", source, "--json").json()
        assert ours["spearman"] == pytest.approx(spearman.statistic, abs=1e-6)
        assert ours["pearson"] == pytest.approx(pearson.statistic, abs=1e-6)


def test_projector_and_limit(lstlm: Call, run_z: Path, tmp_path: Path) -> None:
    done = lstlm("export", run_z, "--format", "projector", "--out", tmp_path / "p", "--limit", 5, "--json")
    document = done.json()
    assert (document["words"], document["dim"], len(document["files"])) == (5, 6, 3)
    vectors, metadata, _ = (Path(name).read_text().splitlines() for name in document["files"])
    assert (len(vectors), metadata[0], len(metadata)) == (5, "word\tcount", 6)


def test_a_vector_file_is_converted(lstlm: Call, tmp_path: Path) -> None:
    source = tmp_path / "glove.txt"
    source.write_text("the 0.1 0.2\ncat 0.3 0.4\n")
    assert lstlm("export", source, "--format", "npy", "--out", tmp_path / "g.npy").code == 0
    assert lstlm("export", tmp_path / "g.npy", "--format", "word2vec", "--out", tmp_path / "g.txt").code == 0
    assert (tmp_path / "g.txt").read_text() == "2 2\nthe 0.1 0.2\ncat 0.3 0.4\n"


def test_words_without_a_vector_are_left_out_and_counted(lstlm: Call, tmp_path: Path) -> None:
    source = tmp_path / "v.txt"
    source.write_text("3 2\nthe 1 2\nnone 0 0\ncat 3 4\n")
    done = lstlm("export", source, "--format", "word2vec", "--out", tmp_path / "w.txt")
    assert (tmp_path / "w.txt").read_text() == "2 2\nthe 1.0 2.0\ncat 3.0 4.0\n"
    assert done.err == "2 vectors of length 2; 1 words without a vector left out\n"
    source.write_text("1 2\nnone 0 0\n")
    done = lstlm("export", source, "--format", "npy", "--out", tmp_path / "x.npy")
    assert (done.code, "all 1 vectors are zero" in done.err, (tmp_path / "x.npy").exists()) == (3, True, False)


@pytest.mark.parametrize("form", ["word2vec", "word2vec-bin"])
def test_a_name_that_ends_with_gz_is_compressed(lstlm: Call, run_z: Path, tmp_path: Path, form: str) -> None:
    plain, packed = tmp_path / "v", tmp_path / "v.gz"
    for path in (plain, packed):
        assert lstlm("export", run_z, "--format", form, "--out", path).code == 0
    assert packed.read_bytes()[:2] == b"\x1f\x8b"
    assert gzip.decompress(packed.read_bytes()) == plain.read_bytes()
    np.testing.assert_array_equal(load_vectors(packed).matrix, load_vectors(plain).matrix)


def test_nothing_is_overwritten_unasked(lstlm: Call, run_z: Path, tmp_path: Path) -> None:
    words = tmp_path / "v.vocab.tsv"
    words.write_text("precious")
    done = lstlm("export", run_z, "--format", "npy", "--out", tmp_path / "v.npy")
    assert (done.code, done.out) == (2, "")
    assert done.err == f"lstlm: error: --out {words}: exists; choose another name or add --force\n"
    assert (words.read_text(), list(tmp_path.iterdir())) == ("precious", [words])
    assert lstlm("export", run_z, "--format", "npy", "--out", tmp_path / "v.npy", "--force").code == 0


def test_refusals(lstlm: Call, run_window: Path, tmp_path: Path) -> None:
    done = lstlm("export", run_window, "--format", "npy", "--out", tmp_path / "v", "--which", "sum")
    assert done.code == 2
    assert "--which sum needs input and output vectors of one length; these have 6 and 5" in done.err
    (tmp_path / "file").touch()
    done = lstlm("export", run_window, "--format", "word2vec", "--out", tmp_path / "file" / "v")
    assert (done.code, done.err.count("\n"), f"{tmp_path / 'file'} is a file" in done.err) == (2, 1, True)
    done = lstlm("export", run_window, "--format", "projector", "--out", tmp_path / "file")
    assert (done.code, done.err.count("\n"), f"{tmp_path / 'file'} is a file" in done.err) == (2, 1, True)
    os.mkfifo(tmp_path / "pipe")  # a device, /dev/stdout for one, would be replaced by a file
    for place in (tmp_path, tmp_path / "pipe"):
        done = lstlm("export", run_window, "--format", "word2vec", "--out", place, "--force")
        assert (done.code, done.err) == (2, f"lstlm: error: --out {place}: is a folder or a device; name a file\n")
    assert lstlm("export", run_window, "--format", "onnx", "--out", tmp_path / "v").code == 2


def test_oov_words_follow_the_others(lstlm: Call, run_z: Path, tmp_path: Path) -> None:
    words = tmp_path / "words.txt"
    words.write_text("husbands 12\nold\n\nШ\n")
    done = lstlm("export", run_z, "--format", "word2vec", "--out", tmp_path / "v.txt", "--oov", words, "--limit", 20)
    assert done.code == 0 and f"1 words of {words} have no vector and get one by their spelling" in done.err
    back = load_vectors(tmp_path / "v.txt")
    assert (len(back), back.words[-1]) == (21, "husbands")
    done = lstlm("export", run_z, "--format", "word2vec", "--out", tmp_path / "w.txt", "--oov", tmp_path / "absent")
    assert (done.code, (tmp_path / "w.txt").exists()) == (3, False)
