"""Who keeps which row: id g lives on rank g % world, in place g // world.

By turns, not in blocks: ids are ordered by frequency, and a block of frequent words would be all the work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from lstlm.distributed.ranks import Ranks
from lstlm.errors import ConfigError
from lstlm.protocol.scan import parts
from lstlm.spherical.stabilise.history import History
from lstlm.spherical.state import BLOCK_ROWS

STATES = ("output.state.", "output.tail.state.")
"""Where a network keeps the state of a factored layer: as its output, or as the tail of a shortlist."""
ROW_TENSORS = ("embedding.weight", *(state + name for state in STATES for name in ("V", "W", "history.stamp")))
"""Tensors of a network that have one row a word; all others are the same on every rank."""


def rows_of_rank(total: int, rank: int, world: int) -> int:
    """Return how many of `total` rows a rank keeps."""
    return (total - rank + world - 1) // world


def check_enough_words(vocab: int, world: int) -> None:
    """Raise where a rank would have no row."""
    if vocab < world:
        raise ConfigError(f"{world} ranks for a vocabulary of {vocab} words: each needs one; start fewer ranks")


def join_rows(ranks: Ranks, mine: Tensor, total: int) -> Tensor:
    """Return all `total` rows in the order of their ids, on every rank. Collective; everything over the wire."""
    sizes = [rows_of_rank(total, rank, ranks.world) for rank in range(ranks.world)]
    whole = mine.new_empty(total, *mine.shape[1:])
    for rank, shard in enumerate(torch.split(ranks.gather(mine, sizes), sizes)):
        whole[rank :: ranks.world] = shard
    return whole


def split_state(state: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return (what all ranks have alike, the rows of this one) of a network's state_dict."""
    rows = {key: value for key, value in state.items() if key in ROW_TENSORS and value.numel()}
    return {key: value for key, value in state.items() if key not in rows}, rows


def reshard(shards: Sequence[Tensor], rank: int, world: int) -> Tensor:
    """Return the rows that `rank` of `world` keeps, from the shards of any other number of ranks."""
    before = len(shards)
    if before == world:
        return shards[rank]
    first = shards[0]
    out = first.new_empty(rows_of_rank(sum(map(len, shards)), rank, world), *first.shape[1:])
    for source, shard in enumerate(shards):
        ids = torch.arange(len(shard)) * before + source
        mine = (ids % world == rank).nonzero().squeeze(1)
        out[ids[mine] // world] = shard[mine]
    return out


def settle(rows: dict[str, Tensor], state: dict[str, Tensor], like: Mapping[str, Tensor]) -> None:
    """Bring V to the current frame and empty the history, in the sizes that `like` (a state_dict) has.

    For rows that come from another number of ranks: which rows a rank has moved, and how many segments it keeps,
    depends on how many rows it has.
    """
    for place in STATES:
        if (stamp := rows.pop(place + "history.stamp", None)) is not None:
            _settle(place, stamp, rows, state, like)


def _settle(
    place: str, stamp: Tensor, rows: dict[str, Tensor], state: dict[str, Tensor], like: Mapping[str, Tensor]
) -> None:
    prefix = place + "history."
    V = rows[place + "V"] = rows[place + "V"].clone()
    past = {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}
    history = History(len(V), V.shape[1], V, segments=len(past["X"]) - 1, repairs=past["X"].shape[1])
    history.load_state_dict({**past, "stamp": stamp})
    for block in parts(len(V), BLOCK_ROWS):
        V[block] = history.bring_forward(V[block].clone(), block)
    for key, value in like.items():
        if key.startswith(prefix):
            state[key] = torch.zeros_like(value, device="cpu")
