"""Minibatches straight from the memory map, shuffled by blocks.

The order of an epoch is a function of (seed, epoch): the positions are cut into blocks, the blocks are permuted, and
the positions of some consecutive permuted blocks (a *buffer*) are permuted among themselves. Nothing of the size of the
epoch is kept but one number a block. Every rank walks the same order and takes its own rows of each global minibatch,
so that the union of the ranks is the epoch, once each, and all ranks make equally many steps without talking.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from lstlm.data.corpus import Split, drop_pages
from lstlm.data.vocabulary import Vocabulary
from lstlm.data.windows import I64, Batch, Subsampler, Windows, keep_probabilities, shown_words
from lstlm.errors import CheckpointError, ConfigError, DataError


class Sizes(NamedTuple):
    """In what pieces an epoch is shuffled and read."""

    block: int = 1024
    """Positions in a block: consecutive on disk, so 4 KiB, one page."""
    blocks: int = 64
    """Blocks permuted together: 65,536 positions, and 256 KiB of ids, which stay in the L2 cache."""
    held: int = 32
    """Buffers after which what was read is let go of: the system maps 64 KiB around each block, so 128 MiB at most."""
    ahead: int = 32
    """Batches that `coming` tells of at once."""

    @property
    def buffer(self) -> int:
        """Positions permuted together."""
        return self.block * self.blocks


USUAL = Sizes()


class EpochOrder:
    """The order of one epoch, one buffer of shuffled positions at a time: a function of (seed, epoch)."""

    def __init__(self, length: int, seed: int, epoch: int, sizes: Sizes = USUAL) -> None:
        self._length, self._key, self._sizes = length, (seed, epoch), sizes
        blocks = -(-length // sizes.block)
        self._order = np.random.default_rng((seed, epoch, 1)).permutation(blocks)
        self.buffers = -(-blocks // sizes.blocks)

    def positions(self, buffer: int) -> I64:
        """Return the positions of a buffer, in training order."""
        block, each = self._sizes.block, self._sizes.blocks
        blocks = self._order[buffer * each : (buffer + 1) * each]
        positions = (blocks[:, None] * block + np.arange(block)).ravel()
        positions = positions[positions < self._length]
        return np.random.default_rng((*self._key, 2, buffer)).permutation(positions)


class Examples:
    """An endless iterator of minibatches over the epochs of a split, for one rank of `world`.

    Each step of an epoch takes the next `batch_size · world` examples of its order; rank r gets the r-th part. The last
    step of an epoch takes what is left, in equal parts; fewer than `world` left-overs join the step before.
    `num_examples` and `batches_per_epoch` are exact without subsampling and expected values with it.
    """

    def __init__(
        self,
        split: Split,
        vocabulary: Vocabulary,
        *,
        context: int,
        kind: str = "previous",
        batch_size: int,
        seed: int,
        subsample: float = 0.0,
        unknown: float = 0.0,
        rank: int = 0,
        world: int = 1,
        sizes: Sizes = USUAL,
    ) -> None:
        if batch_size < 1:
            raise ConfigError(f"train.batch_size: {batch_size} is below 1")
        if not 0 <= rank < world:
            raise ConfigError(f"rank {rank} is not below world size {world}")
        if not 0 <= subsample < 1:
            raise ConfigError(f"data.subsample: {subsample} is outside [0, 1)")
        if seed < 0:
            raise ConfigError(f"train.seed: {seed} is below 0")
        self._windows = Windows(split, context, kind)
        self._pending: I64
        self._split, self._counts, self._pieces = split, vocabulary.counts, sizes
        self._batch_size, self._seed, self._subsample = batch_size, seed, subsample
        self._rank, self._world, self._unknown = rank, world, unknown
        self.num_examples = self._count_examples()
        if self.num_examples < world:
            raise DataError(f"{split.name}: {self.num_examples} examples for {world} ranks; prepare a larger corpus")
        full, rest = divmod(self.num_examples, batch_size * world)
        self.batches_per_epoch = max(1, full + (rest >= world))
        self.restore({"epoch": 0, "batch": 0, "buffer": 0, "offset": 0})

    def _count_examples(self) -> int:
        if not self._subsample:
            return self._windows.num_examples
        words = (
            np.bincount(self._split.ids, minlength=len(self._counts)) if self._split.tokens < 1 << 20 else self._counts
        )
        share = float((words * keep_probabilities(self._counts, self._subsample)).sum() / max(1, words.sum()))
        return round(self._windows.num_examples * share)

    @property
    def epoch(self) -> int:
        """The epoch of the batch that comes next, from 0."""
        return self._epoch

    def state(self) -> dict[str, int]:
        """Return the position in the sequence: plain numbers, the same on every rank."""
        return {"epoch": self._epoch, "batch": self._batch, "buffer": self._buffer, "offset": self._offset}

    def restore(self, state: dict[str, int]) -> None:
        """Continue the very same sequence from a `state()`, without walking through what came before."""
        names = ("epoch", "batch", "buffer", "offset")
        if not isinstance(state, dict) or any(type(state.get(name)) is not int for name in names):
            raise CheckpointError(f"the saved data position {state!r} is damaged; resume from another checkpoint")
        epoch, batch, buffer, offset = (state[name] for name in names)
        self._start_epoch(epoch)
        if not (0 <= buffer < self._order.buffers and 0 <= offset <= self._pieces.buffer and batch >= 0 and epoch >= 0):
            raise CheckpointError(f"the saved data position {state} is not in this corpus; was it prepared again?")
        self._batch, self._buffer, self._offset, self._next_buffer = batch, buffer, offset, buffer
        self._load_buffer()
        if offset > self._sizes[0]:
            raise CheckpointError(f"the saved data position {state} is not in this corpus; was it prepared again?")
        self._pending = self._pending[offset:]

    def _start_epoch(self, epoch: int) -> None:
        self._epoch = epoch
        self._order = EpochOrder(self._split.tokens, self._seed, epoch, self._pieces)
        self._sampler = Subsampler(self._counts, self._subsample, self._seed, epoch) if self._subsample else None
        self._shown = shown_words(self._counts, self._unknown, self._seed, epoch) if self._unknown else None
        self._batch = self._buffer = self._offset = self._next_buffer = 0
        self._pending = np.zeros(0, dtype=np.int64)  # positions in training order that no batch has taken yet
        self._sizes: list[int] = []  # examples of the buffers from self._buffer on, as far as loaded
        self._ready: list[tuple[int, Batch]] = []  # built batches of this rank, last one first, with their global size

    def _load_buffer(self) -> None:
        if self._next_buffer % self._pieces.held == 0:
            drop_pages(self._split.ids)
        positions = self._windows.select(self._order.positions(self._next_buffer), self._sampler)
        self._pending = np.concatenate((self._pending, positions))
        self._sizes.append(len(positions))
        self._next_buffer += 1

    def _plan(self) -> list[int]:
        """Return the global sizes of the next steps, as far as the loaded buffers tell; none at the epoch's end."""
        step, world = self._batch_size * self._world, self._world
        while len(self._pending) < step + world and self._next_buffer < self._order.buffers:
            self._load_buffer()
        if self._next_buffer < self._order.buffers:  # keep `world` back: they may have to join the step before
            return [step] * ((len(self._pending) - world) // step)
        full, rest = divmod(len(self._pending), step)
        if rest >= world:
            return [step] * full + [rest]
        return [step] * (full - 1) + [step + rest] if full else []

    def _refill(self) -> None:
        sizes = self._plan()
        for _ in range(100):
            if sizes:
                break
            self._start_epoch(self._epoch + 1)  # subsampling left less than one example a rank
            sizes = self._plan()
        else:
            raise DataError(f"{self._split.name}: data.subsample {self._subsample} leaves no examples; raise it")
        starts = np.cumsum([0, *sizes])
        bounds = [
            (b + s * self._rank // self._world, b + s * (self._rank + 1) // self._world)
            for b, s in zip(starts[:-1], sizes, strict=True)
        ]
        mine = np.concatenate([self._pending[low:high] for low, high in bounds])
        self._pending = self._pending[starts[-1] :]
        built = self._windows.build(mine, self._sampler)
        if self._shown is not None:
            built = built.shown_as(self._shown)
        edges = np.cumsum([0, *(high - low for low, high in bounds)]).tolist()
        self._ready = [(size, built.rows(edges[i], edges[i + 1])) for i, size in enumerate(sizes)][::-1]

    def coming(self) -> I64 | None:
        """Return the targets of the next batches, as far as they are built, now and then; else None."""
        if self._batch % self._pieces.ahead:
            return None
        if not self._ready:
            self._refill()
        return np.concatenate(
            [batch.target_ids.reshape(-1) for _, batch in self._ready[: -self._pieces.ahead - 1 : -1]]
        )

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        if not self._ready:
            self._refill()
        size, batch = self._ready.pop()
        self._batch += 1
        self._offset += size
        while self._sizes and self._offset >= self._sizes[0]:
            self._offset -= self._sizes.pop(0)
            self._buffer += 1
        if self._buffer == self._order.buffers:
            self._start_epoch(self._epoch + 1)
        return batch


def evaluation_batches(
    split: Split,
    vocabulary: Vocabulary,
    *,
    context: int,
    kind: str = "previous",
    batch_size: int,
    limit: int | None = None,
    sizes: Sizes = USUAL,
) -> Iterator[Batch]:
    """Yield the examples of a split in corpus order, once, the first `limit` of them if given."""
    if batch_size < 1:
        raise ConfigError(f"batch size {batch_size} is below 1")
    if len(vocabulary) <= int(split.ids[: sizes.block].max(initial=0)):
        raise DataError(f"{split.name}: has ids beyond the {len(vocabulary)} words of the vocabulary; not its corpus")
    windows = Windows(split, context, kind)
    left = windows.num_examples if limit is None else min(limit, windows.num_examples)
    carried = np.zeros(0, dtype=np.int64)
    chunk = max(batch_size, sizes.buffer)
    for start in range(0, split.tokens, chunk):
        carried = np.concatenate((carried, windows.select(np.arange(start, min(start + chunk, split.tokens)))))[:left]
        last = start + chunk >= split.tokens or len(carried) == left
        usable = len(carried) if last else len(carried) - len(carried) % batch_size
        built = windows.build(carried[:usable])
        for at in range(0, usable, batch_size):
            yield built.rows(at, min(at + batch_size, usable))
        carried, left = carried[usable:], left - usable
        if left <= 0:
            return
