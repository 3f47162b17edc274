"""Classes of the two-level softmax: sizes, masses, and which rows a step touches."""

from __future__ import annotations

import pytest
import torch

from lstlm.errors import ConfigError
from lstlm.outputs import HierarchicalSoftmax, assign_classes

COUNTS = torch.tensor([(7919 * i) % 1000 + 1 for i in range(1000)])


@pytest.mark.parametrize("clustering", ["frequency", "brown"])
@pytest.mark.parametrize("classes", [None, 2, 7, 1000])
def test_classes_are_equal_in_size_to_within_one_word(clustering: str, classes: int | None) -> None:
    sizes = torch.bincount(assign_classes(COUNTS, classes, clustering))
    assert len(sizes) == (32 if classes is None else classes)
    assert int(sizes.sum()) == len(COUNTS)
    assert int(sizes.max() - sizes.min()) <= 1


def test_frequency_classes_are_runs_of_the_frequency_order() -> None:
    group = assign_classes(COUNTS, 10)
    assert bool((group[COUNTS.argsort(descending=True)].diff() >= 0).all())


def test_brown_classes_are_balanced_in_mass_where_frequency_classes_are_not() -> None:
    def masses(clustering: str) -> torch.Tensor:
        mass = torch.zeros(20).index_add_(0, assign_classes(COUNTS, 20, clustering), COUNTS.float())
        return mass / mass.mean()

    assert float(masses("brown").max()) < 1.05
    assert float(masses("frequency").max()) > 1.5


@pytest.mark.parametrize(("classes", "clustering"), [(0, "frequency"), (1001, "frequency"), (5, "alphabet")])
def test_impossible_settings_are_readable_errors(classes: int, clustering: str) -> None:
    with pytest.raises(ConfigError, match=r"output\.cl"):
        assign_classes(COUNTS, classes, clustering)


def test_a_class_without_words_is_refused() -> None:
    with pytest.raises(ConfigError, match="class 1 has no word"):
        HierarchicalSoftmax(4, torch.tensor([0, 0, 2, 2]))


def test_uneven_classes_of_ones_own_are_a_distribution() -> None:
    group = torch.tensor([0] * 9 + [1] + [2] * 30)
    layer = HierarchicalSoftmax(
        4, group[torch.randperm(40, generator=torch.Generator().manual_seed(1))], init_scale=1.0
    )
    scores, ids = layer.topk(torch.randn(3, 4, generator=torch.Generator().manual_seed(2)), 40)
    torch.testing.assert_close(scores.exp().sum(1), torch.ones(3))
    assert all(sorted(row) == list(range(40)) for row in ids.tolist())


def test_a_step_moves_only_the_classes_of_its_targets() -> None:
    group = assign_classes(COUNTS)
    layer = HierarchicalSoftmax(4, group)
    before = layer.weight()
    targets = torch.tensor([3, 3, 500])
    layer(torch.ones(3, 4), targets).sum().backward()
    layer.update(0.1)
    moved = (layer.weight() != before).any(1)
    assert torch.equal(moved, torch.isin(group, group[targets]))
