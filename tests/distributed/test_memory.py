"""Memory that ranks share: it carries what gloo carries, in pieces too, and only where they can share it."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from lstlm.distributed import Ranks, memory
from tests.distributed.processes import run_ranks
from tests.distributed.test_output import alone, compare, sharded


def counts(world: int, n: int) -> list[list[int]]:
    """Return how many rows each rank sends to each: uneven, and nothing at all from the last rank."""
    return [[n * (to + 1) // (sender + 1) for to in range(world)] for sender in range(world - 1)] + [[0] * world]


def messages(ranks: Ranks, part: int, sizes: tuple[int, ...]) -> tuple[list[Tensor], int]:
    """Return what this rank gets from collectives of several sizes, and what it has sent."""
    memory.PART = part
    found, rank, world = [], ranks.rank, ranks.world
    for n in sizes:
        random = torch.Generator().manual_seed(10 * n + rank)
        rows = [n + 2 * r if n else 0 for r in range(world)]
        found.append(ranks.gather(torch.rand(rows[rank], 3, generator=random), rows))
        send = counts(world, n)
        words = torch.randint(9, (sum(send[rank]), 2), generator=random)
        found.append(ranks.exchange(words, send[rank], [row[rank] for row in send]))
        found.append(ranks.total_(torch.rand(n, 5, dtype=torch.float64, generator=random)))
    found.append(ranks.total_(torch.tensor(0.1 + rank, dtype=torch.float64)))
    return [*found, torch.tensor(ranks.memory is not None)], ranks.sent


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("part", [1 << 24, 64])
def test_memory_carries_what_gloo_carries(tmp_path: Path, world: int, part: int) -> None:
    shared = run_ranks(world, tmp_path / "memory", messages, part, (0, 1, 2, 50))
    sockets = run_ranks(world, tmp_path / "gloo", messages, part, (0, 1, 2, 50), share_memory=False)
    for (mine, sent), (gloo, sent_by_gloo) in zip(shared, sockets, strict=True):
        assert mine.pop() and not gloo.pop() and sent == sent_by_gloo
        for here, there in zip(mine, gloo, strict=True):
            torch.testing.assert_close(here, there, rtol=1e-15, atol=0)
    for here, there in zip(shared[0][0][2::3], shared[1][0][2::3], strict=True):
        assert torch.equal(here, there)  # sums: the same to the last bit on all ranks


@pytest.mark.parametrize("m", [6, 24])
def test_layers_are_exact_through_gloo_too(tmp_path: Path, m: int) -> None:
    several = run_ranks(2, tmp_path, sharded, "factored", ("z",), m, 1, 50, share_memory=False)
    compare(alone("factored", "z", m, 1, 50), several, "z")


def strangers(ranks: Ranks, folder: Path) -> dict[str, Any]:
    """Try to share memory with a rank of another machine, and of another container."""

    def attempt() -> bool:
        return memory.open_memory(ranks.rank, ranks.world, ranks.collect, 5.0) is None

    files, name = len(os.listdir("/proc/self/fd")), memory._name
    memory._name = lambda file: (*name(file)[:2], 0) if ranks.rank == 1 else name(file)
    container = attempt()
    (folder / f"boot-{ranks.rank}").write_text(str(ranks.rank))
    memory._BOOT, memory._name = folder / f"boot-{ranks.rank}", name
    machine = attempt()
    return {"container": container, "machine": machine, "left open": len(os.listdir("/proc/self/fd")) - files}


def test_ranks_that_cannot_share_memory_find_out_together(tmp_path: Path) -> None:
    assert run_ranks(2, tmp_path, strangers, tmp_path) == [{"container": True, "machine": True, "left open": 0}] * 2
