"""The processes of a run, and everything that they say to each other: the only file that calls a collective.

Every method that says *collective* must be called by all ranks, in the same order. What they return is the same on all
ranks, to the last bit, unless the method says otherwise. `sent` counts the bytes that this rank sends, by the usual
algorithms: a ring for sums and gathers, one message a peer for exchanges.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist

# Now, before any group exists: its functions keep the group of that moment as a default argument, so that closing it
# later would end none of its threads. The first optimiser would import it otherwise.
import torch.distributed.nn.functional
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

from lstlm.errors import ConfigError, LstlmError

TIMEOUT_S = 300.0
"""Seconds without an answer after which a rank gives up on the others."""

_Result = TypeVar("_Result")
# renamed in torch 2.13; the old name warns at every call
_all_gather: Callable[[Tensor, Tensor], object] = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)


class RankLost(LstlmError):
    """Another rank died, hangs, or said something that does not fit."""


class Ranks:
    """This process among `world` ones, which have joined a process group."""

    def __init__(self, device: torch.device, timeout_s: float = TIMEOUT_S) -> None:
        """Wrap the default process group, which `from_torchrun` and `join` make first."""
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.device, self.timeout_s = device, timeout_s
        self.sent = 0

    @classmethod
    def from_torchrun(cls, device: torch.device, timeout_s: float = TIMEOUT_S) -> Ranks | None:
        """Join the group that torchrun describes in the environment; None outside torchrun or for a single process."""
        if int(os.environ.get("WORLD_SIZE", "1")) < 2:
            return None
        if device.type == "cuda":
            device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
            torch.cuda.set_device(device)
        limit = timedelta(seconds=timeout_s)
        try:
            store, rank, world = next(rendezvous("env://", timeout=limit))
        except (RuntimeError, ValueError, OSError) as error:
            raise RankLost(f"torchrun's store does not answer within {timeout_s:g} s: {_reason(error)}") from error
        # The store outlives a restart and still holds the addresses of the processes before it.
        attempt = f"attempt-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
        store = dist.PrefixStore(attempt, store)  # type: ignore[attr-defined]  # public, but not listed
        return cls.join(device, timeout_s, store=store, rank=rank, world_size=world)

    @classmethod
    def through_file(cls, path: Path, rank: int, world: int, device: torch.device, timeout_s: float) -> Ranks:
        """Join the processes of one machine, which find each other through a new file."""
        store = dist.FileStore(str(path), world)  # type: ignore[attr-defined]  # public, but not listed
        return cls.join(device, timeout_s, store=store, rank=rank, world_size=world)

    @classmethod
    def join(cls, device: torch.device, timeout_s: float = TIMEOUT_S, **group: Any) -> Ranks:
        """Join a group through a `store`, as `rank` of `world_size`: gloo on the CPU, NCCL on GPUs."""
        backend = "nccl" if device.type == "cuda" else "gloo"
        try:
            dist.init_process_group(backend, timeout=timedelta(seconds=timeout_s), **group)
        except (RuntimeError, ValueError, OSError) as error:
            raise RankLost(f"the ranks did not find each other within {timeout_s:g} s: {_reason(error)}") from error
        return cls(device, timeout_s)

    def close(self) -> None:
        """Leave the group, whose threads end. Not after a failure, where nobody answers: then leave by `os._exit`."""
        dist.destroy_process_group()

    @property
    def first(self) -> bool:
        """True on the one rank that logs and writes."""
        return self.rank == 0

    def part(self, m: int) -> slice:
        """Return this rank's part of m examples: the parts of all ranks differ by one at most and cover m."""
        return slice(m * self.rank // self.world, m * (self.rank + 1) // self.world)

    def parts(self, m: int) -> list[int]:
        """Return the sizes of the parts of all ranks."""
        return [m * (r + 1) // self.world - m * r // self.world for r in range(self.world)]

    @contextmanager
    def _talking(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            raise RankLost(
                f"rank {self.rank} of {self.world}: no answer from the other ranks (limit {self.timeout_s:g} s): "
                f"{_reason(error)}; one of them has died or hangs: see its own message, then continue with "
                "--resume auto (torchrun --max-restarts N does so by itself)"
            ) from error

    # ---- tensors ---------------------------------------------------------------------------------------------------
    def total_(self, x: Tensor) -> Tensor:
        """Overwrite x by its sum over the ranks, and return it. Collective; sends 2(world−1)/world of x."""
        with self._talking():
            dist.all_reduce(x)
        self.sent += 2 * (self.world - 1) * _bytes(x) // self.world
        return x

    def gather(self, x: Tensor, sizes: Sequence[int]) -> Tensor:
        """Return x (n_r, …) of all ranks, one after the other; `sizes` are the n_r, known to all. Collective.

        Sends (world−1)·max(n_r) rows: shorter ones are filled up, which gloo needs.
        """
        x, longest = x.contiguous(), max(sizes)
        self.sent += (self.world - 1) * longest * math.prod(x.shape[1:]) * x.element_size()
        if len(x) < longest:
            x = torch.cat([x, x.new_zeros(longest - len(x), *x.shape[1:])])
        out = x.new_empty(self.world * longest, *x.shape[1:])
        if longest > 0:
            with self._talking():
                _all_gather(out, x)
        if min(sizes) == longest:
            return out
        return torch.cat([out[r * longest : r * longest + size] for r, size in enumerate(sizes)])

    def numbers(self, mine: Sequence[int]) -> list[list[int]]:
        """Return the few integers that every rank has, by rank. Collective."""
        table = self.gather(torch.tensor([list(mine)], dtype=torch.int64, device=self.device), [1] * self.world)
        rows: list[list[int]] = table.tolist()
        return rows

    def exchange(self, x: Tensor, send: Sequence[int], receive: Sequence[int]) -> Tensor:
        """Send the first send[0] rows of x to rank 0, and so on; return what was received, by rank. Collective.

        The result differs between the ranks. Sends the rows that are not for this rank itself.
        """
        out = x.new_empty(sum(receive), *x.shape[1:])
        with self._talking():
            dist.all_to_all_single(out, x.contiguous(), list(receive), list(send))
        self.sent += (len(x) - send[self.rank]) * _bytes(x[:1]) if len(x) else 0
        return out

    def copy_from_first_(self, tensors: Sequence[Tensor]) -> None:
        """Overwrite the tensors by those of rank 0. Collective."""
        with self._talking():
            for tensor in tensors:
                whole = tensor.to(self.device).contiguous()
                dist.broadcast(whole, src=0)
                tensor.copy_(whole)

    # ---- small Python values ---------------------------------------------------------------------------------------
    def collect(self, mine: Any) -> list[Any]:
        """Return the values that the ranks pass, by rank: plain Python, small. Collective."""
        found: list[Any] = [None] * self.world
        with self._talking():
            dist.all_gather_object(found, mine)
        return found

    def on_first(self, work: Callable[[], _Result]) -> _Result:
        """Let rank 0 do `work` while the others wait; return its result, small plain Python, everywhere. Collective.

        An error of rank 0 is raised there and ends the others in silence, with the same exit code: it is said once.
        """
        answer: list[Any] = [None, None]
        failure: Exception | None = None
        if self.first:
            try:
                answer = [work(), None]
            except Exception as error:  # told to the others, then raised again
                failure = error
                answer = [None, getattr(error, "exit_code", 1)]
        with self._talking():
            dist.broadcast_object_list(answer, src=0)
        if failure is not None:
            raise failure
        if answer[1] is not None:
            raise SystemExit(answer[1])
        result: _Result = answer[0]
        return result


def even_total(sizes: Sequence[int]) -> int:
    """Return the examples of all ranks, given each one's; raise unless they are even parts, those of `Ranks.part`."""
    m, world = sum(sizes), len(sizes)
    expected = [m * (r + 1) // world - m * r // world for r in range(world)]
    if list(sizes) != expected:
        raise ConfigError(
            f"the output layer: the ranks hold {list(sizes)} examples; even parts of the {m} are {expected}"
        )
    return m


def _bytes(x: Tensor) -> int:
    return x.numel() * x.element_size()


def _reason(error: BaseException) -> str:
    """Return the first sentence of a backend's message, without the place in its source."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    first = re.sub(r"^\[\S+:\d+\]\s*", "", lines[0]) if lines else type(error).__name__
    return first.split(". ")[0][:160].rstrip(".")
