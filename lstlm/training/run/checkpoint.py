"""Checkpoints: folders that are whole or absent.

    checkpoints/step-00001000/   manifest.json  config.yaml  network.pt  training.pt  counters.json
    checkpoints/last, best       links to one of them

A checkpoint is written under a temporary name, every file is synced, the manifest (sizes, SHA-256, format version,
hashes of configuration and vocabulary, and a hash of itself) comes last, the folder is synced and then renamed. Tensors
are read with `weights_only=True`: a pickle that wants to run code is refused.
"""

import contextlib
import errno
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from lstlm.errors import CheckpointError, LstlmError, is_out_of_memory
from lstlm.files import HashingWriter, fsync_folder, link_atomic
from lstlm.protocol.saved import MOST_COUNT
from lstlm.sealed import fault_of, read_document, read_sealed, seal
from lstlm.training.run.folders import STEP, unlinked

FORMAT = 4
MANIFEST = "manifest.json"
_TEMPORARY = ".writing-"
_DISPLACED = ".displaced-"


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint folder whose manifest and files agree."""

    folder: Path
    manifest: dict[str, Any]

    @property
    def step(self) -> int:
        """The number of updates that the state has seen."""
        return int(self.manifest["step"])

    def tensors(self, name: str) -> dict[str, Any]:
        """Read a file of tensors; big ones are mapped, not copied, until someone copies them into place."""
        path = self.folder / name
        try:
            value = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        except Exception as error:  # whatever a program of somebody else's bytes leads to
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise CheckpointError(f"{path}: refused, not a plain file of tensors ({reason[:160]})") from error
        if not isinstance(value, dict):
            raise CheckpointError(f"{path}: expected a dictionary of tensors, found {type(value).__name__}")
        return value

    def json(self, name: str) -> dict[str, Any]:
        """Read a small JSON file of the checkpoint."""
        try:
            return read_document(self.folder / name)
        except (ValueError, OSError) as error:
            raise CheckpointError(f"{self.folder / name}: cannot be read ({error})") from error


@contextlib.contextmanager
def understood(checkpoint: Checkpoint) -> Iterator[None]:
    """Turn whatever well-sealed nonsense in a checkpoint leads to into one line that names it."""
    try:
        yield
    except LstlmError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RuntimeError) as error:
        if is_out_of_memory(error):
            raise
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:160]
        where = f"{checkpoint.folder}: not damaged, but what it says makes no sense here ({reason})"
        raise CheckpointError(f"{where}; was it written by another version?") from error


def write_files(folder: Path, contents: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Write text (str) or tensors (dict) under their names; return the manifest entries."""
    records = {}
    for name, content in contents.items():
        with HashingWriter(folder / name) as stream, _without_crc():
            if isinstance(content, str):
                stream.write(content.encode())
            else:
                torch.save(content, stream)  # type: ignore[arg-type]  # it needs write() alone
            records[name] = stream.record()
    return records


@contextlib.contextmanager
def _without_crc() -> Iterator[None]:
    """Leave the zip's own checksums out: they cost more than SHA-256 does, which the manifest has."""
    before = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)
    try:
        yield
    finally:
        torch.serialization.set_crc32_options(before)


def save_checkpoint(root: Path, step: int, contents: Mapping[str, Any], facts: Mapping[str, Any]) -> Path:
    """Write `contents` (file name → text, or dictionary of tensors) as `root/step-N` and point `last` at it.

    `facts` goes into the manifest: config_sha256, vocabulary_sha256, versions. Tensors stream from where they are to
    the file; nothing of their size is copied. A failure removes what was written and leaves older checkpoints alone.
    """
    with failures_explained(root, step):
        temporary = begin_folder(root, step)
        return finish_folder(temporary, step, write_files(temporary, contents), facts)


