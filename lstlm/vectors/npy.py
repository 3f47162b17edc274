"""A .npy matrix with its words in a file beside it: opened by memory-mapping, so that only the rows in use are read."""

import gzip
from pathlib import Path
from typing import cast

import numpy as np

from lstlm.errors import DataError
from lstlm.vectors.readers import MAX_WORD_BYTES, Keep, Matrix, bytes_at_most, is_gzip, open_bytes

MAGIC = b"\x93NUMPY"


def is_npy(path: Path) -> bool:
    with open_bytes(path) as stream:
        return stream.read(len(MAGIC)) == MAGIC


def vocabulary_beside(path: Path) -> Path:
    """The words of `name.npy`: name.vocab.tsv, name.vocab, name.txt, else vocab.tsv or vocab.txt in the same folder."""
    stem = path.name.removesuffix(".gz").removesuffix(".npy")
    names = [f"{stem}.vocab.tsv", f"{stem}.vocab.txt", f"{stem}.vocab", f"{stem}.txt", "vocab.tsv", "vocab.txt"]
    for name in names:
        if (path.parent / name).is_file():
            return path.parent / name
    raise DataError(f"{path}: no words found beside it; looked for {', '.join(names)}; name the file with --vocab")


def read_vocabulary(path: Path) -> list[str]:
    """Read one word a line; what follows a tab (a count) is ignored."""
    words: list[str] = []
    with open_bytes(path) as stream:
        while line := stream.readline(MAX_WORD_BYTES + 64):
            raw = line.rstrip(b"\r\n").partition(b"\t")[0]
            if not raw or len(raw) > MAX_WORD_BYTES:
                where = f"{path}: line {len(words) + 1}"
                raise DataError(f"{where} has a word of {len(raw)} bytes; a word has 1 to {MAX_WORD_BYTES} bytes")
            try:
                words.append(raw.decode("utf-8"))
            except UnicodeDecodeError as error:
                raise DataError(f"{path}: line {len(words) + 1} is not UTF-8 ({raw[:40]!r})") from error
    _refuse_repeats(words, path)
    return words


def read_npy(path: Path, vocabulary: Path | None, keep: Keep | None) -> tuple[list[str], Matrix]:
    """Return words and the (n,d) matrix: memory-mapped whole, or a copy of the rows that `keep` accepts."""
    words = read_vocabulary(vocabulary or vocabulary_beside(path))
    try:
        matrix = _load_packed(path) if is_gzip(path) else np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError, SyntaxError, OverflowError, MemoryError) as error:
        raise DataError(f"{path}: not a readable .npy file: {str(error).splitlines()[0]}") from error
    if not isinstance(matrix, np.ndarray) or matrix.ndim != 2 or matrix.dtype.kind != "f" or 0 in matrix.shape:
        shape, dtype = getattr(matrix, "shape", "?"), getattr(matrix, "dtype", "?")
        raise DataError(f"{path}: holds {dtype} of shape {shape}; needed: a non-empty float matrix (words, length)")
    if len(words) != len(matrix):
        beside = vocabulary or vocabulary_beside(path)
        raise DataError(f"{path}: {len(matrix)} rows, but {beside} has {len(words)} words")
    if keep is None:
        return words, matrix
    rows = [row for row, word in enumerate(words) if keep(word)]
    chosen = np.asarray(matrix[rows])
    finite = np.isfinite(chosen).all(axis=1)
    if not finite.all():
        raise DataError(f"{path}: row {rows[int(np.argmin(finite))] + 1} holds a value that is not finite")
    return [words[row] for row in rows], chosen


def _load_packed(path: Path) -> Matrix:
    with open_bytes(path) as stream:
        version = np.lib.format.read_magic(stream)
        reader = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = reader(stream)
        needed = int(np.prod([int(n) for n in shape], dtype=object)) * dtype.itemsize
        if needed > bytes_at_most(path):
            raise DataError(f"{path}: the header promises shape {shape}, more than the file can hold")
    with gzip.open(path, "rb") as packed:
        return cast(Matrix, np.lib.format.read_array(packed, allow_pickle=False))


def _refuse_repeats(words: list[str], path: Path) -> None:
    if len(set(words)) == len(words):
        return
    seen: dict[str, int] = {}
    for number, word in enumerate(words, 1):
        if word in seen:
            raise DataError(f"{path}: line {number} repeats the word {word!r} of line {seen[word]}; remove one of them")
        seen[word] = number
