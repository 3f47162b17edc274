"""How many threads a run takes: as many as a step keeps busy."""

import math
from itertools import pairwise

import torch

from lstlm.config import Config
from lstlm.cores import worthwhile_threads


def set_threads(config: Config, vocab: int, asked: int | None) -> None:
    """Use the `asked` threads, or as many as a step is worth of those that torch has (OMP_NUM_THREADS, else cores)."""
    most = torch.get_num_threads()
    torch.set_num_threads(worthwhile_threads(multiply_adds(config, vocab), most) if asked is None else asked)


def multiply_adds(config: Config, vocab: int) -> int:
    """Return about how many multiply-adds the products of a step take: its hidden layers and its output layer.

    A layer takes three products (forward, gradient of its inputs, gradient of its weights); the factored layer five
    with d × d matrices; a refit of all rows from co-occurrence is one large step.
    """
    model, output, batch = config.model, config.output, config.train.batch_size
    if config.data.context_kind == "cooccurrence":
        return vocab * model.embedding**2
    sizes = [config.combined, *model.hidden]
    hidden = 3 * batch * sum(a * b for a, b in pairwise(sizes))
    rows = {  # of the weights that a product of the output layer reads
        "naive": vocab,
        "softmax": vocab,
        "sampled": output.candidates,
        "hierarchical": 2 * math.isqrt(vocab),
        "adaptive": 2 * math.isqrt(vocab),
        "shortlist": output.shortlist + (output.classes or math.isqrt(output.middle)),
    }
    width = sizes[-1]
    factored = {"factored": width, "shortlist": min(width, output.tail_inputs)}
    square = 5 * factored.get(output.kind, 0) ** 2
    return hidden + batch * (square + 3 * width * rows.get(output.kind, 0))
