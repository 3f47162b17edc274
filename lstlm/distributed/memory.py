"""Ranks of one machine hand tensors over through memory that they share, and tell each other by a byte in a pipe.

A message is copied once, into the sender's part of the memory, and read there by whoever needs it. Through sockets it
is copied four times by three threads a rank, and the threads have to be woken: most of a step of some hundred examples.

Every rank has two parts and takes them in turn. Who writes a part again knows that the others have read it: they have
announced the message after it since.
"""

from __future__ import annotations

import math
import mmap
import os
import select
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Bytes = NDArray[np.uint8]

PART = 1 << 24  # bytes of a part; longer messages go in several pieces
_SPIN_S = 2e-3  # how long to look again and again before going to sleep: to be woken takes longer than a message
_HEAD = 4096  # bytes before the data of a part: the message's length, and where what is for rank 0, 1, … starts
_GONE = "another rank has left the shared memory"
_BOOT = Path("/proc/sys/kernel/random/boot_id")


class SharedMemory:
    """The memory between `world` ranks of one machine, and this rank's pipes to and from each of the others."""

    def __init__(
        self, rank: int, world: int, memory: int, hear: Sequence[int], tell: Sequence[int], timeout_s: float
    ) -> None:
        """Take the descriptors of the memory and of the pipes; `open_memory` makes them."""
        self.rank, self.world, self.timeout_s = rank, world, timeout_s
        self._hear, self._tell = hear, tell
        # where ranks outnumber the processors, one that looks again and again only keeps the others from theirs
        self._spin_s = _SPIN_S if len(os.sched_getaffinity(0)) >= world else 0.0
        # numpy: a few small copies a message, which cost it a tenth of what they cost torch
        whole = np.frombuffer(mmap.mmap(memory, _size(world)), dtype=np.uint8).reshape(2, world, _HEAD + PART)
        os.close(memory)
        self._parts = [list(parts) for parts in whole[:, :, _HEAD:]]
        self._heads = whole[:, :, :_HEAD].view(np.int64)
        self._turn = 0

    def total_(self, x: Tensor) -> None:
        """Overwrite x, contiguous, by its sum over the ranks, added in their order; all ranks read all of it."""
        numbers = x.numpy().reshape(-1)
        message = numbers.view(np.uint8)
        for begins, parts, _ in self._rounds(message, [0] * self.world):
            mine = message[begins : begins + PART].view(numbers.dtype)
            terms = [part.view(numbers.dtype)[: len(mine)] for part in parts]
            np.add(terms[0], terms[1], out=mine)
            for term in terms[2:]:
                mine += term

    def gather(self, out: Tensor, x: Tensor, sizes: Sequence[int]) -> None:
        """Fill `out` by the rows of all ranks one after the other; `sizes` says how many each has."""
        lengths = [size * _row(x) for size in sizes]
        self._receive(_flat(out), _flat(x), [0] * self.world, lengths, slice(0, 0))

    def exchange(self, out: Tensor, x: Tensor, send: Sequence[int], receive: Sequence[int]) -> None:
        """Send the first send[0] rows of x to rank 0, and so on; fill `out` by what was received, by rank."""
        row = _row(x)
        starts = [row * before for before in (0, *accumulate(send))]
        own = slice(starts[self.rank], starts[self.rank + 1])
        self._receive(_flat(out), _flat(x), starts[:-1], [row * count for count in receive], own)

    def _receive(self, out: Bytes, message: Bytes, starts: list[int], lengths: Sequence[int], left_out: slice) -> None:
        """Fill `out` by lengths[r] bytes of the message of each rank r; what this one has for r is at starts[r]."""
        wanted = [out[end - length : end] for end, length in zip(accumulate(lengths), lengths, strict=True)]
        for begins, parts, firsts in self._rounds(message, starts, left_out):
            for rank, (target, part, first) in enumerate(zip(wanted, parts, firsts, strict=True)):
                # bytes [begins, begins + PART) of the message are here, [first, first + len(target)) are wanted
                low, high = max(first, begins), min(first + len(target), begins + PART)
                if low < high and rank != self.rank:
                    target[low - first : high - first] = part[low - begins : high - begins]
        wanted[self.rank][:] = message[starts[self.rank] :][: lengths[self.rank]]

    def _rounds(
        self, message: Bytes, starts: list[int], left_out: slice = slice(0, 0)
    ) -> Iterator[tuple[int, list[Bytes], list[int]]]:
        """Show the bytes of a message but for `left_out` to the others, PART of them at a time.

        Yields where this piece begins, everyone's part, and where in everyone's message that for this rank starts.
        """
        begins, longest = 0, 1
        while begins < longest:
            parts, heads = self._parts[self._turn], self._heads[self._turn]
            heads[self.rank, : 1 + self.world] = (len(message), *starts)
            for low, high in ((0, left_out.start), (left_out.stop, len(message))):
                low, high = max(low, begins), min(high, begins + PART)
                if low < high:
                    parts[self.rank][low - begins : high - begins] = message[low:high]
            self._meet()
            self._turn = 1 - self._turn
            longest = int(heads[:, 0].max())
            yield begins, parts, heads[:, 1 + self.rank].tolist()
            begins += PART

    def _meet(self) -> None:
        """Tell the others that this rank's part is written, and wait until they have said so of theirs."""
        try:
            for pipe in self._tell:
                os.write(pipe, b"\0")
        except BrokenPipeError:
            raise RuntimeError(_GONE) from None
        for pipe in self._hear:
            self._wait(pipe)

    def _wait(self, pipe: int) -> None:
        spin_until = time.monotonic() + self._spin_s
        while True:
            try:
                if os.read(pipe, 1):
                    return
                raise RuntimeError(_GONE)
            except BlockingIOError:
                if time.monotonic() < spin_until:
                    os.sched_yield()  # the other rank may have to run on this very processor
                elif not _readable(pipe, self.timeout_s):
                    raise RuntimeError("another rank has not come to the shared memory in time") from None

    def close(self) -> None:
        """Let go of the pipes; the memory goes with the last rank."""
        for pipe in (*self._tell, *self._hear):
            os.close(pipe)