@contextlib.contextmanager
def failures_explained(root: Path, step: int) -> Iterator[None]:
    """Turn an error of the file system into one line, after removing what was written."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        tidy(root)
        raise write_failure(error, root / f"{STEP}{step:08d}", newest_name(root)) from error


def begin_folder(root: Path, step: int) -> Path:
    """Make the temporary folder that a checkpoint is written in."""
    temporary = root / f"{_TEMPORARY}{step:08d}-{os.getpid()}"
    shutil.rmtree(temporary, ignore_errors=True)
    root.mkdir(exist_ok=True)  # not its parents: whoever has removed the run folder meanwhile did not want it back
    temporary.mkdir()
    return temporary


def finish_folder(temporary: Path, step: int, files: Mapping[str, Any], facts: Mapping[str, Any]) -> Path:
    """Seal the files in `temporary` with a manifest, give the folder its name and point `last` at it."""
    root, final = temporary.parent, temporary.with_name(f"{STEP}{step:08d}")
    with HashingWriter(temporary / MANIFEST) as stream:
        stream.write(seal({**facts, "format": FORMAT, "step": step, "files": files}).encode())
    fsync_folder(temporary)
    _move_aside(final)
    os.rename(temporary, final)
    fsync_folder(root)
    link_atomic(root / "last", final.name)
    tidy(root)
    return final


def reopen(folder: Path) -> Checkpoint:
    """Open a checkpoint that another process has just verified: its manifest alone is read."""
    return Checkpoint(folder, _read_manifest(folder))


def _move_aside(final: Path) -> None:
    """Make way for a newer checkpoint of the same step; `tidy` puts the old one back if the new one never arrives."""
    if final.exists():
        os.rename(final, final.with_name(f"{_DISPLACED}{final.name}"))


def write_failure(error: BaseException, path: Path, survivor: str | None) -> LstlmError:
    """Turn an error of the file system into one line that says what is left and what to do.

    torch.save hides the OSError of its stream in a RuntimeError's context.
    """
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, OSError):
        cause = cause.__cause__ or cause.__context__
    if cause is None:
        return LstlmError(f"{path}: could not be written ({error})")
    left = f"the last good checkpoint is {survivor}" if survivor else "no checkpoint exists yet"
    remedies = {
        errno.ENOSPC: "make room (or lower train.keep_checkpoints)",
        errno.ENOENT: "if the run folder was removed or renamed during training, put it back",
    }
    remedy = remedies.get(cause.errno or 0, "mend the cause")
    return LstlmError(f"{path}: {cause.strerror or cause}; {left}; {remedy}, then continue with --resume auto")


def _named(root: Path, prefix: str) -> list[Path]:
    """Return what in `root` begins with `prefix`. Not glob: it takes a folder that it may not read for an empty one."""
    try:
        return [root / name for name in os.listdir(root) if name.startswith(prefix)]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise CheckpointError(f"{root}: cannot be read ({error.strerror or error}); mend the cause") from error


def tidy(root: Path) -> None:
    """Remove what killed writers left, folders and links; put back a checkpoint that was displaced and not replaced."""
    for folder in _named(root, _DISPLACED):
        home = folder.with_name(folder.name[len(_DISPLACED) :])
        if home.exists():
            shutil.rmtree(folder, ignore_errors=True)
        else:
            os.rename(folder, home)
    for folder in _named(root, _TEMPORARY):
        shutil.rmtree(folder, ignore_errors=True)
    for link in _named(root, "."):  # `last` or `best`, on their way to another checkpoint
        if link.is_symlink():
            link.unlink(missing_ok=True)


def step_folders(root: Path) -> list[Path]:
    """Return the checkpoint folders, newest first."""
    found = [path for path in _named(root, STEP) if path.name[len(STEP) :].isdigit()]
    return sorted(found, key=lambda path: int(path.name[len(STEP) :]), reverse=True)


def newest_name(root: Path) -> str | None:
    """Return the name of the newest checkpoint folder, verified or not."""
    return next((path.name for path in step_folders(root)), None)


def prune(root: Path, keep: int) -> None:
    """Remove all but the `keep` newest checkpoints and the ones that `last` and `best` point at."""
    linked = {os.readlink(link) for link in (root / "last", root / "best") if link.is_symlink()}
    for folder in step_folders(root)[max(keep, 1) :]:
        if folder.name not in linked:
            # Renamed first: a kill in the middle of the removal must not leave a damaged checkpoint behind.
            doomed = folder.with_name(f"{_TEMPORARY}old-{folder.name}")
            with contextlib.suppress(OSError):
                os.rename(folder, doomed)
                shutil.rmtree(doomed, ignore_errors=True)


def keep_best_and_newest(folder: Path, *, best: bool, keep: int) -> None:
    """Point `best` at the checkpoint just written, if it is; remove all but the `keep` newest and what is linked."""
    if best:
        link_atomic(folder.parent / "best", folder.name)
    prune(folder.parent, keep)


def _read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    if not path.is_file():
        raise CheckpointError(f"{folder}: no {MANIFEST}: not a checkpoint, or its writing was cut off")
    try:
        manifest, whole = read_sealed(path)
    except ValueError as error:
        raise CheckpointError(f"{path}: damaged ({error})") from error
    if manifest.get("format") != FORMAT:
        raise CheckpointError(f"{path}: format {manifest.get('format')!r}, this version reads {FORMAT}")
    if not whole:
        raise CheckpointError(f"{path}: damaged: its own hash does not match")
    with understood(Checkpoint(folder, manifest)):
        _check_entries(manifest)
    return manifest


def _check_entries(manifest: Mapping[str, Any]) -> None:
    """Raise unless the step is a number and every file a plain name with its size and hash."""
    if type(manifest["step"]) is not int or not 0 <= manifest["step"] <= MOST_COUNT:
        raise ValueError(f"step {manifest['step']!r}")
    for name, record in manifest["files"].items():
        if name in ("", ".", "..") or Path(name).name != name:
            raise ValueError(f"a file called {name!r}")
        if type(record["bytes"]) is not int or not isinstance(record["sha256"], str):
            raise ValueError(f"the record of {name} is {record!r}")


def open_checkpoint(folder: Path) -> Checkpoint:
    """Open a checkpoint and check the size and SHA-256 of every file; CheckpointError names the first bad one."""
    folder = unlinked(folder)  # first: a run that is being trained may give `last` to another one meanwhile
    manifest = _read_manifest(folder)
    for name, record in manifest["files"].items():
        if fault := fault_of(folder / name, record):
            raise CheckpointError(f"{folder / name}: {fault}")
    return Checkpoint(folder, manifest)


def newest_valid(folders: Iterable[Path]) -> tuple[Checkpoint | None, list[str]]:
    """Return the first of `folders` that verifies, and one line for each that was skipped before it."""
    skipped: list[str] = []
    for folder in folders:
        try:
            return open_checkpoint(folder), skipped
        except (CheckpointError, OSError) as error:
            skipped.append(str(error))
    return None, skipped
