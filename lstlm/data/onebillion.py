"""The One Billion Word benchmark (Chelba et al., 2013): the official archive, streamed, or its extracted folder.

Layout: 99 training shards `news.en-000NN-of-00100` and 50 held-out shards `news.en.heldout-000NN-of-00050`,
tokenised, one shuffled sentence a line. Held-out shard 00000 is the customary test text, so it becomes the part
`test`; the others become `valid`. With `--min-count 3` the vocabulary has 793,471 entries: 793,468 words and the
specials (which that vocabulary's own file spells `<S> </S> <UNK>`).
"""

from __future__ import annotations

import re
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, cast

from lstlm.data.download import download_file
from lstlm.data.inputs import CappedReader, FileSource, HashingReader, OnBytes, TextInput, TextSource, unpack
from lstlm.errors import DataError

NAME = "1-billion-word-language-modeling-benchmark-r13output"
ARCHIVE = f"{NAME}.tar.gz"
ADDRESS = f"https://www.statmt.org/lm-benchmark/{ARCHIVE}"
ARCHIVE_BYTES = 1_792_209_805
TRAIN_SHARDS, HELD_OUT_SHARDS = 99, 50

_TRAIN = re.compile(r"training-monolingual\.tokenized\.shuffled/news\.en-000\d\d-of-00100")
_HELD_OUT = re.compile(r"heldout-monolingual\.tokenized\.shuffled/news\.en\.heldout-000\d\d-of-00050")
_UNSOUND = (tarfile.TarError, OverflowError, ValueError)  # the latter two of numbers in a damaged header
_TEST = "news.en.heldout-00000-of-00050"


def part_of(name: str) -> str | None:
    """Return the part that a member or file belongs to by the last two pieces of its name, None if to none."""
    pieces = PurePosixPath(name).parts
    tail = "/".join(pieces[-2:])
    if _TRAIN.fullmatch(tail):
        return "train"
    if _HELD_OUT.fullmatch(tail):
        return "test" if pieces[-1] == _TEST else "valid"
    return None


def open_one_billion(archive: Path | None, *, download: bool, data_folder: Path, max_bytes: int) -> TextSource:
    """Find the benchmark: `archive` (.tar.gz or extracted folder), else in the data folder, else download it."""
    if archive is not None:
        if not archive.exists():
            raise DataError(f"--archive {archive}: no such file or folder")
        return _open(archive, max_bytes)
    places = (data_folder / NAME, data_folder / ARCHIVE)
    for place in places:
        if place.exists():
            return _open(place, max_bytes)
    if not download:
        raise DataError(
            f"the One Billion Word archive is neither {places[0]} nor {places[1]}: name it with --archive PATH, or add "
            f"--download to fetch it ({ARCHIVE_BYTES / 1e9:.1f} GB from {ADDRESS})"
        )
    data_folder.mkdir(parents=True, exist_ok=True)
    download_file(ADDRESS, places[1], expected_bytes=ARCHIVE_BYTES)
    return _open(places[1], max_bytes)


def _open(place: Path, max_bytes: int) -> TextSource:
    if place.is_file():
        return ArchiveSource(place, max_bytes)
    found = [(str(file), part_of(file.as_posix())) for file in sorted(place.rglob("news.en*")) if file.is_file()]
    files = [(path, part) for path, part in found if part is not None]
    if not any(part == "train" for _, part in files):
        raise DataError(
            f"{place}: holds no shard named like training-monolingual.tokenized.shuffled/news.en-00001-of-00100"
        )
    notes = _completeness([part for _, part in files])
    return FileSource(name="1b", files=files, max_bytes=max_bytes, notes=notes)


def _completeness(parts: list[str]) -> list[str]:
    train = parts.count("train")
    if (train, len(parts) - train) == (TRAIN_SHARDS, HELD_OUT_SHARDS):
        return []
    return [
        f"not the full benchmark: {train} of {TRAIN_SHARDS} training and {len(parts) - train} of {HELD_OUT_SHARDS} "
        "held-out shards"
    ]


class _MemberReader(HashingReader):
    """Reads a member; whoever reads it hears of damage in the same words as whoever walks through the archive."""

    archive: Path

    def read(self, size: int = -1, /) -> bytes:
        try:
            return super().read(size)
        except _UNSOUND as error:
            raise _unsound(self.archive, error) from None


def _unsound(archive: Path, error: Exception) -> DataError:
    return DataError(f"{archive}: not a sound tar archive ({error}); fetch it again")


@dataclass
class ArchiveSource:
    """The members of a tar that are shards, read as they come by; nothing is ever extracted to disk."""

    path: Path
    max_bytes: int
    name: str = "1b"
    prepared: dict[str, Any] = field(default_factory=dict)
    has_validation: bool = True
    notes: list[str] = field(default_factory=list)
    records: list[dict[str, Any]] = field(default_factory=list)

    @property
    def total_bytes(self) -> int | None:
        return self.path.stat().st_size

    def inputs(self, on_bytes: OnBytes) -> Iterator[TextInput]:
        try:
            file = self.path.open("rb")
        except OSError as error:
            raise DataError(f"{self.path}: cannot be read: {error.strerror}") from None
        parts: list[str] = []
        with file:
            raw = HashingReader(file, on_bytes)
            packed = self.path.name.removesuffix(".tgz") + ".gz" if self.path.suffix == ".tgz" else self.path.name
            stream = unpack(raw, str(self.path), self.max_bytes, kind=packed)
            for text in self._members(stream):
                parts.append(text.part)
                yield text
            while stream.read(1 << 20):  # the rest of the archive belongs to its hash and to its checksum
                pass
            raw.drain()
        if "train" not in parts:
            raise DataError(f"{self.path}: holds no shard named like {NAME}/training-…/news.en-00001-of-00100")
        self.notes += _completeness(parts)
        self.records.insert(0, {"name": str(self.path), "part": None, "bytes": raw.size, "sha256": raw.sha256})

    def _members(self, stream: CappedReader) -> Iterator[TextInput]:
        try:
            # "r|": members in the order of the file, no seeking, so the whole is read exactly once
            with tarfile.open(fileobj=cast(Any, stream), mode="r|") as tar:
                for member in tar:
                    part = part_of(member.name)
                    if ".." in PurePosixPath(member.name).parts or member.name.startswith("/"):
                        self.notes.append(f"ignored {member.name!r}: a name that leaves the archive")
                    elif part is not None and not member.isreg():
                        self.notes.append(f"ignored {member.name!r}: a link or device, not a file")
                    elif part is not None:
                        yield from self._read(tar, member, part)
                    cast(Any, tar).members.clear()  # tarfile remembers every member otherwise
        except _UNSOUND as error:
            raise _unsound(self.path, error) from None

    def _read(self, tar: tarfile.TarFile, member: tarfile.TarInfo, part: str) -> Iterator[TextInput]:
        if member.size > self.max_bytes:
            raise DataError(
                f"{self.path}: {member.name!r} claims {member.size} bytes, more than {self.max_bytes}; "
                "raise --max-bytes if that is right"
            )
        content = tar.extractfile(member)
        if content is None:
            return
        text = _MemberReader(cast(Any, content))
        text.archive = self.path
        yield TextInput(member.name, part, text)
        if text.size != member.size:
            raise DataError(f"{self.path}: {member.name!r} is cut short; fetch the archive again")
        self.records.append({"name": member.name, "part": part, "bytes": text.size, "sha256": text.sha256})
