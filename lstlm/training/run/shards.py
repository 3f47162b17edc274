"""Checkpoints of several ranks, shard by shard under one manifest, and reading them at any number of ranks.

    step-00001000/   manifest.json (with "world")  config.yaml  counters.json  network.pt  training.pt
                     rows-0-of-2.pt  rows-1-of-2.pt      the rows of the large matrices, and what belongs to each row

One process writes all rows into network.pt and training.pt, and no rows-… files.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from lstlm.distributed import Ranks
from lstlm.distributed.shards import STATES, reshard, settle, split_state
from lstlm.errors import CheckpointError, LstlmError
from lstlm.protocol.saved import check_like
from lstlm.training.run.checkpoint import (
    Checkpoint,
    begin_folder,
    failures_explained,
    finish_folder,
    newest_name,
    tidy,
    write_failure,
    write_files,
)


def rows_file(rank: int, world: int) -> str:
    """Return the name of a rank's file."""
    return f"rows-{rank}-of-{world}.pt"


def world_of(checkpoint: Checkpoint) -> int:
    """Return how many ranks wrote a checkpoint."""
    return int(checkpoint.manifest.get("world", 1))


def _shards(checkpoint: Checkpoint, rank: int, world: int) -> list[dict[str, Any] | None]:
    """Return the rows files, by rank; only this rank's own where the number of ranks is the same."""
    before = world_of(checkpoint)
    return [
        checkpoint.tensors(rows_file(source, before)) if before != world or source == rank else None
        for source in range(before)
    ]


def network_state(checkpoint: Checkpoint, like: Mapping[str, Tensor], rank: int = 0, world: int = 1) -> dict[str, Any]:
    """Return the state_dict of a network with the shapes of `like`, for one of `world` ranks.

    Bit for bit what was saved where the number of ranks is the same; else the weights are, to rounding.
    """
    state, before = checkpoint.tensors("network.pt"), world_of(checkpoint)
    if before == world:
        return state if world == 1 else {**state, **_own(checkpoint, rank, world)["network"]}
    if before == 1:
        state, whole = split_state(state)
        shards = [whole]
    else:
        shards = [shard["network"] for shard in _shards(checkpoint, rank, world) if shard is not None]
    for shard in shards:
        for stamp, V in ((state + "history.stamp", state + "V") for state in STATES):
            if stamp in shard:  # of uneven shards the smaller ones have a stamp to spare
                shard[stamp] = shard[stamp][: len(shard[V])]
    rows = {key: reshard([shard[key] for shard in shards], rank, world) for key in shards[0]}
    settle(rows, state, like)
    return {**state, **rows}


def load_network(network: nn.Module, checkpoint: Checkpoint, rank: int = 0, world: int = 1) -> None:
    """Give a network the weights of a checkpoint, or say that they do not fit it."""
    own = network.state_dict()
    try:
        state = network_state(checkpoint, own, rank, world)
        for key in own.keys() & state.keys():
            check_like(f"{checkpoint.folder}: {key}", state[key], own[key])
        network.load_state_dict(state)
    except RuntimeError as error:  # torch's word for missing, unexpected or misshapen tensors
        first = str(error).splitlines()[-1].strip()
        raise CheckpointError(f"{checkpoint.folder}: written by another version, does not fit: {first}") from None


def training_state(checkpoint: Checkpoint, rank: int = 0, world: int = 1) -> dict[str, Any]:
    """Return what training.pt holds, with this rank's rows of the optimiser's state."""
    state, before = checkpoint.tensors("training.pt"), world_of(checkpoint)
    if before == world == 1:
        return state
    if before == world:
        squares = _own(checkpoint, rank, world)["squares"]
    elif before == 1:
        whole = state["optimisers"]["squares"]
        squares = None if whole is None else reshard([whole], rank, world)
    else:
        parts = [shard["squares"] for shard in _shards(checkpoint, rank, world) if shard is not None]
        squares = None if parts[0] is None else reshard(parts, rank, world)
    return {**state, "optimisers": {**state["optimisers"], "squares": squares}}


def _own(checkpoint: Checkpoint, rank: int, world: int) -> dict[str, Any]:
    return checkpoint.tensors(rows_file(rank, world))


def save_sharded(
    root: Path, step: int, contents: Mapping[str, Any], facts: Mapping[str, Any], ranks: Ranks
) -> Path | None:
    """Write a checkpoint together: every rank its own `contents`; return the folder on the first rank. Collective.

    The run folder must be the same for all ranks: a shared file system, or one machine.
    """

    def begin() -> str:
        with failures_explained(root, step):
            return str(begin_folder(root, step))

    temporary = Path(ranks.on_first(begin))
    try:
        outcome: dict[str, Any] | str = write_files(temporary, contents)
    except (OSError, RuntimeError) as error:
        outcome = f"rank {ranks.rank}: {write_failure(error, temporary, newest_name(root))}"
    outcomes = ranks.collect(outcome)
    failed = [text for text in outcomes if isinstance(text, str)]
    if failed:
        if ranks.first:
            tidy(root)
        raise LstlmError(failed[0])
    files = {name: record for found in outcomes for name, record in found.items()}

    def finish() -> str:
        with failures_explained(root, step):
            return str(finish_folder(temporary, step, files, {**facts, "world": ranks.world}))

    final = ranks.on_first(finish)
    return Path(final) if ranks.first else None
