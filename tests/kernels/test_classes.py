"""The softmax within a class: both forms against autograd, and what compiled code refuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from lstlm.kernels import choice
from lstlm.kernels.class_ops import ClassTable, Runs, adagrad_classes, class_entropy, runs_of
from lstlm.kernels.ops import adagrad_table

BOUNDS = torch.tensor([0, 5, 6, 40, 41, 100])  # two classes of a single word
GROUP = torch.arange(5).repeat_interleave(BOUNDS.diff())
FORMS = ["torch", pytest.param("native", marks=pytest.mark.skipif(choice.native is None, reason="not compiled"))]
DTYPES = [torch.float32, torch.float64]


def numbers(*shape: int, dtype: torch.dtype, seed: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).to(dtype)


def case(dtype: torch.dtype, n: int, d: int, biased: bool) -> tuple[ClassTable, dict[str, Tensor]]:
    W, b = numbers(100, d, dtype=dtype, seed=1), numbers(100, dtype=dtype, seed=2)
    table = ClassTable(W, b if biased else None, BOUNDS, GROUP, 0.7)
    rows = torch.randint(100, (n,), generator=torch.Generator().manual_seed(n)).sort().values
    weights = {"t": numbers(n, dtype=dtype, seed=3).abs(), "upstream": numbers(n, dtype=dtype, seed=4)}
    return table, {"h": numbers(n, d, dtype=dtype, seed=5), "rows": rows, **weights}


def by_autograd(table: ClassTable, h: Tensor, rows: Tensor, t: Tensor, upstream: Tensor) -> list[Tensor]:
    """Losses, the gradient to h, and those of the whole table, written out in float64."""
    h, W = (x.double().clone().requires_grad_() for x in (h, table.matrix * table.scale))
    b = torch.zeros(len(W)) if table.bias is None else table.bias * table.scale
    b = b.double().clone().requires_grad_()
    scores = (h @ W.T + b).masked_fill(GROUP[None, :] != GROUP[rows][:, None], -torch.inf)
    losses = t.double() * cross_entropy(scores, rows, reduction="none")
    gradients = torch.autograd.grad((losses * upstream.double()).sum(), [h, W, b])
    return [losses.detach(), *gradients]


@pytest.mark.parametrize("impl", FORMS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "d", "biased"), [(1, 3, True), (30, 17, False), (64, 128, True), (5, 33, True)])
def test_losses_and_gradients_are_those_of_autograd(
    impl: Any, dtype: torch.dtype, n: int, d: int, biased: bool
) -> None:
    table, given = case(dtype, n, d, biased)
    expected = by_autograd(table, **given)
    found = class_entropy(given["h"], table, given["rows"], given["t"], given["upstream"], impl=impl)
    listed, (rows, bias) = found.runs.rows(), found.gradient()
    whole = torch.zeros_like(expected[2]).index_add_(0, listed, rows.double())
    whole_bias = torch.zeros_like(expected[3]).index_add_(0, listed, bias.double())
    close = {"rtol": 1e-3, "atol": 2e-4} if dtype == torch.float32 else {"rtol": 1e-11, "atol": 1e-11}
    for one, other in zip((found.losses, found.grad_h, whole, whole_bias), expected, strict=True):
        torch.testing.assert_close(one.double(), other, **close)


@pytest.mark.parametrize("impl", FORMS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("biased", [False, True])
def test_a_step_is_that_of_adagrad_on_the_gradient(impl: Any, dtype: torch.dtype, biased: bool) -> None:
    table, given = case(dtype, 30, 21, biased)
    found = class_entropy(given["h"], table, given["rows"], given["t"], given["upstream"], impl=impl)
    squares = numbers(100, dtype=dtype, seed=6).abs()
    W, b, s = (None if x is None else x.clone() for x in (table.matrix, table.bias, squares))
    adagrad_table(W, b, s, *found.gradient(), 0.1 / table.scale, found.runs.rows(), impl="torch")  # type: ignore[arg-type]
    adagrad_classes(table, squares, found, 0.1, impl=impl)
    close = {"rtol": 100 * torch.finfo(dtype).eps, "atol": 100 * torch.finfo(dtype).eps}
    torch.testing.assert_close(table.matrix, W, **close)
    torch.testing.assert_close(squares, s, **close)
    if b is not None:
        torch.testing.assert_close(table.bias, b, **close)


@pytest.mark.parametrize("impl", FORMS)
def test_a_class_that_did_not_occur_is_left_alone(impl: Any) -> None:
    table, given = case(torch.float64, 6, 4, True)
    before, rows = table.matrix.clone(), torch.tensor([1, 1, 5, 7, 7, 39])
    found = class_entropy(given["h"], table, rows, given["t"], given["upstream"], impl=impl)
    adagrad_classes(table, torch.zeros(100, dtype=torch.float64), found, 0.1, impl=impl)
    moved = (table.matrix != before).any(1)
    assert not bool(moved[40:].any()) and bool(moved[:5].all()) and bool(moved[6:40].all())
    assert not bool(moved[5])  # the only word of its class is certain


@pytest.mark.skipif(choice.native is None, reason="not compiled")
@pytest.mark.parametrize("threads", [2, 3])
def test_the_number_of_threads_changes_no_bit(threads: int) -> None:
    before = torch.get_num_threads()
    results = []
    try:
        for number in (1, threads):
            torch.set_num_threads(number)
            table, given = case(torch.float32, 300, 64, True)
            found = class_entropy(given["h"], table, given["rows"], given["t"], given["upstream"])
            squares = torch.zeros(100)
            adagrad_classes(table, squares, found, 0.1)
            results.append([found.losses, found.grad_h, table.matrix, table.bias, squares])
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))


@pytest.mark.skipif(choice.native is None, reason="not compiled")
@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda runs: runs._replace(begins=runs.begins + 90), id="beyond the table"),
        pytest.param(lambda runs: runs._replace(begins=runs.begins - 1000), id="before the table"),
        pytest.param(lambda runs: runs._replace(sizes=runs.sizes * 50), id="wider than G"),
        pytest.param(lambda runs: runs._replace(runs=runs.runs + 1), id="beyond the examples"),
        pytest.param(
            lambda runs: runs._replace(begins=runs.begins.flip(0), sizes=runs.sizes.flip(0)), id="not in order"
        ),
    ],
)
def test_compiled_code_refuses_runs_that_lead_outside(spoil: Any) -> None:
    table, given = case(torch.float32, 30, 8, True)
    found = class_entropy(given["h"], table, given["rows"], given["t"], given["upstream"])
    before = table.matrix.clone()
    with pytest.raises(ValueError, match="expected"):
        adagrad_classes(table, torch.zeros(100), found._replace(runs=spoil(found.runs)), 0.1, impl="native")
    assert torch.equal(table.matrix, before)


@pytest.mark.skipif(choice.native is None, reason="not compiled")
def test_compiled_code_refuses_a_target_outside_its_class() -> None:
    table, given = case(torch.float32, 2, 8, True)
    runs = Runs(torch.tensor([0, 2]), torch.tensor([0]), torch.tensor([5]))
    out = torch.empty(2), torch.empty(2, 8), torch.empty(2, 5)
    for rows in ([0, 5], [-1, 3]):
        given_rows = given["h"], *table[:2], 1.0, *runs, torch.tensor(rows), given["t"], given["upstream"]
        with pytest.raises(ValueError, match="targets within their classes"):
            choice.native.class_entropy(*given_rows, *out, 1)


def test_runs_name_the_classes_that_occur() -> None:
    table, _ = case(torch.float64, 1, 2, False)
    runs = runs_of(table, torch.tensor([0, 4, 40, 41, 41, 99]))
    assert runs.runs.tolist() == [0, 2, 3, 6]
    assert runs.begins.tolist() == [0, 40, 41] and runs.sizes.tolist() == [5, 1, 59]
    assert runs.rows().tolist() == [*range(5), *range(40, 100)]
