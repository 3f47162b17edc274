"""Write word vectors as files that gensim, TensorBoard and numpy open. A file appears whole or not at all."""

import gzip
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np

from lstlm.errors import ConfigError, DataError, LstlmError
from lstlm.files import replacing
from lstlm.vectors.readers import MAX_WORD_BYTES
from lstlm.vectors.table import Vectors

OnRows = Callable[[int], None]
"""Told how many more rows have been written."""

_BLOCK_ROWS = 512  # as text in numpy a number takes 32 bytes
_UNWRITABLE = re.compile(r"[ \t\r\n\x00]")
_LABEL_BREAKERS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def outputs(form: str, target: Path) -> list[Path]:
    """The files that a format writes for `--out target`."""
    if form == "projector":
        return [target / name for name in ("vectors.tsv", "metadata.tsv", "projector_config.pbtxt")]
    if form in ("npy", "safetensors"):
        name = target.name.removesuffix(f".{form}")
        return [target.with_name(f"{name}.{form}"), target.with_name(f"{name}.vocab.tsv")]
    return [target]


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """Open a file that takes its name, and makes its folders, only if everything was written; .gz is packed."""
    made = [folder for folder in (path.parent, *path.parent.parents) if not folder.exists()]  # the innermost first
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as partial, partial.open("wb") as file:
            if path.suffix == ".gz":
                # no name and no time inside: the same vectors give the same file
                with gzip.GzipFile("", "wb", compresslevel=6, fileobj=file, mtime=0) as packed:
                    yield cast(BinaryIO, packed)
            else:
                yield file
    except BaseException as error:
        with suppress(OSError):  # folders that were made for nothing
            for folder in made:
                folder.rmdir()
        if isinstance(error, OSError):
            raise LstlmError(f"{path}: cannot be written: {error.strerror or error}") from error
        raise


def _blocks(vectors: Vectors, on_rows: OnRows) -> Iterator[tuple[int, Any]]:
    """Yield (first row, float32 block); refuse values that no reader would take back."""
    for start in range(0, len(vectors), _BLOCK_ROWS):
        with np.errstate(over="ignore"):
            block = np.ascontiguousarray(vectors.matrix[start : start + _BLOCK_ROWS], dtype="<f4")
        finite = np.isfinite(block).all(axis=1)
        if not finite.all():
            word = vectors.words[start + int(np.argmin(finite))]
            raise DataError(f"the vector of {word!r} holds a value that is not finite in float32; nothing was written")
        yield start, block
        on_rows(len(block))


def _checked(word: str) -> bytes:
    """The bytes of a word, refused where the word2vec forms cannot hold it: they end a word at a space."""
    raw = word.encode("utf-8")
    if not raw or len(raw) > MAX_WORD_BYTES or _UNWRITABLE.search(word):
        raise DataError(
            f"the word {word[:60]!r} is empty, over {MAX_WORD_BYTES} bytes or holds a blank: "
            "word2vec files cannot hold it; use --format npy"
        )
    return raw


def write_word2vec(vectors: Vectors, path: Path, on_rows: OnRows = lambda rows: None) -> list[Path]:
    """Text: 'n d', then 'word v1 … vd' a line, each number the shortest that reads back to the same float32."""
    with whole_file(path) as file:
        file.write(b"%d %d\n" % (len(vectors), vectors.dim))
        for start, block in _blocks(vectors, on_rows):
            for row, numbers in enumerate(block.astype("S32").tolist(), start):
                file.write(_checked(vectors.words[row]) + b" " + b" ".join(numbers) + b"\n")
    return [path]


def write_word2vec_binary(vectors: Vectors, path: Path, on_rows: OnRows = lambda rows: None) -> list[Path]:
    """Binary: 'n d', then the word, a space, d little-endian float32 and a line feed."""
    with whole_file(path) as file:
        file.write(b"%d %d\n" % (len(vectors), vectors.dim))
        for start, block in _blocks(vectors, on_rows):
            for row, values in enumerate(block, start):
                file.write(_checked(vectors.words[row]) + b" " + values.tobytes() + b"\n")
    return [path]


def write_npy(vectors: Vectors, path: Path, on_rows: OnRows = lambda rows: None) -> list[Path]:
    """`name.npy`, (n,d) in the dtype of training, and `name.vocab.tsv` beside it: word, tab, count."""
    path, words = outputs("npy", path)
    with whole_file(path) as file:
        np.lib.format.write_array(file, np.ascontiguousarray(vectors.matrix), allow_pickle=False)
    return [path, _write_vocabulary(vectors, words)]


def write_safetensors(vectors: Vectors, path: Path, on_rows: OnRows = lambda rows: None) -> list[Path]:
    """`name.safetensors` with one tensor `vectors` (n,d), and `name.vocab.tsv` beside it."""
    try:
        from safetensors.numpy import save
    except ImportError as error:
        raise ConfigError("--format safetensors needs the safetensors package: pip install safetensors") from error
    path, words = outputs("safetensors", path)
    with whole_file(path) as file:
        file.write(save({"vectors": np.ascontiguousarray(vectors.matrix)}))
    return [path, _write_vocabulary(vectors, words)]


def write_projector(vectors: Vectors, folder: Path, on_rows: OnRows = lambda rows: None) -> list[Path]:
    """A folder for `tensorboard --logdir`: vectors.tsv, metadata.tsv and projector_config.pbtxt."""
    tensors, labels, config = outputs("projector", folder)
    with whole_file(tensors) as file:
        for _, block in _blocks(vectors, on_rows):
            file.writelines(b"\t".join(row) + b"\n" for row in block.astype("S32").tolist())
    with whole_file(labels) as file:
        # one column has no header line in the projector's format, two columns must have one
        if vectors.counts is None:
            file.writelines(label(word).encode() + b"\n" for word in vectors.words)
        else:
            file.write(b"word\tcount\n")
            pairs = zip(vectors.words, vectors.counts, strict=True)
            file.writelines(f"{label(word)}\t{int(count)}\n".encode() for word, count in pairs)
    with whole_file(config) as file:
        text = 'embeddings {{\n  tensor_name: "words"\n  tensor_path: "{}"\n  metadata_path: "{}"\n}}\n'
        file.write(text.format(tensors.name, labels.name).encode())
    return [tensors, labels, config]


def label(word: str) -> str:
    """A word as one visible label: control and line-breaking characters become '?', blank ones '_'."""
    cleaned = _LABEL_BREAKERS.sub("?", word)
    return cleaned if cleaned.strip() else "_" * max(1, len(cleaned))


def _write_vocabulary(vectors: Vectors, path: Path) -> Path:
    with whole_file(path) as file:
        for row, word in enumerate(vectors.words):
            if not word or re.search(r"[\t\r\n]", word):
                raise DataError(
                    f"the word {word[:60]!r} is empty or holds a tab or line break: a vocabulary cannot hold it"
                )
            count = "" if vectors.counts is None else f"\t{int(vectors.counts[row])}"
            file.write(f"{word}{count}\n".encode())
    return path


WRITERS: dict[str, Callable[[Vectors, Path, OnRows], list[Path]]] = {
    "word2vec": write_word2vec,
    "word2vec-bin": write_word2vec_binary,
    "npy": write_npy,
    "projector": write_projector,
    "safetensors": write_safetensors,
}
