"""The One Billion Word benchmark (Chelba et al., 2013): the official archive, streamed, or its extracted folder.

Layout: 99 training shards `news.en-000NN-of-00100` and 50 held-out shards `news.en.heldout-000NN-of-00050`,
tokenised, one shuffled sentence a line. Held-out shard 00000 is the customary test text, so it becomes the part
`test`; the others become `valid`. With `--min-count 3` the vocabulary has 793,471 entries: 793,468 words and the
specials (which that vocabulary's own file spells `<S> </S> <UNK>`).
"""

import re
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, cast

from lstlm.data.download import download_file
from lstlm.data.inputs import CappedReader, FileSource, HashingReader, OnBytes, TextInput, TextSource, drain, unpack
from lstlm.errors import DataError

NAME = "1-billion-word-language-modeling-benchmark-r13output"
ARCHIVE = f"{NAME}.tar.gz"
ADDRESS = f"https://www.statmt.org/lm-benchmark/{ARCHIVE}"
ARCHIVE_BYTES = 1_792_209_805
TRAIN_SHARDS, HELD_OUT_SHARDS = 99, 50

_TRAIN = re.compile(r"training-monolingual\.tokenized\.shuffled/news\.en-000\d\d-of-00100")
_HELD_OUT = re.compile(r"heldout-monolingual\.tokenized\.shuffled/news\.en\.heldout-000\d\d-of-00050")
_TAR = re.compile(r"\.(tar(\.\w+)?|tgz|tbz2|txz)$")
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


def open_one_billion(
    archive: Path | None,
    *,
    download: bool,
    data_folder: Path,
    max_bytes: int,
    published: tuple[str, int] = (ADDRESS, ARCHIVE_BYTES),
) -> TextSource:
    """Find the benchmark: `archive` (.tar.gz or extracted folder), else in the data folder, else download it.

    `published` is where it is to be had, and how many bytes it has.
    """
    address, size = published
    if archive is not None and not archive.exists():
        raise DataError(f"--archive {archive}: no such file or folder")
    places = (data_folder / NAME, data_folder / ARCHIVE)
    for place in places if archive is None else (archive,):
        if place.exists():
            return _open(place, max_bytes)
    if not download:
        raise DataError(
            f"the One Billion Word archive is neither {places[0]} nor {places[1]}: name it with --archive PATH, or add "
            f"--download to fetch it ({size / 1e9:.1f} GB from {address})"
        )
    data_folder.mkdir(parents=True, exist_ok=True)
    download_file(address, places[1], expected_bytes=size)
    return _open(places[1], max_bytes)


def recognise(name: str, max_bytes: int) -> TextSource | None:
    """Return the benchmark if that is what a path names: any tar file, or a folder with text of both kinds."""
    place = Path(name)
    if place.is_file() and _TAR.search(name):
        return ArchiveSource(place, max_bytes)
    parts = {part for _, part in _shards(place)} if name and place.is_dir() else set()
    return _open(place, max_bytes) if "train" in parts and len(parts) > 1 else None


def _shards(folder: Path) -> list[tuple[str, str]]:
    """Return the shards below a folder, each with its part."""
    found = [(str(file), part_of(file.as_posix())) for file in sorted(folder.rglob("news.en*")) if file.is_file()]
    return [(path, part) for path, part in found if part is not None]


def _open(place: Path, max_bytes: int) -> TextSource:
    if place.is_file():
        return ArchiveSource(place, max_bytes)
    files = _shards(place)
    if not any(part == "train" for _, part in files):
        raise _no_shards(place)
    notes = _completeness([part for _, part in files])
    return FileSource(name="1b", files=files, max_bytes=max_bytes, notes=notes)


def _no_shards(place: Path) -> DataError:
    shard = f"{NAME}/training-monolingual.tokenized.shuffled/news.en-00001-of-00100"
    remedy = "; other archives are to be unpacked first" if place.is_file() else ""
    return DataError(f"{place}: holds no shard named like {shard}{remedy}")


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
class ArchiveSource(TextSource):
    """The members of a tar that are shards, read as they come by; nothing is ever extracted to disk."""

    path: Path
    max_bytes: int
    name: str = field(default="1b", kw_only=True)
    has_validation = True

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
            stream = unpack(raw, str(self.path), self.max_bytes)
            for text in self._members(stream):
                parts.append(text.part)
                yield text
            drain(stream)
            drain(raw)
        if "train" not in parts:
            raise _no_shards(self.path)
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
