"""Files of human judgements: word pairs in the forms in which they are published, and where to find them."""

import csv
import importlib.util
import io
import math
import os
import re
import urllib.error
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

from lstlm.data.download import open_address
from lstlm.errors import DataError
from lstlm.files import replacing

SIMLEX_URL = "https://fh295.github.io/SimLex-999.zip"
SIMLEX_PAIRS = 999
_MAX_BYTES = 64 << 20  # the largest published list is under 1 MB
_POS_SUFFIX = re.compile(r"(.+)-([nvjr])")
_SCORE_NAMES = ("simlex999", "score", "similarity", "human (mean)", "human", "mean", "rating", "relatedness")
_POS_NAMES = {"A": "adjectives", "J": "adjectives", "N": "nouns", "V": "verbs", "R": "adverbs"}
_FILES = {
    "simlex": ("SimLex-999.txt", "SimLex-999/SimLex-999.txt", "simlex999.txt", "EN-SIMLEX-999.txt"),
    "wordsim": ("wordsim353.tsv", "wordsim353/combined.tab", "combined.csv", "EN-WS-353-ALL.txt"),
    "analogy": ("questions-words.txt",),
}
_IN_GENSIM = {"simlex": "simlex999.txt", "wordsim": "wordsim353.tsv", "analogy": "questions-words.txt"}


@dataclass(frozen=True)
class Pair:
    """Two words, the mean human judgement of their similarity, and their part of speech where the file tells it."""

    first: str
    second: str
    score: float
    pos: str | None = None


def read_text(path: Path) -> str:
    """The text of a small data file; a byte-order mark is dropped."""
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise DataError(f"{path}: {path.stat().st_size} bytes; a list of word pairs has at most {_MAX_BYTES}")
        return path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such file") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: byte {error.start} is not UTF-8; re-encode the file") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error


def read_pairs(path: str | Path) -> list[Pair]:
    """Read `word word score` lines (tabs, commas or blanks), or columns named by a header such as SimLex-999's own.

    Lines that start with # and empty lines are skipped; any other that does not fit is an error with its number.
    """
    path = Path(path)
    lines = [(n, line.strip()) for n, line in enumerate(read_text(path).split("\n"), 1)]
    lines = [(n, line) for n, line in lines if line and not line.startswith("#")]
    if not lines:
        raise DataError(f"{path}: holds no word pairs")
    rows = [(n, _fields(line)) for n, line in lines]
    columns, start = _columns(rows[0][1], path, rows[0][0])
    pairs = [_pair(fields, columns, path, n) for n, fields in rows[start:]]
    if not pairs:
        raise DataError(f"{path}: holds a header but no word pairs")
    return _strip_pos_suffixes(_name_simlex_parts(pairs))


@dataclass(frozen=True)
class _Columns:
    score: int
    pos: int | None
    width: int


def _fields(line: str) -> list[str]:
    if "\t" in line:
        return [field.strip() for field in line.split("\t")]
    if "," in line or ";" in line:
        return [field.strip() for field in next(csv.reader([line], delimiter="," if "," in line else ";"))]
    return line.split()


def _columns(first: list[str], path: Path, number: int) -> tuple[_Columns, int]:
    """Where the score and the part of speech are, and whether the first line is a header (1) or a pair (0)."""
    scores = [at for at, field in enumerate(first) if at >= 2 and _finite(field)]
    if scores:
        pos = 2 if scores[0] == 3 and first[2].upper() in _POS_NAMES else None
        if scores[0] != 2 and pos is None:
            raise DataError(f"{path}: line {number}: expected 'word word score', got {first}")
        return _Columns(scores[0], pos, len(first)), 0
    names = [name.lower() for name in first]
    named = [names.index(name) for name in _SCORE_NAMES if name in names[2:]]
    score = named[0] if named else 2
    if len(first) < 3 or (len(first) > 3 and not named):
        raise DataError(f"{path}: line {number}: neither 'word word score' nor a header with a score column: {first}")
    return _Columns(score, names.index("pos") if "pos" in names else None, len(first)), 1


