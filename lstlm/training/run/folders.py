"""Names and ownership of run folders. No torch here: the command line answers wrong paths before it loads anything.

RUN/config.yaml  corpus.json  vocab.tsv  environment.json  status.json  metrics.jsonl  events.out.…  checkpoints/
    vectors.tsv  metadata.tsv  projector_config.pbtxt    (at the end, for TensorBoard's projector)
"""

import os
import shutil
import time
from pathlib import Path
from typing import TextIO

from lstlm.errors import ConfigError
from lstlm.files import file_above

try:
    import fcntl
except ImportError:  # Windows: there, nothing keeps two processes from one run folder
    fcntl = None  # type: ignore[assignment]

CHECKPOINTS = "checkpoints"
STEP = "step-"
_LOCK = ".lock"
_MARKS = ("status.json", _LOCK)  # one of them is in every run folder
_FOREIGN = "manifest.json"  # of a corpus, whose vocab.tsv is not ours, or of a checkpoint
_OWN_FILES = ("config.yaml", "corpus.json", "vocab.tsv", "environment.json", "status.json", "metrics.jsonl")
_PROJECTOR_FILES = ("vectors.tsv", "metadata.tsv", "projector_config.pbtxt")
_RUN_NAMES = {CHECKPOINTS, *_OWN_FILES, *_PROJECTOR_FILES}


def default_folder(config_path: Path) -> Path:
    """Return runs/<config-stem>-<timestamp>."""
    return Path("runs") / f"{config_path.stem}-{time.strftime('%Y%m%d-%H%M%S')}"


def newest_run(config_path: Path) -> Path | None:
    """Return the newest run folder of this configuration's name under runs/, or None."""
    found = [path for path in Path("runs").glob(f"{config_path.stem}-*") if (path / "config.yaml").is_file()]
    return max(found, key=lambda path: path.stat().st_mtime, default=None)


def unlinked(path: Path) -> Path:
    """Return the checkpoint folder that `path` or a link like `last` names, by the way through its run.

    Not `resolve`: a run's `checkpoints`, or one of them, may be a link to another disk, without a run around it.
    """
    place = Path(os.path.abspath(path))
    while place.is_symlink() and not place.name.startswith(STEP):
        place = place.parent / os.readlink(place)
    return place


def run_of(path: Path) -> Path:
    """Return the run folder that a checkpoint folder (or link) lies in; a run folder is its own."""
    place = unlinked(path)
    return place.parent.parent if place.parent.name == CHECKPOINTS else path


def claim(folder: Path, *, resuming: bool, force: bool) -> TextIO:
    """Make `folder` ours: refuse a non-empty one unless resuming; with `force` remove an earlier run's files from it.

    Returns an open, locked file; the lock goes with the process, however that ends.
    """
    if file_above(folder):
        raise ConfigError(f"--run {folder}: lies inside a file; choose another name")
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"--run {folder}: not a folder; choose another name")
    names = {entry.name for entry in folder.iterdir()} if folder.is_dir() else set()
    if _FOREIGN in names:
        raise ConfigError(f"--run {folder}: holds a {_FOREIGN}, so a corpus or a checkpoint; choose another folder")
    own = [folder / name for name in (*_OWN_FILES, _LOCK)]
    if odd := next((path for path in own if path.is_dir() or path.is_fifo()), None):  # a pipe would be waited for
        raise ConfigError(f"{odd}: not a file; remove it, or choose another --run")
    if names - {_LOCK} and not (resuming or force):
        raise ConfigError(f"--run {folder}: not empty; continue it with --resume auto, or start it anew with --force")
    if not resuming and names.isdisjoint(_MARKS) and (other := sorted(names & _RUN_NAMES)):
        why = f"it holds {other[0]}, which would be lost, and no {' or '.join(_MARKS)}"
        raise ConfigError(f"--run {folder}: --force starts runs anew, and this is none: {why}; choose another folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = open(folder / _LOCK, "a", encoding="utf-8")  # noqa: SIM115 - open is held
    except OSError as error:
        raise ConfigError(f"--run {folder}: cannot be written ({error.strerror}); choose another folder") from error
    try:
        if fcntl is not None:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lock.close()
        raise ConfigError(f"--run {folder}: in use by another process; wait for it, or choose another name") from error
    if force and not resuming:
        _remove_run_files(folder)
    return lock


def _remove_run_files(folder: Path) -> None:
    """Remove what a run writes and nothing else: --force on the wrong folder must cost nobody their files."""
    root, events = folder / CHECKPOINTS, folder.glob("events.out.tfevents.*")
    try:
        if root.exists():
            shutil.rmtree(root)
    except OSError as error:  # what stays would pass for the new run's newest checkpoints
        raise ConfigError(f"{root}: cannot be removed ({error}); remove it, or choose another --run") from error
    for path in [*(folder / name for name in (*_OWN_FILES, *_PROJECTOR_FILES)), *events]:
        path.unlink(missing_ok=True)
