"""The whole network and its optimisers against plain torch: a dense nn.Embedding, cross_entropy, torch.optim."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode

from lstlm.config import Config, DataConfig, ModelConfig, OptimConfig, OutputConfig, TrainConfig
from lstlm.errors import CheckpointError, ConfigError, DataError
from lstlm.nn.network import Network
from lstlm.nn.optimisers import Optimisers

VOCAB, EMBEDDING, CONTEXT, EXAMPLES = 30, 5, 3, 12
COUNTS = torch.arange(VOCAB, 0, -1)
KINDS = ["factored", "naive", "softmax", "hierarchical", "adaptive", "sampled"]


def config(
    *,
    model: dict[str, Any] | None = None,
    output: dict[str, Any] | None = None,
    optim: dict[str, Any] | None = None,
    kind: str = "previous",
) -> Config:
    return Config(
        data=DataConfig(context=CONTEXT, context_kind=kind),
        model=ModelConfig(**{"embedding": EMBEDDING, "hidden": (7, 6), **(model or {})}),
        output=OutputConfig(**{"kind": "softmax", "candidates": 10, "init_scale": 0.3, **(output or {})}),
        optim=OptimConfig(**{"output_lr": 0.3, **(optim or {})}),
        train=TrainConfig(dtype="float64"),
    )


def make(settings: Config, seed: int = 1) -> tuple[Network, Optimisers]:
    network = Network(settings, COUNTS, generator=torch.Generator().manual_seed(seed))
    return network, Optimisers(network, settings.optim)


def batch(seed: int, width: int = CONTEXT, m: int = EXAMPLES) -> tuple[Tensor, Tensor]:
    """Return context (m,width) with repeated words, in one example and across them, and targets (m,)."""
    g = torch.Generator().manual_seed(seed)
    context = torch.randint(VOCAB // 2, (m, width), generator=g)
    context[:, 0] = context[0, -1]
    return context, torch.randint(VOCAB, (m,), generator=g)


def train(network: Network, optimisers: Optimisers, steps: range, lr_scale: float = 1.0) -> list[Tensor]:
    losses = []
    for step in steps:
        optimisers.zero()
        loss = network(*batch(step))
        loss.mean().backward()
        optimisers.step(lr_scale)
        losses.append(loss.detach())
    return losses


class Plain(nn.Module):
    """The same network with a softmax, as anyone would write it in torch."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.combine = network.combine
        self.table = nn.Embedding.from_pretrained(network.input_vectors().clone(), freeze=False)
        self.layers = nn.ModuleList(copy.deepcopy(x) for x in network.hidden if isinstance(x, nn.Linear))
        self.f = {"tanh": torch.tanh, "relu": torch.relu, "identity": lambda x: x}[network.config.model.activation]
        self.W = nn.Parameter(network.output_vectors())
        self.b = nn.Parameter(network.output.bias_vector())

    def forward(self, context: Tensor, target: Tensor) -> Tensor:
        x = self.table(context)
        x = {"concat": lambda: x.flatten(1), "sum": lambda: x.sum(1), "mean": lambda: x.mean(1)}[self.combine]()
        for layer in self.layers:
            x = self.f(layer(x))
        return cross_entropy(x @ self.W.T + self.b, target, reduction="none")


@pytest.mark.parametrize("hidden", [(), (7,), (7, 6)])
@pytest.mark.parametrize("activation", ["tanh", "relu", "identity"])
@pytest.mark.parametrize("combine", ["concat", "sum", "mean"])
def test_losses_and_every_gradient_equal_plain_torch(combine: str, activation: str, hidden: tuple[int, ...]) -> None:
    network, _ = make(config(model={"combine": combine, "activation": activation, "hidden": hidden}))
    plain = Plain(network)
    context, target = batch(0)
    found, expected = network(context, target), plain(context, target)
    torch.testing.assert_close(found, expected)
    found.mean().backward()
    expected.mean().backward()
    gradient = network.embedding.gradient()
    found = torch.zeros_like(plain.table.weight).index_add(0, gradient.ids, gradient.scale * gradient.spread())
    torch.testing.assert_close(found, plain.table.weight.grad)
    linears = [x for x in network.hidden if isinstance(x, nn.Linear)]
    assert len(linears) == len(hidden)
    for mine, theirs in zip(linears, plain.layers, strict=True):
        torch.testing.assert_close(mine.weight.grad, theirs.weight.grad)
        torch.testing.assert_close(mine.bias.grad, theirs.bias.grad)
    before = network.output_vectors()
    network.output.update(0.5)
    torch.testing.assert_close((before - network.output_vectors()) / 0.5, plain.W.grad)


