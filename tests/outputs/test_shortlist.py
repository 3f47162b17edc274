"""The shortlist head beyond the battery: exact sums, thirty updates, what a tail may refuse, odd sizes."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
import torch

from lstlm.config import parse_config
from lstlm.errors import ConfigError, NumericsError
from lstlm.outputs import ShortlistOutput
from lstlm.spherical import SphericalSoftmax, ZLoss
from tests.outputs.test_outputs_battery import CLASSES, COUNTS, HIDDEN, SHORTLIST, VOCAB, batch, compare_steps, make

HEADS = SHORTLIST


def classed(**settings: object) -> ShortlistOutput:
    return small(classes=CLASSES, middle_inputs=HIDDEN - 1, **settings)


def small(**settings: object) -> ShortlistOutput:
    place = {"dtype": torch.float64, "generator": torch.Generator().manual_seed(5)}
    return ShortlistOutput(
        HIDDEN, COUNTS, **{"shortlist": 9, "tail_inputs": HIDDEN - 2, "init_scale": 0.3, **place, **settings}
    )


@pytest.mark.parametrize("name", HEADS)
def test_thirty_updates_equal_the_dense_definition(name: str) -> None:
    compare_steps(name, steps=30)


@pytest.mark.parametrize("name", HEADS)
@pytest.mark.parametrize("power", [0.0, 0.5, 1.0])
def test_probabilities_sum_to_one_after_training(name: str, power: float) -> None:
    layer = make(name, prior_power=power)
    for step in range(10):
        h, ids, _ = batch(step)
        layer(h, ids).mean().backward()
        layer.update(0.1)
    h, _, _ = batch(77)
    every = layer.log_prob(h, torch.arange(VOCAB).expand(len(h), -1))
    torch.testing.assert_close(every.exp().sum(1), torch.ones(len(h), dtype=h.dtype), rtol=0, atol=1e-12)


def test_the_short_list_holds_the_most_frequent_words_whatever_their_ids() -> None:
    layer = small()
    listed = set(layer.word_of_rank[:9].tolist())
    assert listed == set(COUNTS.argsort(descending=True, stable=True)[:9].tolist())
    assert sorted(layer.word_of_rank.tolist()) == list(range(VOCAB))


def test_it_starts_as_the_tempered_prior() -> None:
    layer = ShortlistOutput(HIDDEN, COUNTS, shortlist=9, dtype=torch.float64)
    tail = layer.word_of_rank[9:]
    p = layer.log_prob(torch.zeros(1, HIDDEN, dtype=torch.float64), tail[None]).exp()[0]
    expected = (COUNTS[tail] + 1.0).double().sqrt()
    torch.testing.assert_close(p / p.sum(), expected / expected.sum())


@pytest.mark.parametrize("part", ["short", "tail"])
def test_a_minibatch_within_one_part_leaves_the_words_of_the_other_alone(part: str) -> None:
    layer = small()
    before = layer.weight()
    words = layer.word_of_rank[:9] if part == "short" else layer.word_of_rank[9:]
    h, _, _ = batch(3)
    layer.value_and_grad(h.detach(), words[torch.arange(len(h)) % len(words)])
    layer.update(0.05)
    moved = (layer.weight() != before).any(1)
    tail = torch.ones(VOCAB, dtype=torch.bool).index_fill_(0, layer.word_of_rank[:9], value=False)
    assert bool(moved[tail].any()) == (part == "tail")
    assert bool(moved[~tail].all())  # all words of the list share one normaliser with the rest


def test_decay_reaches_a_tail_that_no_target_was_in() -> None:
    layer = small(optimiser="sgd")
    before = layer.weight()[layer.word_of_rank[9:]]
    h, _, _ = batch(3)
    layer(h, layer.word_of_rank[torch.arange(len(h)) % 9]).mean().backward()
    layer.update(0.1, 0.5)
    torch.testing.assert_close(layer.weight()[layer.word_of_rank[9:]], before * 0.95)


def test_a_rate_that_the_tail_refuses_changes_nothing_and_is_named() -> None:
    layer = small(loss=SphericalSoftmax(1e-3), tail_rate=1.0)
    h, _, _ = batch(3)
    before = {key: value.clone() for key, value in layer.state_dict().items()}
    layer.value_and_grad(h.detach(), layer.word_of_rank[9 + torch.arange(len(h))])
    with pytest.raises(NumericsError, match=r"lr 1000 is above the largest stable"):
        layer.update(1000.0)
    assert all(torch.equal(value, before[key]) for key, value in layer.state_dict().items())
    layer.update(1e-4)  # the minibatch is still there
    assert not torch.equal(before["head.matrix"], layer.head.matrix)


def test_the_list_leaves_two_words_to_the_tail() -> None:
    layer = ShortlistOutput(3, torch.ones(5), shortlist=1000)
    assert layer.shortlist == 3 and layer.tail.vocab == 2
    for counts, settings in ((torch.ones(3), {}), (torch.ones(9), {"shortlist": 0})):
        with pytest.raises(ConfigError):
            ShortlistOutput(3, counts, **settings)
    with pytest.raises(ConfigError, match="optimiser 'adam': choose sgd or adagrad"):
        ShortlistOutput(3, torch.ones(9), optimiser="adam")


def test_a_loss_without_probabilities_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"output\.loss: z defines no probability.*use spherical or taylor"):
        parse_config("output: {kind: shortlist, loss: z}")
    with pytest.raises(ConfigError, match="prior"):
        small(loss=ZLoss())


def test_the_vocabulary_can_shrink_and_grow() -> None:
    layer = small()
    for step in range(5):
        h, ids, _ = batch(step)
        layer(h, ids).mean().backward()
        layer.update(0.1)
    h, _, _ = batch(9)
    keep = torch.tensor([word for word in range(VOCAB) if word % 5])
    counts = torch.cat([COUNTS[keep], torch.tensor([7, 3])])
    before = layer.weight()
    scores = layer.head.scores(h.detach(), slice(None))
    listed = layer.word_of_rank[:9].tolist()
    layer.resize_vocabulary(keep, counts)
    assert layer.vocab == len(keep) + 2 and layer.shortlist == sum(word % 5 > 0 for word in listed)
    torch.testing.assert_close(layer.weight()[: len(keep)], before[keep])
    assert float(layer.weight()[len(keep) :].abs().max()) == 0  # a new word starts as its prior says
    every = layer.log_prob(h, torch.arange(layer.vocab).expand(len(h), -1))
    torch.testing.assert_close(every.exp().sum(1), torch.ones(len(h), dtype=h.dtype), rtol=0, atol=1e-12)
    kept = [place for place, word in enumerate(listed) if word % 5] + [9]
    torch.testing.assert_close(layer.head.scores(h.detach(), slice(None)), scores[:, kept])
    layer(h, torch.zeros(len(h), dtype=torch.int64)).mean().backward()
    layer.update(0.1)
    with pytest.raises(ConfigError, match="distinct"):
        layer.resize_vocabulary(torch.tensor([0, 0, 1, 2]), torch.ones(4))
    with pytest.raises(ConfigError, match="counts"):
        layer.resize_vocabulary(None, torch.ones(4))


def test_the_middle_holds_the_next_words_class_by_class() -> None:
    layer = classed()
    order = COUNTS.argsort(descending=True, stable=True)
    assert layer.middle is not None and layer.middle.words == len(CLASSES) and layer.tail.vocab == VOCAB - 9 - 13
    assert layer.middle.bounds.tolist() == [0, 5, 10, 11, 13]
    for group, (first, last) in enumerate(pairwise(layer.middle.bounds.tolist())):
        words = layer.word_of_rank[9 + first : 9 + last].tolist()
        assert words == order[9:][: len(CLASSES)][group == CLASSES].tolist()


@pytest.mark.parametrize("make_one", [small, classed])
def test_lists_classes_and_rest_begin_as_frequent_as_they_are(make_one: Callable[..., ShortlistOutput]) -> None:
    layer = make_one(init_scale=0.0)
    p = layer.log_prob(torch.zeros(1, HIDDEN, dtype=torch.float64), torch.arange(VOCAB)[None]).exp()[0]
    share = (COUNTS + 1.0).double() / (COUNTS + 1.0).double().sum()
    listed = layer.word_of_rank[:9]
    torch.testing.assert_close(p[listed], share[listed])
    far = layer.word_of_rank[VOCAB - layer.tail.vocab :]
    torch.testing.assert_close(p[far].sum(), share[far].sum())


def test_a_minibatch_of_one_class_leaves_the_words_of_the_others_alone() -> None:
    layer = classed()
    assert layer.middle is not None
    before, bounds = layer.weight(), layer.middle.bounds.tolist()
    words = layer.word_of_rank[9 + bounds[1] : 9 + bounds[2]]
    h, _, _ = batch(3)
    layer.value_and_grad(h.detach(), words[torch.arange(len(h)) % len(words)])
    layer.update(0.05)
    moved = (layer.weight() != before).any(1)
    inside = torch.zeros(VOCAB, dtype=torch.bool).index_fill_(0, torch.cat([words, layer.word_of_rank[:9]]), value=True)
    assert torch.equal(moved, inside)


def test_several_minibatches_are_one_larger_one_for_adagrad_too() -> None:
    one, other = classed(), classed()
    h, ids, _ = batch(3, m=20)
    for part in (slice(0, 12), slice(12, 20)):
        (one(h[part], ids[part]).sum() / 20).backward()
    other(h, ids).mean().backward()
    one.update(0.05)
    other.update(0.05)
    for key, value in one.state_dict().items():
        torch.testing.assert_close(value, other.state_dict()[key], rtol=1e-9, atol=1e-11)


def test_a_middle_shrinks_with_its_vocabulary() -> None:
    layer = classed()
    for step in range(5):
        h, ids, _ = batch(step)
        layer(h, ids).mean().backward()
        layer.update(0.1)
    assert layer.middle is not None
    gone = {*layer.word_of_rank[9 + layer.middle.bounds[2] : 9 + layer.middle.bounds[3]].tolist(), 3, 4, 11}
    keep = torch.tensor([word for word in range(VOCAB) if word not in gone])  # one class is gone as a whole
    before, bias = layer.weight(), layer.bias_vector()
    layer.resize_vocabulary(keep, torch.cat([COUNTS[keep], torch.tensor([7, 3])]))
    assert layer.middle.classes == 3 and layer.head.matrix.shape[0] == layer.shortlist + 3 + 1
    torch.testing.assert_close(layer.weight()[: len(keep)], before[keep])
    torch.testing.assert_close(layer.bias_vector()[: len(keep)], bias[keep])
    h, ids, _ = batch(9)
    every = layer.log_prob(h, torch.arange(layer.vocab).expand(len(h), -1))
    torch.testing.assert_close(every.exp().sum(1), torch.ones(len(h), dtype=h.dtype), rtol=0, atol=1e-12)
    layer(h, ids % layer.vocab).mean().backward()
    layer.update(0.1)


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        (torch.tensor([0, 2]), "without a gap"),
        (torch.tensor([0, -1]), "without a gap"),
        (torch.zeros(VOCAB - 9 - 1, dtype=torch.int64), "29 at most"),
        (torch.zeros(3), "int64"),
        (torch.zeros(0, dtype=torch.int64), "int64"),
        (torch.zeros(2, 2, dtype=torch.int64), "int64"),
    ],
)
def test_classes_that_are_none_are_refused(classes: torch.Tensor, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        small(classes=classes)
    with pytest.raises(ConfigError, match="middle_inputs is 0"):
        small(classes=CLASSES, middle_inputs=0)
