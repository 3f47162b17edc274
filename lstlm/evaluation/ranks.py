"""Where the right answer stands among all words: exact ranks from any output layer's `topk`."""

import torch
from torch import Tensor

from lstlm.outputs.protocol import OutputLayer

_BLOCK_BYTES = 256 << 20  # of (examples, vocabulary) scores that a layer may hold at once


def ranks(output: OutputLayer, h: Tensor, ids: Tensor) -> Tensor:
    """Return the rank (m,) int64 of ids (m,) among all words by score, 1 being the best.  h (m,hidden).

    Asks for a short list first and for longer ones only where the answer was not in it, so an example that the model
    does well costs one product with the vocabulary, O(D·hidden), and the worst case costs four.
    """
    found = torch.zeros(len(ids), dtype=torch.int64, device=ids.device)
    open_rows = torch.arange(len(ids), device=ids.device)
    vocab = output.vocab
    lengths = sorted({min(vocab, length) for length in (64, 4096, vocab // 8 + 1, vocab)})
    step = max(1, _BLOCK_BYTES // (12 * vocab))
    for length in lengths:
        for start in range(0, len(open_rows), step):
            rows = open_rows[start : start + step]
            _, best = output.topk(h[rows], length)
            hits = best == ids[rows, None]
            found[rows] = torch.where(hits.any(1), hits.int().argmax(1) + 1, 0)
        open_rows = open_rows[found[open_rows] == 0]
    return found