class RowAdagrad:
    """One accumulator a row, written as a loop over all rows with the dense gradient."""

    def __init__(self, parameter: nn.Parameter, lr: float) -> None:
        self.parameter, self.lr, self.squares = parameter, lr, [0.0] * len(parameter)

    def step(self) -> None:
        assert self.parameter.grad is not None
        for row, gradient in enumerate(self.parameter.grad):
            self.squares[row] += float(gradient.square().mean())
            if self.squares[row] > 0:
                self.parameter.data[row] -= self.lr * gradient / self.squares[row] ** 0.5


@pytest.mark.parametrize("embedding", ["adagrad", "sgd"])
@pytest.mark.parametrize("hidden", ["adagrad", "sgd", "adam"])
def test_ten_steps_of_every_optimiser_equal_torch(hidden: str, embedding: str) -> None:
    network, optimisers = make(config(optim={"hidden": hidden, "embedding": embedding, "momentum": 0.8}))
    plain, scale, optim = Plain(network), 0.5, network.config.optim
    parameters, lr = list(plain.layers.parameters()), optim.hidden_lr * scale
    theirs = {
        "adagrad": lambda: torch.optim.Adagrad(parameters, lr=lr, foreach=False),
        "sgd": lambda: torch.optim.SGD(parameters, lr=lr, momentum=0.8, foreach=False),
        "adam": lambda: torch.optim.Adam(parameters, lr=lr, foreach=False),
    }[hidden]()
    if embedding == "sgd":
        rows: Any = torch.optim.SGD([plain.table.weight], lr=optim.embedding_lr * scale)
    else:
        rows = RowAdagrad(plain.table.weight, optim.embedding_lr * scale)
    output = torch.optim.SGD([plain.W, plain.b], lr=optim.output_lr * scale)
    for step in range(10):
        plain.zero_grad()
        expected = plain(*batch(step))
        (found,) = train(network, optimisers, range(step, step + 1), scale)
        torch.testing.assert_close(found, expected.detach(), rtol=1e-8, atol=1e-8)
        expected.mean().backward()
        for optimiser in (theirs, rows, output):
            optimiser.step()
    torch.testing.assert_close(network.input_vectors(), plain.table.weight.detach(), rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("loss", ["z", "squared", "spherical", "taylor"])
def test_factored_and_naive_networks_stay_together_for_fifty_steps(loss: str) -> None:
    settings = config(optim={"output_lr": 0.05, "hidden_lr": 0.01, "embedding_lr": 0.01})
    curves = []
    for kind in ("factored", "naive"):
        output = replace(settings.output, kind=kind, loss=loss)
        curves.append(torch.stack(train(*make(replace(settings, output=output)), range(50))))
    torch.testing.assert_close(curves[0], curves[1], rtol=1e-9, atol=1e-9)
    assert bool(torch.isfinite(curves[0]).all())


@pytest.mark.parametrize("kind", KINDS)
def test_training_lowers_the_loss_of_a_learnable_batch(kind: str) -> None:
    network, optimisers = make(config(output={"kind": kind, "loss": "spherical"}))
    context, target = batch(0)
    network.eval()
    before = network(context, target).mean()
    network.train()
    for _ in range(60):
        optimisers.zero()
        network(context, target).mean().backward()
        optimisers.step()
    network.eval()
    assert network(context, target).mean().item() < 0.7 * before.item()


@pytest.mark.parametrize("embedding", ["adagrad", "sgd"])
def test_only_the_rows_of_the_batch_move(embedding: str) -> None:
    network, optimisers = make(config(optim={"embedding": embedding}))
    before = network.input_vectors().clone()
    train(network, optimisers, range(1))
    moved = (network.input_vectors() != before).any(1).nonzero()[:, 0].tolist()
    assert moved == sorted(set(batch(0)[0].reshape(-1).tolist()))


class LargestNewTensor(TorchDispatchMode):
    """Notes the size of the largest tensor that an operation makes, apart from views of and writes to `known`."""

    def __init__(self, known: list[Tensor]) -> None:
        super().__init__()
        self.known = {t.untyped_storage().data_ptr() for t in known}
        self.largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for t in out if isinstance(out, (tuple, list)) else [out]:
            if isinstance(t, Tensor) and t.untyped_storage().data_ptr() not in self.known:
                self.largest = max(self.largest, t.numel())
        return out


@pytest.mark.parametrize("embedding", ["adagrad", "sgd"])
@pytest.mark.parametrize("kind", ["factored", "hierarchical", "sampled"])
def test_a_step_makes_nothing_of_the_size_of_the_vocabulary(kind: str, embedding: str) -> None:
    vocab = 20_000
    settings = config(output={"kind": kind}, optim={"embedding": embedding})
    network = Network(settings, torch.arange(vocab, 0, -1), generator=torch.Generator().manual_seed(1))
    optimisers = Optimisers(network, settings.optim)
    train(network, optimisers, range(2))
    known = [*network.state_dict().values(), *([] if optimisers.squares is None else [optimisers.squares])]
    with LargestNewTensor(known) as seen:
        train(network, optimisers, range(2, 5))
    assert 0 < seen.largest < vocab


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "sampled"])
def test_a_bag_of_words_flows_through(kind: str) -> None:
    network, optimisers = make(config(kind="bag", output={"kind": kind}))
    context, _ = batch(3, width=1)
    g = torch.Generator().manual_seed(4)
    ids, values = torch.randint(VOCAB, (EXAMPLES, 4), generator=g), torch.rand(EXAMPLES, 4, generator=g)
    losses = network(context, ids, values, torch.ones(EXAMPLES))
    assert losses.shape == (EXAMPLES,)
    losses.mean().backward()
    optimisers.step()


