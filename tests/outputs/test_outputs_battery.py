"""One battery for every output layer: each is compared with its dense definition in float64."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor, nn

from lstlm.config import OutputConfig
from lstlm.errors import ConfigError, LstlmError
from lstlm.outputs import OutputLayer, make_output
from tests.outputs.dense_outputs import (
    Dense,
    DenseAdaptive,
    DenseHierarchical,
    DenseLinear,
    DenseSampled,
    DenseShortlist,
    DenseSpherical,
)

DENSE = {
    "softmax": DenseLinear,
    "hierarchical": DenseHierarchical,
    "adaptive": DenseAdaptive,
}
VOCAB, HIDDEN, EXAMPLES = 40, 6, 11


def counts_of(vocab: int) -> Tensor:
    """Counts that are neither sorted nor distinct."""
    return torch.tensor([(37 * i) % 101 + 1 for i in range(vocab)])


COUNTS = counts_of(VOCAB)
SPHERICAL = [f"{kind}-{loss}" for kind in ("factored", "naive") for loss in ("z", "squared", "spherical", "taylor")]
SHORTLIST = ["shortlist-taylor", "shortlist-spherical", "shortlist-classed"]
CLASSES = torch.tensor([3, 0, 1, 1, 0, 2, 0, 1, 1, 0, 1, 3, 0])  # one word is a class of its own
LAYERS = [*SPHERICAL, *SHORTLIST, "softmax", "hierarchical", "hierarchical-brown", "adaptive", "sampled", "sampled-all"]
NORMALISED = [name for name in LAYERS if not name.endswith(("-z", "-squared"))]
ONE_TARGET = ["sampled", "sampled-all"]
# an output layer's own step is exact, so its error is rounding; ten steps of the factored layer amplify it a little
TOLERANCE = {"rtol": 1e-9, "atol": 1e-9}


def config_of(name: str, **more: object) -> OutputConfig:
    kind, _, detail = name.partition("-")
    config = OutputConfig(kind=kind, init_scale=0.3, candidates=VOCAB if detail == "all" else 12)
    if kind in ("factored", "naive", "shortlist"):
        loss = "taylor" if detail == "classed" else detail
        sizes = {
            "shortlist": 9,
            "tail_inputs": HIDDEN - 1,
            "middle_inputs": HIDDEN - 2,
            "middle": len(classes_of(name)),
        }
        config = dataclasses.replace(config, loss=loss, tail_rate=1.0, **sizes)
    if detail == "brown":
        config = dataclasses.replace(config, clustering="brown")
    return dataclasses.replace(config, **more)


def classes_of(name: str) -> Tensor:
    return CLASSES if name == "shortlist-classed" else CLASSES[:0]


def make(name: str, seed: int = 3, dtype: torch.dtype = torch.float64, vocab: int = VOCAB, **more: object) -> nn.Module:
    generator = torch.Generator().manual_seed(seed)
    # plain SGD, which the dense definitions follow; Adagrad has its own tests
    place = {"optimiser": "sgd", "dtype": dtype, "generator": generator}
    if len(classes := classes_of(name)):
        place["classes"] = classes
    return make_output(config_of(name, **more), HIDDEN, counts_of(vocab), **place)


def dense_of(name: str, layer: nn.Module) -> Dense:
    kind, _, detail = name.partition("-")
    if kind in ("factored", "naive"):
        config = config_of(name)
        return DenseSpherical(layer, detail, config.a, config.b, config.epsilon)
    if kind == "shortlist":
        config = config_of(name)
        return DenseShortlist(layer, config.loss, config, counts_of(layer.vocab), classes_of(name))
    if kind == "sampled":
        return DenseLinear(layer) if detail == "all" else DenseSampled(layer, counts_of(layer.vocab))
    return DENSE[kind](layer)


def batch(
    seed: int, m: int = EXAMPLES, K: int = 1, dtype: torch.dtype = torch.float64, vocab: int = VOCAB
) -> tuple[Tensor, Tensor, Tensor]:
    """Return h (m,HIDDEN), ids (m,K) with repeats, values (m,K)."""
    g = torch.Generator().manual_seed(seed)
    h = torch.randn(m, HIDDEN, generator=g, dtype=dtype).requires_grad_()
    ids = torch.randint(vocab, (m, K), generator=g)
    ids[1::2] = ids[0]  # the same target in half of the examples
    return h, ids, torch.rand(m, K, generator=g, dtype=dtype) + 0.1


def compare_steps(name: str, steps: int, K: int = 1, m: int = EXAMPLES, weight_decay: float = 0.0) -> None:
    """Losses, gradient of h and weights of layer and definition, through `steps` updates with uneven upstreams."""
    layer = make(name)
    dense = dense_of(name, layer)
    for step in range(steps):
        h, ids, values = batch(100 + step, m, K)
        weight = torch.linspace(0.5, 1.5, m, dtype=h.dtype)
        h_layer, h_dense = h.detach().clone().requires_grad_(), h.detach().clone().requires_grad_()
        dense.before_forward()
        found = layer(h_layer, ids, values, weight)
        expected = weight * dense.losses(h_dense, ids, values)
        torch.testing.assert_close(found, expected, **TOLERANCE)
        upstream = torch.linspace(-0.2, 1.0, m, dtype=h.dtype) / m  # one of either sign, and none equal
        found.backward(upstream)
        expected.backward(upstream)
        torch.testing.assert_close(h_layer.grad, h_dense.grad, **TOLERANCE)
        layer.update(0.05, weight_decay)
        dense.sgd(0.05, weight_decay)
        for leaf, now in dense.layer_weights().items():
            torch.testing.assert_close(now, dense.leaves[leaf].detach(), msg=lambda m: f"{leaf}: {m}", **TOLERANCE)  # noqa: B023


@pytest.mark.parametrize("name", LAYERS)
def test_ten_steps_equal_dense_autograd_sgd(name: str) -> None:
    compare_steps(name, steps=10)


@pytest.mark.parametrize("name", LAYERS)
def test_weight_decay_reaches_every_row(name: str) -> None:
    compare_steps(name, steps=4, weight_decay=0.7)


@pytest.mark.parametrize("name", LAYERS)
def test_one_example(name: str) -> None:
    compare_steps(name, steps=3, m=1)


@pytest.mark.parametrize("name", LAYERS)
def test_more_examples_than_hidden_units_and_words(name: str) -> None:
    compare_steps(name, steps=2, m=50)


@pytest.mark.parametrize("name", [name for name in LAYERS if name not in ONE_TARGET])
def test_several_targets_are_a_weighted_mixture(name: str) -> None:
    compare_steps(name, steps=5, K=3)


@pytest.mark.parametrize("name", ONE_TARGET)
def test_several_targets_are_refused_in_words(name: str) -> None:
    h, ids, values = batch(1, K=3)
    with pytest.raises(ConfigError, match="one target an example, not 3"):
        make(name)(h, ids, values)


@pytest.mark.parametrize(("lr", "weight_decay"), [(float("nan"), 0), (float("inf"), 0), (-1, 0), (0.1, -1), (0.1, 11)])
@pytest.mark.parametrize("name", LAYERS)
def test_rates_that_make_no_sense_change_nothing(name: str, lr: float, weight_decay: float) -> None:
    layer, (h, ids, _) = make(name), batch(5)
    before = layer.weight().clone()
    layer.value_and_grad(h, ids)
    with pytest.raises(ConfigError, match="lr = "):
        layer.update(lr, weight_decay)
    assert torch.equal(layer.weight(), before)
    layer.update(0.1)  # the gradient is still there


@pytest.mark.parametrize("name", LAYERS)
def test_flat_ids_without_values_mean_one_target_of_value_one(name: str) -> None:
    h, ids, _ = batch(5)
    torch.testing.assert_close(make(name)(h, ids[:, 0]), make(name)(h, ids, torch.ones_like(h[:, :1])), rtol=0, atol=0)


@pytest.mark.parametrize("name", [name for name in LAYERS if name != "sampled"])  # two forwards, other candidates
def test_value_and_grad_is_forward_and_backward(name: str) -> None:
    one, other = make(name), make(name)
    h, ids, _ = batch(4)
    for weight in (None, torch.linspace(-0.2, 1.0, len(h), dtype=h.dtype) / len(h)):
        leaf = h.detach().clone().requires_grad_()
        losses = one(leaf, ids)
        losses.backward(torch.full_like(losses, 1 / len(h)) if weight is None else weight)
        found, gradient = other.value_and_grad(h.detach(), ids, None, weight)
        torch.testing.assert_close(found, losses.detach(), **TOLERANCE)
        torch.testing.assert_close(gradient, leaf.grad, **TOLERANCE)
        assert not found.requires_grad and not gradient.requires_grad
        one.update(0.05)
        other.update(0.05)
        torch.testing.assert_close(one.weight(), other.weight(), **TOLERANCE)
    with pytest.raises(LstlmError, match="weight"):
        other.value_and_grad(h.detach(), ids, None, torch.ones(3))


@pytest.mark.parametrize("name", LAYERS)
def test_every_layer_answers_every_call_of_the_protocol(name: str) -> None:
    layer = make(name)
    h, ids, _ = batch(4)
    before = layer.weight()
    layer.expect(torch.cat([ids, ids]))
    layer.value_and_grad(h.detach(), ids)
    norm = layer.grad_norm()
    assert norm > 0 or norm != norm
    layer.update(0.1)
    assert layer.last_stabilise_ms >= 0
    assert all(isinstance(value, float) for value in {**layer.statistics(), **layer.diagnostics()}.values())
    moved = layer.weight()
    assert not torch.equal(before, moved)
    assert layer.restore() == name.startswith(("factored", "shortlist"))
    torch.testing.assert_close(layer.weight(), moved, **TOLERANCE)


@pytest.mark.parametrize("name", NORMALISED)
def test_probabilities_sum_to_one_and_are_those_of_the_definition(name: str) -> None:
    layer = make(name)
    h, ids, _ = batch(7)
    every = torch.stack([layer.log_prob(h, torch.full((len(h),), word)) for word in range(VOCAB)], 1)
    torch.testing.assert_close(every.exp().sum(1), torch.ones(len(h), dtype=h.dtype), **TOLERANCE)
    torch.testing.assert_close(every, dense_of(name, layer).log_probs(h).detach(), **TOLERANCE)
    layer.eval()
    torch.testing.assert_close(layer(h, ids[:, 0]), -layer.log_prob(h, ids[:, 0]), **TOLERANCE)


@pytest.mark.parametrize("name", [name for name in LAYERS if name not in NORMALISED])
def test_no_probability_where_none_is_defined(name: str) -> None:
    layer = make(name)
    h, ids, _ = batch(7)
    assert not layer.normalised
    with pytest.raises(ConfigError):
        layer.log_prob(h, ids[:, 0])


@pytest.mark.parametrize("name", LAYERS)
def test_topk_orders_the_vocabulary_as_the_definition_does(name: str) -> None:
    layer = make(name)
    dense = dense_of(name, layer)
    h, _, _ = batch(9)
    scores, ids = layer.topk(h, 5)
    assert scores.shape == ids.shape == (len(h), 5)
    assert bool((scores.diff(dim=1) <= 0).all())
    order = dense.log_probs(h) if name in NORMALISED else dense.outputs(h)
    torch.testing.assert_close(order.gather(1, ids), order.topk(5, dim=1).values, **TOLERANCE)
    for k in (0, VOCAB + 1):
        with pytest.raises(ConfigError):
            layer.topk(h, k)


@pytest.mark.parametrize("name", LAYERS)
def test_weight_is_a_copy_in_word_order(name: str) -> None:
    layer = make(name)
    assert layer.weight().shape == (VOCAB, HIDDEN)
    layer.weight().zero_()
    assert float(layer.weight().abs().sum()) > 0


@pytest.mark.parametrize("name", LAYERS)
def test_a_restored_layer_continues_bit_for_bit(name: str) -> None:
    def train(layer: nn.Module, steps: range) -> list[Tensor]:
        losses = []
        for step in steps:
            h, ids, _ = batch(step)
            loss = layer(h, ids)
            loss.mean().backward()
            layer.update(0.1, 0.01)
            losses.append(loss.detach())
        return losses

    first, second = make(name), make(name, seed=99)
    train(first, range(5))
    second.load_state_dict(first.state_dict())
    assert all(torch.equal(a, b) for a, b in zip(train(first, range(5, 9)), train(second, range(5, 9)), strict=True))
    assert first.state_dict().keys() == second.state_dict().keys()
    assert all(torch.equal(value, second.state_dict()[key]) for key, value in first.state_dict().items())


@pytest.mark.parametrize("name", LAYERS)
def test_update_needs_exactly_one_backward(name: str) -> None:
    layer = make(name)
    h, ids, _ = batch(2)
    with pytest.raises(LstlmError):
        layer.update(0.05)
    layer(h, ids).mean().backward()
    layer.update(0.05)
    with pytest.raises(LstlmError):
        layer.update(0.05)


@pytest.mark.parametrize("name", [name for name in LAYERS if name != "sampled"])  # two forwards, two sets of candidates
def test_two_backward_passes_count_as_one_larger_minibatch(name: str) -> None:
    layer = make(name)
    dense = dense_of(name, layer)
    parts = [batch(seed)[:2] for seed in (21, 22)]
    losses = [layer(h, ids) for h, ids in parts]
    for loss in losses:
        loss.mean().backward()
    layer.update(0.05, 0.3)
    sum(dense.losses(h.detach(), ids, torch.ones_like(h[:, :1])).mean() for h, ids in parts).backward()
    dense.sgd(0.05, 0.3)
    for leaf, now in dense.layer_weights().items():
        torch.testing.assert_close(now, dense.leaves[leaf].detach(), **TOLERANCE)


@pytest.mark.parametrize("name", LAYERS)
def test_discarded_gradients_are_gone(name: str) -> None:
    layer = make(name)
    h, ids, _ = batch(2)
    layer(h, ids).mean().backward()
    layer.discard()
    with pytest.raises(LstlmError):
        layer.update(0.1)


@pytest.mark.parametrize("name", LAYERS)
def test_evaluation_records_nothing(name: str) -> None:
    layer = make(name)
    h, ids, _ = batch(2)
    with torch.no_grad():
        assert not layer(h, ids).requires_grad
    with pytest.raises(LstlmError):
        layer.update(0.1)


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda h, ids: (h[:, 1:], ids), id="hidden size"),
        pytest.param(lambda h, ids: (h[0], ids), id="one-dimensional h"),
        pytest.param(lambda h, ids: (h.float(), ids), id="dtype of h"),
        pytest.param(lambda h, ids: (h, ids[1:]), id="too few targets"),
        pytest.param(lambda h, ids: (h, ids.double()), id="dtype of ids"),
        pytest.param(lambda h, ids: (h, ids[:, :, None]), id="three-dimensional ids"),
        pytest.param(lambda h, ids: (h, ids - VOCAB), id="negative id"),
        pytest.param(lambda h, ids: (h, ids + VOCAB), id="id beyond the vocabulary"),
        pytest.param(lambda h, ids: (h, ids, torch.ones(3)), id="shape of values"),
        pytest.param(lambda h, ids: (h, ids, None, torch.ones(3)), id="shape of weight"),
    ],
)
def test_bad_input_is_a_readable_error(name: str, spoil) -> None:
    layer = make(name)
    h, ids, _ = batch(2)
    with pytest.raises(LstlmError) as caught:
        layer(*spoil(h, ids))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", LAYERS)
def test_the_protocol_is_satisfied(name: str) -> None:
    layer = make(name)
    assert isinstance(layer, OutputLayer)
    assert (layer.hidden, layer.vocab, layer.normalised) == (HIDDEN, VOCAB, name in NORMALISED)


@pytest.mark.parametrize("name", LAYERS)
def test_without_a_bias_none_is_learnt(name: str) -> None:
    layer = make(name, bias=False)
    h, ids, _ = batch(2)
    layer(h, ids).mean().backward()
    layer.update(0.1)
    if name.startswith("adaptive"):
        assert layer.module.head.bias is None
    else:
        assert float(layer.bias_vector().abs().max()) == 0.0


@pytest.mark.parametrize("name", LAYERS)
def test_the_seed_decides_and_the_global_generator_is_left_alone(name: str) -> None:
    before = torch.get_rng_state()
    first, second, other = make(name), make(name), make(name, seed=4)
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(first.weight(), second.weight())
    assert not torch.equal(first.weight(), other.weight())


@pytest.mark.parametrize("name", [name for name in LAYERS if not name.startswith("factored")])
def test_float32_stays_near_float64(name: str) -> None:
    narrow, wide = make(name, dtype=torch.float32), make(name)
    wide.load_state_dict(narrow.state_dict())
    for step in range(5):
        h, ids, _ = batch(step)
        a, b = narrow(h.float(), ids), wide(h, ids)
        torch.testing.assert_close(a.double(), b, rtol=1e-4, atol=1e-4)
        a.mean().backward()
        b.mean().backward()
        narrow.update(0.1)
        wide.update(0.1)


@pytest.mark.parametrize("name", ["softmax", "hierarchical", "adaptive", "sampled", "shortlist-taylor"])
def test_a_kind_that_cannot_take_offsets_says_so(name: str) -> None:
    layer, (h, ids, _) = make(name), batch(0)
    for call in (layer, layer.value_and_grad):
        with pytest.raises(ConfigError, match=r"without offsets.*factored or naive"):
            call(h, ids[:, 0], offsets=torch.arange(len(h)))
