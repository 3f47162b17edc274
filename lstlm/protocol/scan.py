"""Scans over the vocabulary, a block of scores at a time: the best outputs, and the exact rank of given ones.

A scan yields blocks (ids (n,), how to compute their scores (m,n)) that cover the vocabulary; calling it again begins
again. Nothing of size m·D is held, and a block that is not looked at costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

SCAN_ROWS = 512  # rows of W that are scored at a time: the scores of 1000 examples stay in the cache

Block = tuple[Tensor, Callable[[], Tensor]]
Scan = Callable[[], Iterable[Block]]


def parts(rows: int, most: int | None = None) -> list[slice]:
    """Cover `rows` rows by slices of at most `most`, of SCAN_ROWS where None."""
    most = SCAN_ROWS if most is None else most
    return [slice(start, min(start + most, rows)) for start in range(0, rows, most)]


def top_of(scan: Scan, k: int) -> tuple[Tensor, Tensor]:
    """Return the k best scores and their ids, both (m,k), best first; fewer columns where there are fewer outputs."""
    best: tuple[Tensor, Tensor] | None = None
    for ids, compute in scan():
        scores, at = (block := compute()).topk(min(k, block.shape[1]), dim=1)
        found = ids[at]
        if best is not None:
            scores, found = torch.cat([best[0], scores], 1), torch.cat([best[1], found], 1)
            scores, at = scores.topk(min(k, scores.shape[1]), dim=1)
            found = found.gather(1, at)
        best = scores, found
    if best is None:
        raise ValueError("a scan needs at least one block")
    return best


def ranks_of(scan: Scan, targets: Tensor, total: Callable[[Tensor], Tensor] = lambda x: x) -> Tensor:
    """Return 1 + the number of outputs ahead of each target, int64 in the shape of targets, (m,) or (m,K).

    Ahead of y is j with a higher score, or with the same score and a lower id: the place of y in a stable sort. `total`
    adds up over everyone who scans a part of the vocabulary. Blocks that hold a target are computed twice, the others
    once: to see ties, a target needs its score as the scan computes it, and rounding depends on the way.
    """
    columns = targets.reshape(len(targets), -1)
    own = total(_own_scores(scan, columns))
    ahead = torch.zeros_like(columns)
    for ids, compute in scan():
        scores = compute()
        own = own.to(scores.dtype)
        marks = torch.empty_like(scores)  # numbers, not truth values: torch adds those up ten times as fast
        for column, (y, score) in enumerate(zip(columns.T, own.T, strict=True)):
            # "not below or equal", for nan: what is not a number must never pass for the best
            ahead[:, column] += scores.shape[1] - _counts(torch.le(scores, score[:, None], out=marks))
            tied = _counts(torch.eq(scores, score[:, None], out=marks)).nonzero()[:, 0]
            ahead[tied, column] += _counts(marks[tied] * (ids < y[tied, None]))
    return total(ahead).add_(1).reshape(targets.shape)


def _counts(marks: Tensor) -> Tensor:
    return marks.sum(1).long()


def _own_scores(scan: Scan, columns: Tensor) -> Tensor:
    """Return the scores (m,K) of the targets columns (m,K), in float64; 0 for a target that the scan does not meet."""
    own = torch.zeros(columns.shape, dtype=torch.float64, device=columns.device)
    for ids, compute in scan():
        ordered, order = ids.sort()
        place = torch.searchsorted(ordered, columns).clamp_(max=len(ids) - 1)
        here = (ordered[place] == columns).nonzero(as_tuple=True)
        if len(here[0]):
            own[here] = compute()[here[0], order[place[here]]].to(own.dtype)
    return own
