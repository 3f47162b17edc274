"""One LSTM, two heads: `lstlm.ShortlistSoftmax` beside `torch.nn.AdaptiveLogSoftmaxWithLoss`, on the demo corpus.

    lstlm prepare --source demo --out data/demo
    python examples/lstm_heads.py data/demo --steps 300

Both start from the same trunk (word vectors and an LSTM, by Adam) and see the same minibatches of 32 sequences of 20
words. torch's head learns by the same Adam; ours takes its own step, which is one line: `head.follow(optimizer, …)`.
Each has the best of Adam's rates 0.002, 0.004, 0.008, 0.016 (and 0.032 for torch's).
Memory is that of a head's weights, gradients and optimiser state. It printed, on one core of a busy machine:

    16213 words, 300 steps of 32 x 20
    ShortlistSoftmax            perplexity  229.8    12.0 CPU s   head   12.9 MiB
    AdaptiveLogSoftmaxWithLoss  perplexity  219.8    14.0 CPU s   head    8.7 MiB
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from lstlm import Corpus, ShortlistSoftmax

SEQUENCES, LENGTH, WIDTH = 32, 20, 256
RATES = {"ShortlistSoftmax": 8e-3, "AdaptiveLogSoftmaxWithLoss": 1.6e-2}  # Adam's, the best of those tried


class Trunk(nn.Module):
    """Word vectors and one LSTM: ids (B,T) to hidden values (B,T,WIDTH)."""

    def __init__(self, words: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, 128)
        self.lstm = nn.LSTM(128, WIDTH, batch_first=True)

    def forward(self, ids: Tensor, state: tuple[Tensor, Tensor] | None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        hidden, state = self.lstm(self.embedding(ids), state)
        return hidden, tuple(part.detach() for part in state)


def minibatches(ids: Tensor, rows: int = SEQUENCES) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield words (B,T) and the words after them, one piece of B long sequences after the other, again and again."""
    length = (len(ids) - 1) // rows
    words, following = (ids[shift : shift + rows * length].view(rows, length) for shift in (0, 1))
    while True:
        for start in range(0, length - LENGTH, LENGTH):
            yield words[:, start : start + LENGTH], following[:, start : start + LENGTH]


def train(head: nn.Module, trunk: Trunk, ids: Tensor, steps: int, rate: float) -> tuple[float, torch.optim.Optimizer]:
    """Train both; return CPU seconds, and the optimizer."""
    # torch's head has parameters, ours has none
    optimizer = torch.optim.Adam([*trunk.parameters(), *head.parameters()], lr=rate)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / (steps + 1))
    if isinstance(head, ShortlistSoftmax):
        head.follow(optimizer, lr=0.05)
    state, began = None, time.process_time()
    for (words, following), _ in zip(minibatches(ids), range(steps), strict=False):
        hidden, state = trunk(words, state)
        if isinstance(head, ShortlistSoftmax):
            loss = head(hidden, following).loss
        else:  # which takes no sequences
            loss = head(hidden.flatten(0, 1), following.flatten()).loss
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(trunk.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    return time.process_time() - began, optimizer


@torch.no_grad()
def perplexity(head: nn.Module, trunk: Trunk, ids: Tensor, pieces: int = 30) -> float:
    """Return exp of the mean loss over some pieces of the validation text."""
    trunk.eval()
    head.eval()
    total, state = 0.0, None
    for (words, following), _ in zip(minibatches(ids), range(pieces), strict=False):
        hidden, state = trunk(words, state)
        total += float(head(hidden.flatten(0, 1), following.flatten()).loss)
    return math.exp(total / pieces)


def megabytes(head: nn.Module, optimizer: torch.optim.Optimizer) -> float:
    """Return the size of the head's weights and buffers, their gradients and their state in the optimizer."""
    tensors = [*head.parameters(), *head.buffers()]
    for parameter in head.parameters():
        tensors += [parameter] if parameter.grad is not None else []  # the gradient, of the same size
        tensors += [x for x in optimizer.state[parameter].values() if isinstance(x, Tensor)]
    return sum(x.numel() * x.element_size() for x in tensors) / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", help="folder that `lstlm prepare` wrote")
    parser.add_argument("--steps", type=int, default=300)
    given = parser.parse_args()
    torch.set_num_threads(1)
    corpus = Corpus.open(given.corpus)
    counts = torch.as_tensor(corpus.vocabulary.counts)
    # both heads want the most frequent words first; here the ids of a corpus are renumbered so, for a fair comparison
    rank = counts.argsort(descending=True, stable=True).argsort()
    train_ids, valid_ids = (rank[torch.as_tensor(split.ids.astype("int64"))] for split in (corpus.train, corpus.valid))
    words = len(counts)
    print(f"{words} words, {given.steps} steps of {SEQUENCES} x {LENGTH}")
    for name in ("ShortlistSoftmax", "AdaptiveLogSoftmaxWithLoss"):
        torch.manual_seed(1)
        trunk = Trunk(words)
        if name == "ShortlistSoftmax":
            head: nn.Module = ShortlistSoftmax(WIDTH, words, counts=counts.sort(descending=True).values, shortlist=500)
        else:
            head = nn.AdaptiveLogSoftmaxWithLoss(WIDTH, words, [500, words // 4])
        seconds, optimizer = train(head, trunk, train_ids, given.steps, RATES[name])
        found = perplexity(head, trunk, valid_ids)
        size = megabytes(head, optimizer)
        print(f"{name:<27} perplexity {found:6.1f}   {seconds:5.1f} CPU s   head {size:6.1f} MiB")


if __name__ == "__main__":
    main()
