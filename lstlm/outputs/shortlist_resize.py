"""Another vocabulary for a shortlist head that has learned."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lstlm.errors import ConfigError

if TYPE_CHECKING:
    from lstlm.outputs.shortlist import ShortlistOutput


@torch.no_grad()
def resize(layer: ShortlistOutput, keep: Tensor | None, counts: Tensor) -> None:
    """Keep the words `keep` of a layer, append words up to len(counts): see `ShortlistOutput.resize_vocabulary`."""
    keep = torch.arange(layer.vocab) if keep is None else keep.cpu()
    if len(torch.unique(keep)) != len(keep) or bool(((keep < 0) | (keep >= layer.vocab)).any()):
        raise ConfigError(f"keep: ids must be distinct and within the vocabulary of {layer.vocab}")
    if len(counts) < len(keep):
        raise ConfigError(f"counts has {len(counts)} words, {len(keep)} are kept: give one for every word")
    rank, near = layer.rank.cpu()[keep], layer.vocab - layer.tail.vocab
    listed, far = rank < layer.shortlist, rank >= near
    if not bool(listed.any()) or len(counts) - int((~far).sum()) < 2:
        raise ConfigError("resize: at least one word of the list and two of the tail must stay")
    where, vectors = layer.rank.device, layer.tail_part(layer.weight())
    vectors = torch.cat([vectors, layer.bias_vector()[:, None]], 1)[keep]
    words, stays = torch.arange(len(counts)), rank[~far].sort().values.to(where)
    order = torch.cat([words[: len(keep)][~far][rank[~far].argsort()], words[: len(keep)][far], words[len(keep) :]])
    top = layer.top_of(stays[stays < layer.shortlist])
    if layer.middle is not None:
        classes = layer.middle.keep_(stays[stays >= layer.shortlist] - layer.shortlist)
        top = torch.cat([top, layer.shortlist + classes])
    layer.head.keep_(torch.cat([top, top.new_tensor([len(layer.head.matrix) - 1])]))
    tail = order[len(stays) :]
    W = vectors.new_zeros(len(tail), vectors.shape[1])
    W[: int(far.sum())] = vectors[far]
    prior = layer._prior(counts.cpu()[tail])
    layer.discard()
    layer._vocab, layer.shortlist = len(counts), int(listed.sum())
    layer.word_of_rank, layer.rank = order.to(where), order.argsort().to(where)
    layer.tail = layer._make_tail(len(tail), prior=prior, init_scale=0.0)
    W *= (prior / prior.sum()).sqrt()[:, None].to(W)
    layer.tail.set_weight(W if layer.tail.has_bias else layer.tail_part(W))
