"""What the full softmax promises beyond being right: memory, and answers that do not depend on how it is cut up."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from lstlm.errors import ConfigError
from lstlm.outputs import FullSoftmax, rows
from lstlm.protocol.scan import SCAN_ROWS


class LargeStorages(TorchDispatchMode):
    """Collects the distinct storages of at least `size` numbers that operations return."""

    def __init__(self, size: int, known: list[Tensor]) -> None:
        super().__init__()
        self.size, self.known = size, {t.untyped_storage().data_ptr() for t in known}
        self.held: dict[int, Tensor] = {}  # holding them keeps the allocator from reusing an address

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for t in out if isinstance(out, (tuple, list)) else [out]:
            if isinstance(t, Tensor) and t.numel() >= self.size:
                pointer = t.untyped_storage().data_ptr()
                if pointer not in self.known:
                    self.held[pointer] = t
        return out


def test_a_step_holds_one_tensor_of_examples_by_words() -> None:
    m, vocab = 16, 5000
    layer = FullSoftmax(8, vocab)
    h = torch.randn(m, 8, requires_grad=True)
    with LargeStorages(m * vocab, [layer.rows.matrix]) as seen:
        layer(h, torch.arange(m)).mean().backward()
        layer.update(0.1)
    assert len(seen.held) == 1


def test_blocks_do_not_change_the_answer() -> None:
    words, generator = 2 * SCAN_ROWS + 7, torch.Generator().manual_seed(1)
    layer = FullSoftmax(8, words, dtype=torch.float64, init_scale=1.0, generator=generator)
    h = torch.randn(9, 8, dtype=torch.float64, generator=generator)
    expected = (h @ layer.weight().T + layer.bias_vector()).log_softmax(1)
    torch.testing.assert_close(layer.log_prob(h, torch.arange(9)), expected[:, :9].diagonal())
    best = expected.topk(20)
    scores, ids = layer.topk(h, 20)
    torch.testing.assert_close(scores, best.values)
    assert torch.equal(ids, best.indices)


def test_large_scores_do_not_overflow() -> None:
    layer = FullSoftmax(4, 50, init_scale=100.0, generator=torch.Generator().manual_seed(1))
    h = torch.full((3, 4), 100.0, requires_grad=True)
    losses = layer(h, torch.tensor([0, 1, 2]))
    losses.mean().backward()
    assert bool(torch.isfinite(losses).all())
    assert h.grad is not None
    assert bool(torch.isfinite(h.grad).all())


def test_backward_through_weights_that_have_changed_is_refused() -> None:
    layer = FullSoftmax(4, 50)
    h, ids = torch.randn(3, 4), torch.tensor([0, 1, 2])
    old = layer(h, ids)
    layer(h, ids).sum().backward()
    layer.update(0.1)
    with pytest.raises(ConfigError, match="weights have changed"):
        old.sum().backward()


def test_plain_data_as_h_still_trains_the_layer() -> None:
    layer = FullSoftmax(4, 50)
    before = layer.weight()
    layer(torch.randn(3, 4), torch.tensor([0, 1, 2])).sum().backward()
    layer.update(0.1)
    assert not torch.equal(before, layer.weight())


def test_backward_twice_through_one_forward_is_refused() -> None:
    layer = FullSoftmax(4, 50)
    loss = layer(torch.randn(3, 4), torch.tensor([0, 1, 2])).sum()
    loss.backward(retain_graph=True)
    with pytest.raises(ConfigError, match="backward twice"):
        loss.backward()


def test_a_decay_that_would_turn_the_weights_round_is_refused() -> None:
    layer = FullSoftmax(4, 50)
    layer(torch.randn(3, 4), torch.tensor([0, 1, 2])).sum().backward()
    with pytest.raises(ConfigError, match=r"weight_decay = 2\.0 with lr = 0\.5: needs"):
        layer.update(0.5, weight_decay=2.0)


def test_a_decayed_scale_is_folded_back_before_it_underflows() -> None:
    table = rows.ScaledRows(torch.ones(3, 2, dtype=torch.float64), bias=True)
    for _ in range(500):
        table.decay_(0.9)
        table.add_(
            torch.tensor([1, 1]), torch.ones(2, 2, dtype=torch.float64), torch.ones(2, dtype=torch.float64), 0.05
        )
    assert float(table.scale) >= 2.0**-10
    torch.testing.assert_close(table.weight()[1], torch.ones(2, dtype=torch.float64))  # 0.9 w + 0.1 tends to 1
    torch.testing.assert_close(table.weight()[0], torch.full((2,), 0.9**500, dtype=torch.float64))
