"""What is written for others: whole or not at all, labels that cannot break a table, words that fit the format."""

from pathlib import Path

import numpy as np
import pytest

from lstlm.errors import DataError
from lstlm.vectors import Vectors
from lstlm.vectors.writers import WRITERS, label, outputs


def test_projector_files_are_what_tensorboard_expects(tmp_path: Path) -> None:
    projector = pytest.importorskip("tensorboard.plugins.projector")
    from google.protobuf import text_format

    vectors = Vectors(["the", "a\tb", "c\nd", " "], np.arange(8, dtype=np.float32).reshape(4, 2), [4, 3, 2, 1])
    tensors, metadata, config = WRITERS["projector"](vectors, tmp_path / "p")
    parsed = text_format.Parse(config.read_text(), projector.ProjectorConfig())
    assert (parsed.embeddings[0].tensor_path, parsed.embeddings[0].metadata_path) == (tensors.name, metadata.name)
    assert metadata.read_text().split("\n") == ["word\tcount", "the\t4", "a?b\t3", "c?d\t2", "_\t1", ""]
    np.testing.assert_array_equal(np.loadtxt(tensors, delimiter="\t", dtype=np.float32), vectors.matrix)


def test_projector_without_counts_has_no_header(tmp_path: Path) -> None:
    files = WRITERS["projector"](Vectors(["x", "y"], np.eye(2, dtype=np.float32)), tmp_path)
    assert files[1].read_text() == "x\ny\n"


def test_labels() -> None:
    assert [label(word) for word in ("plain", "\u2028", "\x85x", "\u00a0", "日本")] == ["plain", "?", "?x", "_", "日本"]


def test_safetensors(tmp_path: Path) -> None:
    load_file = pytest.importorskip("safetensors.numpy").load_file
    vectors = Vectors(["x", "y"], np.eye(2, dtype=np.float64), [2, 1])
    path, words = WRITERS["safetensors"](vectors, tmp_path / "v.safetensors")
    np.testing.assert_array_equal(load_file(path)["vectors"], vectors.matrix)
    assert words.read_text() == "x\t2\ny\t1\n"


@pytest.mark.parametrize("form", WRITERS)
def test_every_writer_writes_just_what_it_announces(tmp_path: Path, form: str) -> None:
    if form == "safetensors":
        pytest.importorskip("safetensors")
    written = WRITERS[form](Vectors(["x", "y"], np.eye(2, dtype=np.float32)), tmp_path / "new" / "v")
    assert written == outputs(form, tmp_path / "new" / "v")
    assert sorted(path for path in (tmp_path / "new").rglob("*") if path.is_file()) == sorted(written)


@pytest.mark.parametrize("word", ["", "a b", "a\tb", "x" * 1025])
@pytest.mark.parametrize("form", ["word2vec", "word2vec-bin"])
def test_words_that_would_break_the_file_are_refused_and_leave_nothing(tmp_path: Path, form: str, word: str) -> None:
    path = tmp_path / "v"
    path.write_text("the old one")
    with pytest.raises(DataError, match="word2vec files cannot hold it"):
        WRITERS[form](Vectors(["fine", word], np.eye(2, dtype=np.float32)), path)
    assert path.read_text() == "the old one"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("form", ["word2vec", "word2vec-bin", "projector"])
def test_values_that_no_reader_takes_are_refused(tmp_path: Path, form: str) -> None:
    with pytest.raises(DataError, match="the vector of 'b' holds a value that is not finite"):
        WRITERS[form](Vectors(["a", "b"], np.array([[1.0], [1e39]])), tmp_path / "v")
    assert list(tmp_path.rglob("*.*")) == []
