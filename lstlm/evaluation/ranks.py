"""Where the right answer stands among all words, from any output layer's `topk`."""

import torch
from torch import Tensor

from lstlm.outputs.protocol import OutputLayer

DEPTH = 1000
"""Ranks beyond this are not told apart: each would add less than 1/1000 to a mean reciprocal rank."""


def ranks(output: OutputLayer, h: Tensor, ids: Tensor, depth: int = DEPTH) -> Tensor:
    """Return the rank (m,) int64 of ids (m,) among all words by score: 1 is the best, 0 stands for beyond `depth`.

    h (m,hidden). One sweep over the vocabulary, O(D·hidden) an example and, in the factored layer, O(D·hidden²) once:
    ask for many at once.
    """
    _, best = output.topk(h, min(depth, output.vocab))
    hits = best == ids[:, None]
    return torch.where(hits.any(1), hits.int().argmax(1) + 1, 0)
