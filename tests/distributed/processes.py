"""Real processes that form a group through a file, each with one thread, and what they return."""

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from lstlm.distributed import Ranks
from tests.helpers import PATIENCE_S
from tests.warm import warm


def gloo_threads() -> list[str]:
    """Return the names of the threads of this process that belong to a process group."""
    names = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
    return [name for name in names if name.startswith(("gloo", "pt_gloo"))]


def _one(rank: int, world: int, folder: Path, timeout_s: float, work: Callable[..., Any], *arguments: Any) -> None:
    torch.set_num_threads(1)
    place = folder / "store"
    try:
        ranks = Ranks.through_file(place, rank, world, torch.device("cpu"), timeout_s)
        torch.save(work(ranks, *arguments), folder / f"result-{rank}")
        joined = gloo_threads()
        ranks.close()
        (folder / f"threads-{rank}").write_text(f"{len(joined)} {len(gloo_threads())}")
    except BaseException:
        (folder / f"error-{rank}").write_text(traceback.format_exc())
        raise


def run_ranks(
    world: int,
    folder: Path,
    work: Callable[..., Any],
    *arguments: Any,
    timeout_s: float = PATIENCE_S,
) -> list[Any]:
    """Call work(ranks, *arguments), a function of a module, in `world` processes; return the results by rank."""
    folder.mkdir(parents=True, exist_ok=True)
    started = [
        warm().Process(target=_one, args=(rank, world, folder, timeout_s, work, *arguments), daemon=True)
        for rank in range(world)
    ]
    for process in started:
        process.start()
    for process in started:
        process.join(2 * PATIENCE_S)
    errors = [path.read_text() for path in sorted(folder.glob("error-*"))]
    assert not errors, "\n".join(errors)
    assert [process.exitcode for process in started] == [0] * world
    return [torch.load(folder / f"result-{rank}", weights_only=False) for rank in range(world)]
