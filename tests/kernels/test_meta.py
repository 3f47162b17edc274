"""Nothing within a step reads a number on the host: every tensor is on a device that has none.

That is what a GPU needs, where to look at a number is to wait for all that was asked before. The one exception is the
look that the stabiliser and the check of the learning rate take every READ_EVERY updates.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from lstlm.config import ModelConfig
from lstlm.kernels.ops import RowValues, adagrad_rows, add_rows
from lstlm.nn.layers import HiddenLayers, SparseEmbedding
from lstlm.spherical import CustomLoss, SphericalOutput, make_loss
from lstlm.spherical.stabilise import READ_EVERY

D, hidden = 40, 11
LOSSES = ["squared", "spherical", "taylor", "z", "custom"]


def loss_of(name: str) -> object:
    return CustomLoss(lambda q, s, o, t, D: q / D + s + (t * o).sum(1)) if name == "custom" else make_loss(name)


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(*shape, dtype=dtype, device="meta")


def ids(*shape: int) -> Tensor:
    return meta(*shape, dtype=torch.int64)


def updated(head: SphericalOutput, before: int) -> None:
    assert head.state.version > before
    assert all(buffer.device.type == "meta" for name, buffer in head.named_buffers() if "history" not in name), (
        "a buffer has left the device"
    )


@pytest.mark.parametrize("prior", [False, True], ids=["", "prior"])
@pytest.mark.parametrize("K", [1, 3])
@pytest.mark.parametrize("m", [4, 30], ids=["low_rank", "square"])
@pytest.mark.parametrize("loss", LOSSES)
def test_forward_backward_and_update(loss: str, m: int, K: int, prior: bool) -> None:
    if prior and loss not in ("spherical", "taylor"):
        pytest.skip("a prior tilts a softmax")
    tilt = torch.arange(1.0, D + 1) if prior else None
    head = SphericalOutput(hidden, D, loss_of(loss), prior=tilt).to("meta")  # type: ignore[arg-type]
    for step in range(3):
        h, values, before = meta(m, hidden), meta(m, K), head.state.version
        if step % 2:
            head(h.requires_grad_(), ids(m, K), values).mean().backward()
            assert h.grad is not None and h.grad.shape == h.shape
        else:
            losses, gradient = head.value_and_grad(h, ids(m, K), values, meta(m))
            assert losses.shape == (m,) and gradient.shape == (m, hidden)
        head.update(0.1, weight_decay=0.01)
        updated(head, before)


@pytest.mark.parametrize("m", [4, 30], ids=["low_rank", "square"])
@pytest.mark.parametrize("loss", ["squared", "spherical", "taylor", "z"])
def test_targets_that_differ_in_number(loss: str, m: int) -> None:
    head = SphericalOutput(hidden, D, loss_of(loss)).to("meta")  # type: ignore[arg-type]
    for bags in (ids(m), ids(m + 1)):
        before = head.state.version
        head.learn(meta(m, hidden), ids(3 * m), 0.1, meta(3 * m), meta(m), bags)
        updated(head, before)


def test_every_so_many_updates_it_looks() -> None:
    head = SphericalOutput(hidden, D).to("meta")
    for _ in range(READ_EVERY - 1):
        head.learn(meta(4, hidden), ids(4), 0.1)
    head.value_and_grad(meta(4, hidden), ids(4))
    with pytest.raises((RuntimeError, NotImplementedError), match="meta"):
        head.update(0.1)


def test_with_repairs_in_the_history() -> None:
    """Rows that missed repairs are brought forward by their stamps, which stay on the device."""
    head = SphericalOutput(hidden, D, make_loss("squared"), stabilise_range=(0.9, 1.1))
    for step in range(12):
        generator = torch.Generator().manual_seed(step)
        h = torch.randn(4, hidden, generator=generator)
        head.learn(h, torch.randint(0, D, (4,), generator=generator), 0.02)
    assert head.state.history.count > 0 and head.state.history.open == 0
    for m in (4, 30):
        other = SphericalOutput(hidden, D, make_loss("squared"), stabilise_range=(0.9, 1.1))
        other.load_state_dict(head.state_dict())
        other.to("meta").learn(meta(m, hidden), ids(m), 0.02)


def test_two_backward_passes_before_an_update() -> None:
    head = SphericalOutput(hidden, D).to("meta")
    for m in (4, 5):
        head.value_and_grad(meta(m, hidden), ids(m))
    head.update(0.1)


@pytest.mark.parametrize("activation", ["tanh", "relu", "identity"])
@pytest.mark.parametrize("combine", ["concat", "sum", "mean"])
@pytest.mark.parametrize("learn", [add_rows, adagrad_rows], ids=["sgd", "adagrad"])
def test_word_vectors_and_hidden_layers(activation: str, combine: str, learn: Callable[..., None]) -> None:
    config = ModelConfig(embedding=4, hidden=(7, hidden), activation=activation)  # type: ignore[arg-type]
    embedding = SparseEmbedding(meta(D, 4), combine)
    layers = HiddenLayers(12 if combine == "concat" else 4, config, embedding.weight, None)
    passed = layers.run(embedding.read(ids(5, 3)))
    embedding.backward(passed.backward(meta(5, hidden)))
    assert [p.grad.shape for p in layers.parameters() if p.grad is not None] == [p.shape for p in layers.parameters()]
    change = embedding.gradient()
    assert isinstance(change, RowValues)
    learn(embedding.weight, *([meta(D)] if learn is adagrad_rows else []), change, 0.1)
