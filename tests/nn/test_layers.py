"""Hidden layers and word vectors in float32, which is where compiled code does them, against plain torch in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from lstlm.config import ModelConfig
from lstlm.errors import ConfigError
from lstlm.kernels import choice
from lstlm.kernels.ops import hidden_forward
from lstlm.nn.layers import HiddenLayers, SparseEmbedding

compiled = pytest.mark.skipif(choice.native is None, reason="the kernel was not compiled")
ACTIVATIONS = ["tanh", "relu", "identity"]


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def layers(activation: str, inputs: int = 9, hidden: tuple[int, ...] = (7, 5)) -> HiddenLayers:
    config = ModelConfig(embedding=4, hidden=hidden, activation=activation)  # type: ignore[arg-type]
    made = HiddenLayers(inputs, config, torch.zeros(1), torch.Generator().manual_seed(1))
    with torch.no_grad():
        for linear in made:
            linear.bias.copy_(random(len(linear.bias)))
    return made


def plain(made: HiddenLayers, x: Tensor, gradient: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Return h and the gradients of x and of the parameters, by autograd in float64."""
    f = {"tanh": torch.tanh, "relu": torch.relu, "identity": lambda z: z}[made.activation]
    x = x.double().requires_grad_()
    parameters = [p.detach().double().requires_grad_() for p in made.parameters()]
    h = x
    for A, a in zip(parameters[::2], parameters[1::2], strict=True):
        h = f(h @ A.T + a)
    h.backward(gradient.double())
    found = [p.grad for p in (x, *parameters)]
    return h.detach(), [g for g in found if g is not None]


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_layers_that_start_as_the_identity_only_bend_what_they_are_given(activation: str) -> None:
    config = ModelConfig(embedding=9, hidden=(9, 9), combine="mean", start="identity", activation=activation)  # type: ignore[arg-type]
    x = random(4, 9)
    f = {"tanh": torch.tanh, "relu": torch.relu, "identity": lambda z: z}[activation]
    torch.testing.assert_close(HiddenLayers(9, config, torch.zeros(1), None)(x), f(f(x)))


@pytest.mark.parametrize("m", [1, 3, 40])
@pytest.mark.parametrize("hidden", [(6,), (7, 5), (1, 33, 2)])
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("way", ["autograd", "run"])
def test_equal_to_plain_torch(activation: str, hidden: tuple[int, ...], m: int, way: str) -> None:
    made, x, gradient = layers(activation, 9, hidden), random(m, 9), random(m, hidden[-1])
    expected_h, expected = plain(made, x, gradient)
    if way == "autograd":
        leaf = x.clone().requires_grad_()
        h = made(leaf)
        h.backward(gradient)
        dx = leaf.grad
    else:
        passed = made.run(x)
        h, dx = passed.h, passed.backward(gradient)
    found = [dx, *(p.grad for p in made.parameters())]
    for mine, theirs in zip([h, *found], [expected_h, *expected], strict=True):
        assert mine is not None
        torch.testing.assert_close(mine.double(), theirs, rtol=1e-5, atol=1e-5)


@compiled
def test_tanh_is_right_to_the_last_digits() -> None:
    x = torch.cat([torch.linspace(-12, 12, 200_001), torch.logspace(-38, 1, 10_000), -torch.logspace(-38, 1, 10_000)])
    y = hidden_forward(x[:, None], [torch.ones(1, 1)], [torch.zeros(1)], "tanh", impl="native")[0]
    exact = torch.tanh(x.double())
    error = (y[0].double() - exact).abs() / exact.abs().clamp_min(torch.finfo(torch.float32).tiny)
    assert float(error.max()) < 2e-7


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_what_is_not_a_number_stays_so(activation: str) -> None:
    made = layers(activation, 1, (1,))
    with torch.no_grad():
        made[0].weight.fill_(1)
        made[0].bias.zero_()
    x = torch.tensor([[float("nan")], [float("inf")], [-float("inf")], [0.0]])
    f = {"tanh": torch.tanh, "relu": torch.relu, "identity": lambda z: z}[activation]
    torch.testing.assert_close(made.run(x).h, f(x), equal_nan=True)
    dx, _ = made.run(torch.tensor([[-1.0], [1.0]])).backward(torch.tensor([[float("inf")], [2.0]]))
    assert dx is not None
    assert float(dx[0]) == (0.0 if activation == "relu" else float("inf"))


def test_a_weight_that_is_stored_by_columns() -> None:
    made, x, gradient = layers("tanh"), random(3, 9), random(3, 5)
    expected = plain(made, x, gradient)[0]
    made[0].weight = nn.Parameter(made[0].weight.detach().T.contiguous().T)
    torch.testing.assert_close(made.run(x).h.double(), expected, rtol=1e-5, atol=1e-5)


def test_no_examples_have_no_gradient() -> None:
    made = layers("tanh")
    made.run(random(0, 9)).backward(random(0, 5))
    assert all(p.grad is not None and float(p.grad.abs().sum()) == 0 for p in made.parameters())


def test_shapes_and_types_that_do_not_fit() -> None:
    made = layers("tanh")
    with pytest.raises((RuntimeError, ValueError)):
        made.run(random(3, 8))
    passed = made.run(random(3, 9))
    for wrong in (random(1, 5), random(3, 4), random(3, 5).double()):
        with pytest.raises(ConfigError, match="gradient"):
            passed.backward(wrong)


@compiled
def test_an_embedding_says_which_word_is_not_there() -> None:
    with pytest.raises(IndexError, match="30"):
        SparseEmbedding(random(30, 4), "sum")(torch.tensor([[1, 30]]))
