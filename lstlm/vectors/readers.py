"""Read word vectors from files that other tools wrote: word2vec text and binary, GloVe, fastText .vec; gzipped or not.

A file is never trusted: sizes in a header are checked against the bytes that can follow, rows are read into an array
that grows with what was really there, and every refusal names the file and the line or row.
"""

import gzip
import io
import re
import zlib
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np

from lstlm.errors import DataError

Matrix = np.ndarray[Any, np.dtype[Any]]
Keep = Callable[[str], bool]

MAX_WORD_BYTES = 1024
MAX_DIM = 65_536
MAX_NUMBER_BYTES = 64
MAX_FIRST_LINE = 1 << 20
CHUNK = 1 << 20
# deflate cannot pack better than 1032 to 1, so a gzip file bounds what it can unfold to
MAX_GZIP_RATIO = 1032

_HEADER = re.compile(rb"\s*([+-]?\d{1,18})[ \t]+([+-]?\d{1,18})\s*")
_NOT_VECTORS = {
    b"\x80": "a Python pickle, which is never loaded: save it in word2vec format instead",
    b"PK\x03\x04": "a zip archive: unpack it first",
    b"\xba\x16\x4f\x2f": "a fastText .bin model: use the .vec file beside it",
    b"BZh": "a bzip2 file: unpack it, or gzip it",
    b"\xfd7zXZ": "an xz file: unpack it, or gzip it",
}


@dataclass(frozen=True)
class Layout:
    """What the first bytes of a vector file say: the rows promised (None without a header) and the row length."""

    kind: str  # "text" | "binary"
    count: int | None
    dim: int
    first_row_line: int  # 1-based line of the first vector, for messages


def is_gzip(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(2) == b"\x1f\x8b"


@contextmanager
def open_bytes(path: Path) -> Iterator[BinaryIO]:
    """Open a plain or gzipped file for buffered reading; damage and absence become one DataError."""
    try:
        if is_gzip(path):
            with gzip.open(path, "rb") as packed:
                yield cast(BinaryIO, io.BufferedReader(cast(Any, packed), CHUNK))
        else:
            with path.open("rb", CHUNK) as plain:
                yield plain
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such file") from error
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path}: the gzip data is damaged or cut short ({error})") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error


def bytes_at_most(path: Path) -> int:
    """An upper bound on the unpacked size of a file."""
    size = path.stat().st_size
    return size * MAX_GZIP_RATIO + 1024 if is_gzip(path) else size


def read_rows(path: Path, keep: Keep | None = None) -> tuple[list[str], Matrix]:
    """Words and (n,d) float32 of a text or binary vector file; with `keep`, only the rows whose word it accepts."""
    layout = sniff(path)
    words: list[str] = []
    hashes, values = array("q"), array("f")
    pairs = _binary_rows if layout.kind == "binary" else _text_rows
    unit = "row" if layout.kind == "binary" else "line"
    with open_bytes(path) as stream:
        for number, (raw, payload) in enumerate(pairs(stream, path, layout), layout.first_row_line):
            word = decode_word(raw, path, f"{unit} {number}")
            hashes.append(hash(raw))
            kept = keep is None or keep(word)
            # a row that is not kept is parsed where it may hold nan or inf: a file is refused whoever reads it
            if kept or layout.kind == "binary" or b"n" in payload or b"N" in payload:
                vector = _parse(payload, layout, path, f"{unit} {number}")
            if kept:
                words.append(word)
                values.frombytes(vector.tobytes())
    _refuse_duplicates(hashes, path, unit, layout.first_row_line)
    if not hashes:
        raise DataError(f"{path}: holds no vectors")
    return words, np.frombuffer(values, dtype=np.float32).reshape(-1, layout.dim)


def peek(path: Path, rows: int) -> tuple[Layout, list[str]]:
    """What a text or binary vector file is, and its first words."""
    layout = sniff(path)
    pairs = _binary_rows if layout.kind == "binary" else _text_rows
    with open_bytes(path) as stream:
        first = islice(pairs(stream, path, layout), rows)
        return layout, [decode_word(raw, path, f"row {number}") for number, (raw, _) in enumerate(first, 1)]


def sniff(path: Path) -> Layout:
    """Tell text from binary and header from none by the first bytes; refuse impossible sizes before any allocation."""
    with open_bytes(path) as stream:
        first = stream.readline(MAX_FIRST_LINE)
        if not first.strip():
            raise DataError(f"{path}: the first line is empty: not a vector file")
        for magic, advice in _NOT_VECTORS.items():
            if first.startswith(magic):
                raise DataError(f"{path}: {advice}")
        header = _HEADER.fullmatch(first)
        if header is None:
            return _sniff_headless(first, path)
        count, dim = int(header[1]), int(header[2])
        if count < 1 or not 1 <= dim <= MAX_DIM:
            limits = f"needed: at least 1, of length 1 to {MAX_DIM}"
            raise DataError(f"{path}: the header says {count} vectors of length {dim}; {limits}")
        sample = stream.read(MAX_WORD_BYTES + 4 * dim + 2)
    kind = "binary" if _looks_binary(sample, dim) else "text"
    # numbers alone, without words and blanks: a row that lacks one is better reported by its line
    smallest = count * dim * (4 if kind == "binary" else 1)
    if smallest > bytes_at_most(path) - len(first):
        raise DataError(
            f"{path}: the header promises {count} vectors of length {dim}, more than the file holds; "
            "the file is cut short or its header is wrong"
        )
    return Layout(kind, count, dim, first_row_line=1 if kind == "binary" else 2)


