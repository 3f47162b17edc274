"""float32: how much is lost beside naive float32; and that no step makes anything of the size of the vocabulary."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from lstlm.kernels import choice
from lstlm.spherical import DenseSphericalOutput, SphericalOutput, make_loss
from tests.spherical.oracle import Batch, Layer, make_batch, random_weight

STEPS = 200
RATE = {"squared": 0.02, "spherical": 0.4, "taylor": 2.0, "z": 10.0}


@cache
def batches(D: int, d: int, m: int, dtype: torch.dtype) -> list[Batch]:
    return [zipf_batch(step, D, d, m).to(dtype) for step in range(STEPS)]


def zipf_batch(seed: int, D: int, d: int, m: int) -> Batch:
    """Targets as frequent as words are, and H that drifts and is strong in some directions, as in training."""
    g = torch.Generator().manual_seed(seed)
    ids = torch.multinomial(1 / torch.arange(1.0, D + 1), m, replacement=True, generator=g)
    batch = make_batch(seed, D, d, m, ids=ids[:, None])
    strength = torch.linspace(1.5, 0.2, d - 1, dtype=torch.float64)
    batch.H[:, :-1] = torch.tanh(batch.H[:, :-1] * strength + 0.3 * torch.sin(torch.arange(d - 1) + seed / 50))
    return batch


def run(layer: Layer, D: int, d: int, m: int) -> dict[str, Tensor]:
    for batch in batches(D, d, m, layer.head.state.like.dtype):
        layer.step(batch, RATE[_name(layer)])
    W = layer.weight().double()
    if isinstance(layer.head, DenseSphericalOutput):
        return {"W": W, "Q": W.T @ W, "w_bar": W.sum(0)}
    return {"W": W, **{name: layer.parts()[name] for name in ("Q", "w_bar")}}


def _name(layer: Layer) -> str:
    return next(name for name in RATE if type(make_loss(name)) is type(layer.head.loss))


def relative(got: Tensor, truth: Tensor) -> float:
    return float((got - truth).norm() / truth.norm())


@pytest.mark.parametrize("m", [8, 40])
@pytest.mark.parametrize("loss", RATE)
def test_float32_error_budget(loss: str, m: int) -> None:
    """float64 is the truth; what the factored layer loses in float32 stays near what the naive one loses."""
    D, d = 300, 17
    W = random_weight(D, d, scale=0.2)
    truth = run(Layer(W, loss, DenseSphericalOutput), D, d, m)
    naive = run(Layer(W.float(), loss, DenseSphericalOutput), D, d, m)
    factored = run(Layer(W.float(), loss), D, d, m)
    for name in truth:
        budget = 10 * relative(naive[name], truth[name]) + 5e-6  # Q and w̄ are sums of 200 updates
        assert relative(factored[name], truth[name]) <= budget, name


class Largest(TorchDispatchMode):
    """Watches every operation and keeps the largest dimension of a tensor that is not a buffer of the layer."""

    def __init__(self, head: torch.nn.Module) -> None:
        super().__init__()
        self.own = {buffer.untyped_storage().data_ptr() for buffer in head.buffers()}
        self.largest, self.operation, self.bytes = 0, "", 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, list | tuple) else [out]:
            if isinstance(tensor, Tensor) and tensor.untyped_storage().data_ptr() not in self.own:
                size = max(tensor.numel(), *tensor.shape, 0)
                if size > self.largest:
                    self.largest, self.operation = size, str(func)
        return out


@pytest.mark.parametrize(("m", "K"), [(4, 1), (4, 3), (20, 1), (20, 3)])
@pytest.mark.parametrize("loss", RATE)
def test_a_step_makes_nothing_of_the_size_of_the_vocabulary(loss: str, m: int, K: int) -> None:
    D, d = 1_000_000, 9
    layer = Layer(random_weight(D, d, scale=0.1), loss, stabilise="lazy", stabilise_range=(0.8, 1.25))
    for step in range(12):
        batch = make_batch(step, D, d, m, K)
        with Largest(layer.head) as seen:
            layer.step(batch, 0.03 if loss == "squared" else 1.0)
            layer.head.grad_norm(), layer.head.weight_norm()
        assert seen.largest > 0
        assert seen.largest < D // 10, f"{seen.operation} made {seen.largest} numbers"
    assert loss != "squared" or layer.head.stabiliser.total > 0, "the repairs of U were to be among what was watched"


def test_the_watch_sees_a_naive_step() -> None:
    """The test above can fail: the naive layer makes all the outputs."""
    D, d = 5_000, 9
    layer = Layer(random_weight(D, d), "taylor", DenseSphericalOutput)
    with Largest(layer.head) as seen:
        layer.step(make_batch(0, D, d, 4), 0.1)
    assert seen.largest == 4 * D


@pytest.mark.parametrize("stabilise", ["none", "lazy"])
def test_memory_beyond_v_is_small(stabilise: str) -> None:
    """The buffers of a layer: V, four bytes a row for its stamp, and what depends on d and the number of segments."""
    D, d = 100_000, 20
    head = SphericalOutput(d - 1, D, dtype=torch.float32, stabilise=stabilise)
    history, sizes = head.state.history, head.state.sizes
    beyond = sum(x.numel() * x.element_size() for x in head.buffers()) - head.state.V.numel() * 4
    of_table = 8 * (d + 2) * d + 4 * (5 * d + 6) * 32 + 4 * 2 * d  # exact; base and table in rows of 32; deviation
    of_segment = 4 * (2 * sizes.repairs * d + 3 * d * d) + 2 * 8
    of_stabiliser = 3 * 4 * d * 8 if stabilise == "lazy" else 0
    slots = history.segments + 1 if stabilise == "lazy" else 0
    assert beyond == of_table + (4 * D if slots else 0) + slots * of_segment + 3 * 8 + of_stabiliser
    assert history.segments == (sizes.most_segments if slots else 0)


def test_the_same_bits_by_any_number_of_threads() -> None:
    """For products that are large enough to be shared out."""
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            head = SphericalOutput(149, 700, generator=torch.Generator().manual_seed(1))
            for step in range(5):
                batch = make_batch(step, 700, 150, 100)
                head.learn(batch.H[:, :-1].float(), batch.ids, 2.0)
            found.append([*head.state_dict().values(), *head.value_and_grad(batch.H[:, :-1].float(), batch.ids)])
    finally:
        torch.set_num_threads(before)
    if choice.native is not None:  # torch's own products make no such promise
        assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))
