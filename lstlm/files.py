"""Writing files so that a crash, a kill or a full disk leaves either the old content or the new, never half of it."""

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

try:
    import fcntl
except ImportError:  # Windows, where nothing keeps two processes from one folder
    fcntl = None  # type: ignore[assignment]


def file_above(path: Path) -> Path | None:
    """Return the file that stands where `path` needs a folder, if there is one."""
    return next((above for above in path.parents if above.exists() and not above.is_dir()), None)


def fsync_folder(folder: Path) -> None:
    """Make renames and new names inside `folder` survive a power cut."""
    if os.name == "nt":  # where no folder can be opened
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_atomic(path: Path, text: str, *, durable: bool = True) -> None:
    """Replace `path` by `text` in one rename; with `durable` also after a power cut (one fsync)."""
    with replacing(path, durable=durable) as temporary:
        temporary.write_text(text, encoding="utf-8")


@contextlib.contextmanager
def replacing(path: Path, *, durable: bool = True) -> Iterator[Path]:
    """Give a temporary name to write to, which becomes `path` in one rename when all went well."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        if durable:
            with open(temporary, "rb") as stream:
                os.fsync(stream.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


@contextlib.contextmanager
def locked(folder: Path, *, wait: bool = False) -> Iterator[None]:
    """Hold a folder as ours; OSError where another process does, unless it is to `wait`, or where there are no locks.

    The lock goes with the process, however that ends.
    """
    if fcntl is None:
        raise OSError("no locks here")
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield
    finally:
        os.close(descriptor)


def write_json(path: Path, value: Any, *, durable: bool = True) -> None:
    """Write `value` as indented JSON, atomically."""
    write_atomic(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n", durable=durable)


def link_atomic(link: Path, target: str) -> None:
    """Point the symbolic link `link` at the neighbour called `target`, replacing an older link in one rename."""
    temporary = link.with_name(f".{link.name}.{os.getpid()}.tmp")
    with contextlib.suppress(FileNotFoundError):
        temporary.unlink()
    os.symlink(target, temporary)
    os.replace(temporary, link)
    fsync_folder(link.parent)


class HashingWriter:
    """A file to write once: hashes what passes and is synced to disk when closed, so the data is never read back."""

    def __init__(self, path: Path) -> None:
        self._stream: BinaryIO = open(path, "wb", buffering=0)  # noqa: SIM115 - closed by __exit__
        self._digest = hashlib.sha256()
        self.size = 0

    def write(self, data: bytes | memoryview) -> int:
        """Write all of `data`; an unbuffered write may be partial (signals, 2 GiB limit), so it loops."""
        view = memoryview(data).cast("B")
        self._digest.update(view)
        written = 0
        while written < len(view):
            written += self._stream.write(view[written:]) or 0
        self.size += written
        return written

    def flush(self) -> None:
        """Nothing is buffered."""

    def record(self) -> dict[str, Any]:
        """Return the manifest entry of the file."""
        return {"bytes": self.size, "sha256": self._digest.hexdigest()}

    def __enter__(self) -> "HashingWriter":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                os.fsync(self._stream.fileno())
        finally:
            self._stream.close()
