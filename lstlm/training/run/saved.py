"""A run on disk: describing one, and loading what was trained in it."""

import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from lstlm import environment
from lstlm.config import Config, dump_config, load_config
from lstlm.data import Corpus, Vocabulary
from lstlm.data.tokenise import TextOptions
from lstlm.errors import CheckpointError, ConfigError
from lstlm.files import replacing, write_atomic, write_json
from lstlm.nn.network import Network
from lstlm.sealed import sha256_of
from lstlm.training.run.checkpoint import (
    MANIFEST,
    Checkpoint,
    newest_valid,
    open_checkpoint,
    step_folders,
    understood,
)
from lstlm.training.run.folders import CHECKPOINTS
from lstlm.training.run.origin import read_origin, write_origin
from lstlm.training.run.shards import load_network


def describe(folder: Path, config: Config, corpus: Corpus, device: torch.device) -> None:
    """Write config.yaml, corpus.json, environment.json, and vocab.tsv unless the corpus's is there already."""
    write_atomic(folder / "config.yaml", dump_config(config))
    write_origin(folder, corpus)
    words = folder / "vocab.tsv"
    if not words.is_file() or sha256_of(words) != corpus.vocabulary.hash:
        with replacing(words) as temporary:
            corpus.vocabulary.write(temporary)
    facts = {**environment.describe(), "device": str(device), "command": sys.argv, "folder": os.getcwd()}
    write_json(folder / "environment.json", facts)


def checkpoint_for(path: Path) -> Checkpoint:
    """Open the checkpoint that `path` names: itself, or the last of a run folder; CheckpointError if it is bad."""
    if (path / MANIFEST).is_file():
        return open_checkpoint(path)
    root = path / CHECKPOINTS
    if (root / "last").exists():
        return open_checkpoint(root / "last")
    if path.parent.name == CHECKPOINTS or not (path / "config.yaml").is_file():
        raise CheckpointError(f"{path}: neither a run folder nor a checkpoint (no config.yaml, no {MANIFEST})")
    checkpoint, skipped = newest_valid(step_folders(root))
    if checkpoint is None:
        raise CheckpointError(f"{path}: no checkpoint" + "".join(f"; skipped {line}" for line in skipped))
    return checkpoint


@dataclass(frozen=True)
class LoadedRun:
    """A trained model with what is needed to use it; the corpus is not.

    `text` makes words of any text as the corpus did; `unknown_share` is how many of the corpus's own were <unk>.
    """

    config: Config
    vocabulary: Vocabulary
    network: Network
    step: int
    folder: Path
    text: TextOptions
    unknown_share: float


def load_run(path: Path | str, *, device: str | torch.device = "cpu") -> LoadedRun:
    """Load the last checkpoint of a run folder, or the checkpoint at `path`; the network is in evaluation mode."""
    checkpoint = checkpoint_for(Path(path))
    folder = checkpoint.folder.parent.parent
    try:
        config = load_config(checkpoint.folder / "config.yaml")
    except ConfigError as error:
        raise CheckpointError(str(error)) from error
    vocabulary = Vocabulary.read(folder / "vocab.tsv")
    if vocabulary.hash != checkpoint.manifest.get("vocabulary_sha256"):
        raise CheckpointError(
            f"{folder / 'vocab.tsv'}: not the vocabulary that {checkpoint.folder.name} was trained with"
        )
    place = torch.device(device)
    generator = torch.Generator(device=place).manual_seed(config.train.seed)
    with understood(checkpoint):
        network = Network(config, vocabulary.shown_counts(config.data.unknown), device=place, generator=generator)
        load_network(network, checkpoint)
    network.eval()
    origin = read_origin(folder)
    # a corpus without capitals was lowered before it came to us
    text = replace(origin.text, lowercase=origin.text.lowercase or vocabulary.is_lowercase)
    return LoadedRun(config, vocabulary, network, checkpoint.step, folder, text, origin.unknown_share)
