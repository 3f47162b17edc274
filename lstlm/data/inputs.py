"""Opens text: plain, compressed, or a pipe; hashes and counts what is read; stops at a byte cap."""

import bz2
import errno
import gzip
import hashlib
import lzma
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, cast

from lstlm.data.blocks import Reader
from lstlm.errors import DataError

MAX_BYTES = 1 << 36
"""What the packed files of one source may unpack to (64 GiB), unless the caller says otherwise."""

OnBytes = Callable[[int], None]


@dataclass(frozen=True)
class TextInput:
    """One stretch of text for one part of the corpus."""

    name: str
    part: str
    stream: Reader


@dataclass(kw_only=True)
class TextSource:
    """Where text comes from. After `inputs` has been walked through, `records` says what was read."""

    name: str
    prepared: dict[str, Any] = field(default_factory=dict)  # of `TextOptions`: what was done to the text before
    notes: list[str] = field(default_factory=list)
    records: list[dict[str, Any]] = field(default_factory=list)

    @property
    def total_bytes(self) -> int | None:
        """What `on_bytes` will add up to, None if unknown."""
        return None

    @property
    def has_validation(self) -> bool:
        """Whether some of the text is for validation; if not, sentences are set aside."""
        return False

    def inputs(self, on_bytes: OnBytes) -> Iterator[TextInput]:
        """Yield the text, one stretch after the other."""
        raise NotImplementedError


class HashingReader:
    """Passes on what a binary file reads, and keeps its size and SHA-256."""

    def __init__(self, file: IO[bytes], on_bytes: OnBytes | None = None) -> None:
        self._file, self._on_bytes = file, on_bytes
        self._digest = hashlib.sha256()
        self.size = 0

    def read(self, size: int = -1, /) -> bytes:
        data = self._file.read(size)
        self._digest.update(data)
        self.size += len(data)
        if self._on_bytes is not None:
            self._on_bytes(len(data))
        return data

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()


class CappedReader:
    """Reads an unpacked stream; damage and a size above the cap become errors that name the file."""

    def __init__(self, stream: Reader, name: str, cap: int) -> None:
        self._stream, self._name, self._cap = stream, name, cap
        self.capped = cap < sys.maxsize
        self.size = 0

    def read(self, size: int, /) -> bytes:
        try:
            data = self._stream.read(size)
        except EOFError:
            raise DataError(
                f"{self._name}: truncated: the compressed stream ends too early; fetch the file again"
            ) from None
        except (gzip.BadGzipFile, zlib.error, lzma.LZMAError) as error:
            raise DataError(f"{self._name}: damaged compressed data ({error}); fetch the file again") from None
        except OSError as error:
            if error.errno == errno.ENOSPC:
                raise
            raise DataError(f"{self._name}: cannot be read: {error.strerror or error}") from None
        self.size += len(data)
        if self.size > self._cap:
            raise DataError(f"{self._name}: unpacks to more than {self._cap} bytes; raise --max-bytes if that is right")
        return data


class TextReader:
    """Makes a file of a stream of texts."""

    def __init__(self, texts: Iterator[str], on_bytes: OnBytes | None = None) -> None:
        self._texts, self._on_bytes = texts, on_bytes
        self._left = b""

    def read(self, size: int = -1, /) -> bytes:
        pieces, length = [self._left], len(self._left)
        while (size < 0 or length < size) and (text := next(self._texts, None)) is not None:
            pieces.append(
                text.encode(errors="surrogatepass")
            )  # half a character is found and told where bytes are read
            length += len(pieces[-1])
        data = b"".join(pieces)
        size = length if size < 0 else size
        data, self._left = data[:size], data[size:]
        if self._on_bytes is not None:
            self._on_bytes(len(data))
        return data


def drain(file: Reader) -> None:
    """Read to the end, so that hash and checksum are those of the whole file."""
    while file.read(1 << 20):
        pass


def unpack(file: HashingReader, name: str, cap: int) -> CappedReader:
    """Return the content of a file, unpacked by the ending of its name."""
    raw: Any = file
    stream: Reader
    ending = Path(name).suffix
    if ending in (".gz", ".tgz"):
        stream = gzip.GzipFile(fileobj=raw)
    elif ending in (".bz2", ".tbz2"):
        stream = bz2.BZ2File(raw)
    elif ending in (".xz", ".txz", ".lzma"):
        stream = lzma.LZMAFile(raw)  # noqa: SIM115 (closed with the file below it)
    elif ending == ".zst":
        try:
            from compression import zstd  # type: ignore[import-not-found, unused-ignore]  # Python 3.14 and later
        except ImportError:
            raise DataError(
                f"{name}: this Python ({sys.version_info.major}.{sys.version_info.minor}) cannot read .zst; "
                "unpack it first: zstd -d"
            ) from None
        stream = zstd.ZstdFile(raw)
    else:
        stream, cap = file, sys.maxsize  # a plain file is as large as it is
    return CappedReader(stream, name, cap)


def standard_input() -> IO[bytes]:
    """Return the bytes of the standard input; DataError where there is none."""
    try:
        return sys.stdin.buffer
    except AttributeError:  # None: the caller has closed it
        raise DataError("-: the standard input is closed; name a file, or give the text through a pipe") from None


def _open_raw(path: str) -> IO[bytes]:
    """Open a file, or the standard input, without a buffer.

    A buffered read of a pipe gathers its bytes in one go that no signal handler can enter: Ctrl-C would have to wait.
    """
    if path == "-":
        buffer = standard_input()
        return cast(IO[bytes], getattr(buffer, "raw", buffer))
    return cast(IO[bytes], Path(path).open("rb", buffering=0))


@dataclass
class FileSource(TextSource):
    """Text files, each for one part; `-` is the standard input."""

    name: str
    files: Sequence[tuple[str, str]]
    max_bytes: int = MAX_BYTES

    @property
    def total_bytes(self) -> int | None:
        """The bytes on disk, None if one of the files is a pipe."""
        if not all(Path(path).is_file() for path, _ in self.files):
            return None
        return sum(Path(path).stat().st_size for path, _ in self.files)

    @property
    def has_validation(self) -> bool:
        return any(part == "valid" for _, part in self.files)

    def inputs(self, on_bytes: OnBytes) -> Iterator[TextInput]:
        left = self.max_bytes
        for path, part in self.files:
            try:
                file = _open_raw(path)
            except OSError as error:
                raise DataError(f"{path}: cannot be read: {error.strerror}") from None
            with nullcontext() if path == "-" else file:
                raw = HashingReader(file, on_bytes)
                text = unpack(raw, path, left)
                yield TextInput(path, part, text)
                left -= text.size if text.capped else 0
                self.records.append({"name": path, "part": part, "bytes": raw.size, "sha256": raw.sha256})