def open_memory(rank: int, world: int, collect: Callable[[Any], list[Any]], timeout_s: float) -> SharedMemory | None:
    """Return memory that all ranks share; None, on all of them, where they are not on one Linux machine. Collective.

    Memory and pipes have no names: the others find them among the open files of the rank that made them, and nothing
    is left behind, however the ranks end. `collect` returns what all ranks pass to it.
    """
    made: list[int] = []  # memory, of which that of rank 0 is used; where to write to this rank; where this rank reads
    try:
        made.append(os.memfd_create("lstlm"))
        os.ftruncate(made[0], _size(world))
        pipes = [os.pipe() for _ in range(world)]  # from every rank to this one; that from itself stays unused
        made += [write for _, write in pipes] + [read for read, _ in pipes]
        told = (_BOOT.read_text(), [_name(file) for file in made[: 1 + world]])
    except (OSError, AttributeError):  # not Linux
        told = None
    everyone = collect(told)
    opened: list[int] = []
    try:
        if None not in everyone and len({boot for boot, _ in everyone}) == 1:
            opened.append(_reopen(everyone[0][1][0], os.O_RDWR))
            for _, names in everyone:
                opened.append(_reopen(names[1 + rank], os.O_WRONLY))
    except OSError:  # another container, or another user
        pass
    if not all(collect(len(opened) == 1 + world)):
        for file in (*made, *opened):
            os.close(file)
        return None
    for file in made[: 1 + world]:  # a pipe ends when the rank that writes to it does: no other may hold it open
        os.close(file)
    hear, tell = made[1 + world :], opened[1:]
    for ends in (hear, tell):
        os.close(ends.pop(rank))
    for pipe in hear:
        os.set_blocking(pipe, False)
    return SharedMemory(rank, world, opened[0], hear, tell, timeout_s)


def _name(file: int) -> tuple[str, int, int]:
    """Return where another process finds an open file, and what tells that it is the right one."""
    found = os.fstat(file)
    return f"/proc/{os.getpid()}/fd/{file}", found.st_dev, found.st_ino


def _reopen(name: tuple[str, int, int], flags: int) -> int:
    path, *identity = name
    found = os.stat(path)
    if [found.st_dev, found.st_ino] != identity:  # the number means another process here: do not touch its files
        raise OSError(f"{path} is another file here")
    return os.open(path, flags)


def _readable(pipe: int, seconds: float) -> bool:
    """Sleep until there is something to read, or nobody left to write; False after so many seconds."""
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    return bool(poll.poll(1e3 * seconds))


def _size(world: int) -> int:
    return 2 * world * (_HEAD + PART)


def _flat(x: Tensor) -> Bytes:
    """Return the bytes of x, contiguous."""
    return x.numpy().reshape(-1).view(np.uint8)


def _row(x: Tensor) -> int:
    """Return the bytes of a row of x, which may have none."""
    return math.prod(x.shape[1:]) * x.element_size()