def _sniff_headless(first: bytes, path: Path) -> Layout:
    """GloVe's form: the first line is a row already, and its length gives the dimension."""
    if len(first) >= MAX_FIRST_LINE:
        raise DataError(f"{path}: line 1 is longer than {MAX_FIRST_LINE} bytes: not a vector file")
    dim = len(first.split()) - 1
    numbers = first.split()[1:]
    if dim < 1 or not _is_number(numbers[-1]):
        raise DataError(f"{path}: line 1 is neither a 'count length' header nor a word followed by numbers")
    # a first word with spaces inside would shift the count; numbers start where the tail of the line is all numeric
    while dim > 1 and not _is_number(numbers[-dim]):
        dim -= 1
    return Layout("text", None, dim, first_row_line=1)


def _is_number(field: bytes) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return True


def _looks_binary(sample: bytes, dim: int) -> bool:
    """True if the bytes after the first word are not the printable characters of numbers."""
    _, space, rest = sample.lstrip(b"\n").partition(b" ")
    values = rest[: 4 * dim].partition(b"\n")[0]
    if not space or not rest:
        return False
    return not values or any(byte != 9 and byte != 13 and not 32 <= byte < 127 for byte in values)


def _text_rows(stream: BinaryIO, path: Path, layout: Layout) -> Iterator[tuple[bytes, bytes]]:
    """Yield (word, numbers) a line; the last `dim` fields are numbers, so a word may hold spaces (GloVe has such)."""
    dim, number = layout.dim, layout.first_row_line - 1
    limit = MAX_WORD_BYTES + dim * (MAX_NUMBER_BYTES + 1) + 2
    if layout.count is not None:
        stream.readline()
    while line := stream.readline(limit):
        number += 1
        if len(line) == limit and not line.endswith(b"\n"):
            raise DataError(f"{path}: line {number} is longer than the {limit} bytes of a word and {dim} numbers")
        line = line.rstrip(b" \t\r\n")
        if not line and not stream.read(1):
            number -= 1  # one empty line at the very end
            break
        fields = line.replace(b"\t", b" ") if b"\t" in line else line
        found = fields.count(b" ")
        if found < dim or not fields:
            raise DataError(f"{path}: line {number} has {found} numbers, expected {dim}")
        if found == dim:
            word, _, payload = fields.partition(b" ")
        else:
            parts = fields.rsplit(b" ", dim)
            word, payload = parts[0], b" ".join(parts[1:])
        if layout.count is not None and number - 1 > layout.count:
            raise DataError(f"{path}: line {number} is beyond the {layout.count} vectors that the header promises")
        yield word, payload
    if layout.count is not None and number - 1 < layout.count:
        raise DataError(f"{path}: the header promises {layout.count} vectors, the file holds {number - 1}")


def _binary_rows(stream: BinaryIO, path: Path, layout: Layout) -> Iterator[tuple[bytes, bytes]]:
    """Yield (word, 4·dim bytes) a row; a line feed before a word, as the first tool wrote it, is skipped."""
    count, width = cast(int, layout.count), 4 * layout.dim
    stream.readline()
    buffer, at, room = b"", 0, MAX_WORD_BYTES + 3 + width
    for row in range(1, count + 1):
        if len(buffer) - at < room:
            buffer, at = buffer[at:] + stream.read(max(CHUNK, room)), 0
        if buffer[at : at + 1] == b"\n":
            at += 1
        space = buffer.find(b" ", at, at + MAX_WORD_BYTES + 1)
        if space < 0 and len(buffer) - at > MAX_WORD_BYTES:
            raise DataError(f"{path}: row {row} has a word longer than {MAX_WORD_BYTES} bytes; the file is damaged")
        end = space + 1 + width
        if space < 0 or end > len(buffer):
            raise DataError(f"{path}: the header promises {count} vectors, the file ends inside row {row}")
        yield buffer[at:space], buffer[space + 1 : end]
        at = end
    if (buffer[at:] + stream.read(CHUNK)).strip():
        raise DataError(f"{path}: bytes follow after the {count} vectors that the header promises")


def decode_word(raw: bytes, path: Path, where: str) -> str:
    """The word of some bytes; empty, over-long and non-UTF-8 ones are refused with their place."""
    if not raw or len(raw) > MAX_WORD_BYTES:
        limits = f"a word has 1 to {MAX_WORD_BYTES} bytes"
        raise DataError(f"{path}: {where} has a word of {len(raw)} bytes; {limits}")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: {where} has a word that is not UTF-8 ({raw[:40]!r}); re-encode the file") from error


def _parse(payload: bytes, layout: Layout, path: Path, where: str) -> Matrix:
    if layout.kind == "binary":
        vector = np.frombuffer(payload, dtype="<f4")
    else:
        try:
            # through float64, as other readers do; a shortest float32 text comes back to the same bits
            with np.errstate(over="ignore"):
                vector = np.array(payload.split(b" "), dtype=np.float64).astype(np.float32)
        except ValueError as error:
            raise DataError(f"{path}: {where} holds a field that is no number ({error})") from error
    if not np.isfinite(vector).all():
        raise DataError(f"{path}: {where} holds a value that is not finite in float32")
    return vector


def _refuse_duplicates(hashes: "array[int]", path: Path, unit: str, first: int) -> None:
    """Find a repeated word by its 64-bit hash: 8 bytes a row, where the words themselves would be some 100."""
    values = np.frombuffer(hashes, dtype=np.int64)
    order = np.argsort(values, kind="stable")
    same = np.flatnonzero(values[order[1:]] == values[order[:-1]])
    if same.size:
        at = min((int(order[i + 1]), int(order[i])) for i in same)
        raise DataError(f"{path}: {unit} {at[0] + first} repeats the word of {unit} {at[1] + first}; remove one")
