"""Where a run continues: choosing the checkpoint, and refusing one that belongs to another model."""

import shutil
from pathlib import Path
from typing import Any

from lstlm.config import Config, to_dict
from lstlm.data import Vocabulary
from lstlm.errors import CheckpointError, ConfigError
from lstlm.training.log.tensorboard import flatten
from lstlm.training.run.checkpoint import Checkpoint, newest_valid, step_folders, tidy
from lstlm.training.run.folders import CHECKPOINTS
from lstlm.training.run.saved import checkpoint_for

# What may change when a run goes on: its length, its logging, its rates. The rest shapes tensors or the data stream.
_FREE = {
    "data.dir",
    "output.weight_decay",
    "optim.output_lr",
    "optim.hidden_lr",
    "optim.embedding_lr",
    "optim.momentum",
    "optim.schedule",
    "optim.warmup_steps",
}
_FIXED_TRAIN = {"train.batch_size", "train.seed", "train.dtype"}


def choose_checkpoint(folder: Path, resume: str | None, *, force: bool) -> tuple[Checkpoint | None, list[str]]:
    """Return the checkpoint to continue from (None: begin at step 0) and what to tell the person.

    `resume` None: nothing. "auto": the newest in `folder` that verifies; damaged ones are skipped and named. Anything
    else is a path, and a problem there is an error.
    """
    root = folder / CHECKPOINTS
    tidy(root)
    if resume is None:
        return None, []
    if resume != "auto":
        return _explicit(root, Path(resume), force=force), []
    found = step_folders(root)
    checkpoint, skipped = newest_valid(found)
    notes = [f"skipped {line}" for line in skipped]
    if checkpoint is None and found:
        raise CheckpointError(f"{root}: none of {len(found)} checkpoints verifies: " + "; ".join(skipped))
    if checkpoint is None:
        return None, [f"{folder}: no checkpoint yet; starting at step 0"]
    for newer in found[: len(skipped)]:
        # A damaged checkpoint is of no use, and its name is needed again.
        shutil.rmtree(newer)
    return checkpoint, notes


def _explicit(root: Path, path: Path, *, force: bool) -> Checkpoint:
    checkpoint = checkpoint_for(path)
    if checkpoint.folder.parent.resolve() != root.resolve():
        return checkpoint
    newer = [other for other in step_folders(root) if int(other.name.split("-")[1]) > checkpoint.step]
    if newer and not force:
        raise ConfigError(
            f"--resume {path}: the run has newer checkpoints ({', '.join(p.name for p in newer)}); "
            "give --run a new folder to branch off, or --force to drop them"
        )
    for other in newer:
        shutil.rmtree(other)
    return checkpoint


def changed_settings(checkpoint: Checkpoint, config: Config, vocabulary: Vocabulary) -> list[str]:
    """Return one remark for each setting that changed and may; raise where one changed that may not."""
    if checkpoint.manifest["vocabulary_sha256"] != vocabulary.hash:
        raise CheckpointError(
            f"{checkpoint.folder}: trained with another vocabulary than that of data.dir {config.data.dir}; "
            "set data.dir to the corpus of that run"
        )
    # A setting that an older version did not know had what is its default now.
    saved: dict[str, dict[str, Any]] = checkpoint.manifest["config"]
    before = flatten({name: {**known, **saved.get(name, {})} for name, known in to_dict(Config()).items()})
    after = flatten(to_dict(config))
    keys = [key for key in {**before, **after} if before.get(key) != after.get(key)]
    remarks = [f"{key} {before.get(key)} → {after.get(key)}" for key in keys]
    frozen = [
        remark
        for key, remark in zip(keys, remarks, strict=True)
        if key not in _FREE and (key in _FIXED_TRAIN or not key.startswith("train."))
    ]
    if frozen:
        raise ConfigError(f"{checkpoint.folder}: cannot continue with other settings: {'; '.join(frozen)}")
    return remarks
