"""The exact rank of a word, from every output layer, against its definition over all scores."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from lstlm.errors import LstlmError
from lstlm.outputs import make_output
from lstlm.protocol.scan import SCAN_ROWS
from tests.outputs.dense_outputs import Dense
from tests.outputs.test_outputs_battery import (
    EXAMPLES,
    HIDDEN,
    LAYERS,
    NORMALISED,
    VOCAB,
    batch,
    config_of,
    dense_of,
    make,
)


class Largest(TorchDispatchMode):
    """Remembers the size of the largest tensor that an operation returned."""

    numel = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        if torch.is_tensor(result):
            self.numel = max(self.numel, result.numel())
        return result


def dense_ranks(dense: Dense, normalised: bool, h: Tensor, ids: Tensor) -> Tensor:
    """Return 1 + the number of words above, in the shape of ids: a higher score, or an equal one and a lower id."""
    scores = (dense.log_probs(h) if normalised else dense.outputs(h)).detach()
    ahead = scores[:, None] - scores.gather(1, ids)[:, :, None]  # (m,K,D)
    tied = (ahead.abs() < 1e-12) & (torch.arange(scores.shape[1]) < ids[:, :, None])
    return 1 + ((ahead >= 1e-12) | tied).sum(2)


words = pytest.mark.parametrize("vocab", [VOCAB, SCAN_ROWS + 7], ids=["one block", "several blocks"])


@words
@pytest.mark.parametrize("K", [1, 3])
@pytest.mark.parametrize("name", LAYERS)
def test_ranks_are_those_of_the_definition(name: str, K: int, vocab: int) -> None:
    layer = make(name, vocab=vocab)
    for m in (1, EXAMPLES, 50):
        h, ids, _ = batch(9, m, K, vocab=vocab)
        expected = dense_ranks(dense_of(name, layer), name in NORMALISED, h, ids)
        assert torch.equal(layer.rank_of(h, ids), expected)
        assert torch.equal(layer.rank_of(h, ids[:, 0]), expected[:, 0])
        _, best = layer.topk(h, 3)
        assert torch.equal(layer.rank_of(h, best), torch.tensor([[1, 2, 3]]).expand(m, 3))


@words
@pytest.mark.parametrize("name", LAYERS)
def test_every_word_has_a_rank_of_its_own_even_where_all_scores_are_equal(name: str, vocab: int) -> None:
    layer = make(name, vocab=vocab, init_scale=0.0)
    h, _, _ = batch(9, 1)
    ids = torch.arange(vocab)[None]
    found = layer.rank_of(h, ids)
    assert torch.equal(found, dense_ranks(dense_of(name, layer), name in NORMALISED, h, ids))
    assert torch.equal(found.sort(1).values, ids + 1)
    if not name.startswith(("hierarchical", "adaptive", "shortlist")):  # there, words of smaller classes are likelier
        assert torch.equal(found, ids + 1)


@pytest.mark.parametrize("name", LAYERS)
def test_what_is_not_a_number_is_no_hit(name: str) -> None:
    h, ids, _ = batch(9)
    assert int(make(name).rank_of(torch.full_like(h, torch.nan).detach(), ids).min()) > VOCAB - 1


@pytest.mark.parametrize(
    "name", [name for name in LAYERS if not name.startswith(("adaptive", "shortlist"))]
)  # which take more
def test_ranks_among_two_words(name: str) -> None:
    counts = torch.tensor([3, 2])
    generator = torch.Generator().manual_seed(1)
    layer = make_output(config_of(name), HIDDEN, counts, dtype=torch.float64, generator=generator)
    h, _, _ = batch(9)
    assert set(layer.rank_of(h, torch.zeros(len(h), dtype=torch.int64)).tolist()) == {1, 2}
    both = layer.rank_of(h, torch.tensor([0, 1]).expand(len(h), 2))
    assert torch.equal(both.sum(1), torch.full((len(h),), 3))


@pytest.mark.parametrize("name", [name for name in LAYERS if not name.startswith("naive")])  # whose ‖o‖² needs it
def test_ranks_hold_no_table_of_all_scores(name: str) -> None:
    vocab = 3 * SCAN_ROWS
    layer = make(name, vocab=vocab)
    h, ids, _ = batch(9, 100)
    with Largest() as largest:
        layer.rank_of(h.detach(), ids)
    assert 0 < largest.numel < 100 * vocab // 2


@pytest.mark.parametrize("name", LAYERS)
def test_ranks_of_bad_ids_are_a_readable_error(name: str) -> None:
    h, ids, _ = batch(9)
    for wrong in (ids + VOCAB, ids - VOCAB, ids[1:], ids.double()):
        with pytest.raises(LstlmError):
            make(name).rank_of(h, wrong)
