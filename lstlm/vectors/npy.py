"""A .npy matrix with its words in a file beside it: opened by memory-mapping, so that only the rows in use are read."""

import gzip
from pathlib import Path
from typing import cast

import numpy as np

from lstlm.errors import DataError
from lstlm.vectors.readers import CHUNK, MAX_WORD_BYTES, Keep, Matrix, bytes_at_most, decode_word, is_gzip, open_bytes

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


def read_vocabulary(path: Path, rows: int) -> dict[str, int]:
    """Read one word a line, `rows` of them; what follows a tab (a count) is ignored. Returns word → row, in order."""
    with open_bytes(path) as stream:
        data = stream.read(rows * (MAX_WORD_BYTES + 64))
        rest = iter(lambda: stream.read(CHUNK), b"")
        last, lines = data[-1:], data.count(b"\n")
        for chunk in rest:
            last, lines = chunk[-1:], lines + chunk.count(b"\n")
    lines += last not in (b"\n", b"")
    if lines != rows:
        raise DataError(f"{path}: {lines} lines, but the matrix has {rows} rows; they must be equal")
    return _quick_index(data, rows) or _careful_index(data, path)


def _quick_index(data: bytes, rows: int) -> dict[str, int] | None:
    """The index of a file with nothing odd in it, four times as fast as line by line; None if anything is odd."""
    try:
        lines = data.decode("utf-8").removesuffix("\n").split("\n")
    except UnicodeDecodeError:
        return None
    index = {line.partition("\t")[0]: row for row, line in enumerate(lines)}
    odd = len(index) != rows or "" in index or b"\r" in data or max(map(len, index)) > MAX_WORD_BYTES // 4
    return None if odd else index


def _careful_index(data: bytes, path: Path) -> dict[str, int]:
    index: dict[str, int] = {}
    for number, line in enumerate(data.removesuffix(b"\n").split(b"\n"), 1):
        word = decode_word(line.partition(b"\t")[0].removesuffix(b"\r"), path, f"line {number}")
        # one look-up does for both: a word that was there keeps its old number
        first = index.setdefault(word, number - 1) + 1
        if first != number:
            raise DataError(f"{path}: line {number} repeats the word {word!r} of line {first}; remove one of them")
    return index


def read_npy(path: Path, vocabulary: Path | None, keep: Keep | None) -> tuple[list[str], Matrix, dict[str, int] | None]:
    """Words, the (n,d) matrix and word → row: memory-mapped whole, or a copy of the rows that `keep` accepts."""
    try:
        matrix = _load_packed(path) if is_gzip(path) else np.load(path, mmap_mode="r", allow_pickle=False)
    except (DataError, OSError):
        raise
    except Exception as error:  # numpy reads the header as Python, which has many ways to find it wrong
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise DataError(f"{path}: not a readable .npy file: {reason}") from error
    if not isinstance(matrix, np.ndarray) or matrix.ndim != 2 or matrix.dtype.kind != "f" or 0 in matrix.shape:
        shape, dtype = getattr(matrix, "shape", "?"), getattr(matrix, "dtype", "?")
        raise DataError(f"{path}: holds {dtype} of shape {shape}; needed: a non-empty float matrix (words, length)")
    index = read_vocabulary(vocabulary or vocabulary_beside(path), len(matrix))
    if keep is None:
        return list(index), matrix, index
    rows = [row for word, row in index.items() if keep(word)]
    chosen = np.asarray(matrix[rows])
    finite = np.isfinite(chosen).all(axis=1)
    if not finite.all():
        raise DataError(f"{path}: row {rows[int(np.argmin(finite))] + 1} holds a value that is not finite")
    words = list(index)
    return [words[row] for row in rows], chosen, None


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