def _pair(fields: list[str], columns: _Columns, path: Path, number: int) -> Pair:
    if len(fields) != columns.width:
        text = " ".join(fields)[:80]
        raise DataError(f"{path}: line {number} has {len(fields)} fields, expected {columns.width}: {text!r}")
    if not fields[0] or not fields[1]:
        raise DataError(f"{path}: line {number} lacks a word: {' '.join(fields)[:80]!r}")
    if not _finite(fields[columns.score]):
        raise DataError(f"{path}: line {number}: the score {fields[columns.score]!r} is not a finite number")
    pos = None
    if columns.pos is not None:
        tag = fields[columns.pos].upper()
        if tag not in _POS_NAMES:
            raise DataError(f"{path}: line {number}: part of speech {tag!r} is none of {', '.join(sorted(_POS_NAMES))}")
        pos = _POS_NAMES[tag]
    return Pair(fields[0], fields[1], float(fields[columns.score]), pos)


def _finite(field: str) -> bool:
    try:
        return math.isfinite(float(field))
    except ValueError:
        return False


def _strip_pos_suffixes(pairs: list[Pair]) -> list[Pair]:
    """MEN's lemma form writes sun-n: drop the suffix when every word of the list has one."""
    matches = [(_POS_SUFFIX.fullmatch(p.first), _POS_SUFFIX.fullmatch(p.second)) for p in pairs]
    stripped = [Pair(a[1], b[1], p.score, p.pos) for p, (a, b) in zip(pairs, matches, strict=True) if a and b]
    return stripped if len(stripped) == len(pairs) else pairs


def _name_simlex_parts(pairs: list[Pair]) -> list[Pair]:
    """3-column copies of SimLex-999 keep the official order: 111 pairs of adjectives, 666 of nouns, 222 of verbs."""
    landmarks = {0: ("old", "new"), 111: ("wife", "husband"), 777: ("go", "come")}
    known = len(pairs) == SIMLEX_PAIRS and all(pair.pos is None for pair in pairs)
    if not known or any((pairs[at].first, pairs[at].second) != words for at, words in landmarks.items()):
        return pairs
    names = ["adjectives"] * 111 + ["nouns"] * 666 + ["verbs"] * 222
    return [Pair(p.first, p.second, p.score, name) for p, name in zip(pairs, names, strict=True)]


def find_dataset(kind: str, explicit: Path | None = None, data_folder: Path = Path("data")) -> Path:
    """`explicit`, else a known name in the data folder, else gensim's copy where gensim is installed."""
    if explicit is not None:
        if not explicit.is_file():
            raise DataError(f"--pairs {explicit}: no such file")
        return explicit
    candidates = [data_folder / sub / name for sub in ("", "similarity") for name in _FILES[kind]]
    spec = importlib.util.find_spec("gensim")
    if spec is not None and spec.origin is not None:
        candidates.append(Path(spec.origin).parent / "test" / "test_data" / _IN_GENSIM[kind])
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    remedy = {
        "simlex": f"--download fetches it from {SIMLEX_URL}; or pip install gensim, or name the file with --pairs",
        "wordsim": "put a list there, or pip install gensim, or name it with --pairs",
        "analogy": "put questions-words.txt there, or pip install gensim, or name it with --pairs",
    }[kind]
    raise DataError(f"no {kind} file in {data_folder}{os.sep}: {remedy}")


def download_simlex(data_folder: Path = Path("data"), url: str = SIMLEX_URL, timeout: float = 30.0) -> Path:
    """Fetch the official archive, check that it holds 999 pairs, and keep its text file in the data folder."""
    target = data_folder / "SimLex-999" / "SimLex-999.txt"
    by_hand = f"fetch it elsewhere and place the text file at {target}, or name it with --pairs"
    try:
        with open_address(url, timeout) as reply:
            packed = reply.read(_MAX_BYTES + 1)
    except (urllib.error.URLError, OSError, ValueError) as error:
        raise DataError(f"{url}: the download failed ({getattr(error, 'reason', error)}); {by_hand}") from error
    try:
        with zipfile.ZipFile(io.BytesIO(packed)) as archive, archive.open("SimLex-999/SimLex-999.txt") as member:
            text = member.read(_MAX_BYTES)
    except (zipfile.BadZipFile, zlib.error, EOFError, LookupError, OSError, RuntimeError, ValueError) as error:
        raise DataError(f"{url}: not the SimLex-999 archive ({error}); {by_hand}") from error
    target.parent.mkdir(parents=True, exist_ok=True)
    with replacing(target) as partial:
        partial.write_bytes(text)
        if (found := len(read_pairs(partial))) != SIMLEX_PAIRS:
            raise DataError(f"{url}: holds {found} pairs, expected {SIMLEX_PAIRS}; {by_hand}")
    return target