def test_a_bag_is_refused_where_one_target_is_all_a_layer_takes() -> None:
    network, _ = make(config(kind="bag", output={"kind": "sampled"}))
    with pytest.raises(ConfigError, match="one target an example"):
        network(batch(3, width=1)[0], torch.zeros(EXAMPLES, 4, dtype=torch.int64))


@pytest.mark.parametrize("hidden", ["adagrad", "sgd", "adam"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_restored_run_continues_bit_for_bit(kind: str, hidden: str) -> None:
    settings = config(output={"kind": kind}, optim={"hidden": hidden})
    (first, optimisers), (second, others) = make(settings), make(settings, seed=2)
    train(first, optimisers, range(4))
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    others.load_state_dict(copy.deepcopy(optimisers.state_dict()))
    expected, found = train(first, optimisers, range(4, 8)), train(second, others, range(4, 8))
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))
    assert all(torch.equal(value, second.state_dict()[key]) for key, value in first.state_dict().items())


def test_an_optimiser_state_of_another_kind_is_refused() -> None:
    _, adagrad = make(config())
    _, sgd = make(config(optim={"embedding": "sgd"}))
    with pytest.raises(CheckpointError, match=r"optim\.embedding"):
        sgd.load_state_dict(adagrad.state_dict())


def test_the_seed_decides_and_the_global_generator_is_left_alone() -> None:
    before = torch.get_rng_state()
    (first, _), (second, _), (other, _) = make(config()), make(config()), make(config(), seed=2)
    assert torch.equal(before, torch.get_rng_state())
    for key, value in first.state_dict().items():
        assert torch.equal(value, second.state_dict()[key])
    assert not torch.equal(first.input_vectors(), other.input_vectors())


@pytest.mark.parametrize(
    ("hidden", "combine", "size"),
    [((), "concat", CONTEXT * EMBEDDING), ((), "sum", EMBEDDING), ((), "mean", EMBEDDING), ((7, 6), "concat", 6)],
)
def test_shapes(hidden: tuple[int, ...], combine: str, size: int) -> None:
    network, _ = make(config(model={"hidden": hidden, "combine": combine}))
    assert network.encode(batch(0)[0]).shape == (EXAMPLES, size)
    assert network.output_vectors().shape == (VOCAB, size)
    assert network.input_vectors().shape == (VOCAB, EMBEDDING)


def test_evaluation_records_nothing_and_a_step_needs_a_backward() -> None:
    network, optimisers = make(config())
    network.eval()
    assert not network(*batch(0)).requires_grad
    network.train()
    with torch.no_grad():
        network(*batch(0))
    with pytest.raises(ConfigError, match="embedding: step without a backward"):
        optimisers.step_embedding()
    with pytest.raises(ConfigError, match="update without a backward"):
        optimisers.step()


def test_bad_contexts_are_readable_errors() -> None:
    network, _ = make(config())
    context, target = batch(0)
    with pytest.raises(ConfigError, match="made for 3"):
        network(context[:, 1:], target)
    with pytest.raises(ConfigError, match="word ids are int64"):
        network(context.double(), target)
    with pytest.raises(DataError, match=f"word id {VOCAB}: ids run from 0 to {VOCAB - 1}"):
        network(torch.full_like(context, VOCAB), target)
    with pytest.raises(DataError, match="word id -1:"):
        network(torch.full_like(context, -1), target)
    with pytest.raises(DataError, match=f"word id {VOCAB}: ids run from 0 to {VOCAB - 1}"):
        network.begin(torch.full_like(context, VOCAB))


def test_frozen_layers_do_not_learn() -> None:
    network, optimisers = make(config(output={"kind": "factored"}))
    network.hidden.requires_grad_(False)
    before = [parameter.clone() for parameter in network.hidden.parameters()]
    context, target = batch(0)
    encoding = network.begin(context)
    _, gradient = network.output.value_and_grad(encoding.h, target)
    encoding.backward(gradient)
    optimisers.step()
    for parameter, old in zip(network.hidden.parameters(), before, strict=True):
        assert torch.equal(parameter, old)
