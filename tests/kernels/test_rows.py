"""Rows by id, compiled and by torch, against loops over the ids."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from lstlm.kernels import choice
from lstlm.kernels.ops import RowValues, adagrad_rows, add_rows, outside, read_rows, sum_all, write_rows

IDS = torch.tensor([3, 9, 3, 0, 3, 7, 7, 1, 3, 9, 8, 2])  # one word four times, another two bags in a row
SIZES = [1, 16, 37]
pytestmark = pytest.mark.usefixtures("both_ways")


def random(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("each", [1, 2, 3])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
def test_reading_and_adding(size: int, each: int, dtype: torch.dtype) -> None:
    table = random(10, size, dtype=dtype)
    expected = torch.stack([0.5 * sum(table[i] for i in bag) for bag in IDS.view(-1, each)])  # type: ignore[misc]
    torch.testing.assert_close(read_rows(table, IDS, each, 0.5), expected)
    values, plain = random(len(IDS) // each, size, dtype=dtype), table.clone()
    for k, word in enumerate(IDS.tolist()):
        plain[word] += -3 * 0.5 * values[k // each]
    add_rows(table, RowValues(IDS, values, each, 0.5), -3.0)
    torch.testing.assert_close(table, plain)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("each", [1, 3])
def test_adagrad(size: int, each: int) -> None:
    table, squares = random(10, size), torch.rand(10, dtype=torch.float64)
    plain, plain_squares = table.clone(), squares.clone()
    for step in range(5):
        values = (step + 1) * random(len(IDS) // each, size)
        adagrad_rows(table, squares, RowValues(IDS, values, each, 0.25), 0.1)
        for word in set(IDS.tolist()):
            g = sum(0.25 * values[k // each] for k in range(len(IDS)) if IDS[k] == word)
            assert isinstance(g, Tensor)
            plain_squares[word] += g.square().mean()
            plain[word] -= 0.1 * g / (plain_squares[word].sqrt() + 1e-10)
    torch.testing.assert_close(table, plain, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(squares, plain_squares, rtol=1e-12, atol=1e-12)


def test_adagrad_by_several_threads() -> None:
    """Words that occur often, and a table large enough to be shared: the same bits as by one."""
    ids = (torch.rand(6000, generator=torch.Generator().manual_seed(1)) ** 3 * 500).long()
    values, results = random(2000, 48, dtype=torch.float32), []
    for threads in (1, 2, 3):
        table, squares, before = random(500, 48, dtype=torch.float32), torch.zeros(500), torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            adagrad_rows(table, squares, RowValues(ids, values, 3, 0.25), 0.1)
        finally:
            torch.set_num_threads(before)
        results.append((table, squares))
    assert all(torch.equal(x, y) for other in results[1:] for x, y in zip(results[0], other, strict=True))
    assert int((results[0][1] > 0).sum()) == len(ids.unique())


def test_many_ids_whose_hashes_meet() -> None:
    """Every id is taken twice; 4,096 of them are multiples of a power of 2, which poor hashing would pile up."""
    ids = torch.cat([torch.arange(4096) * 256, torch.arange(4096).flip(0) * 256])
    table, squares = torch.zeros(4096 * 256, 2), torch.zeros(4096 * 256)
    adagrad_rows(table, squares, RowValues(ids, torch.ones(len(ids), 2)), 1.0)
    assert torch.equal(squares[::256], torch.full((4096,), 4.0))  # (1 + 1)²
    torch.testing.assert_close(table[::256], torch.full((4096, 2), -1.0))
    assert int(table.count_nonzero()) == 2 * 4096


def test_memory_that_is_not_in_one_piece() -> None:
    table = random(10, 8)[:, :5]
    expected = table.clone().index_add_(0, IDS[::2], random(6, 9)[:, 4:])
    add_rows(table, RowValues(IDS[::2], random(6, 9)[:, 4:]))
    torch.testing.assert_close(table, expected)
    whole = expected.contiguous()
    assert torch.equal(read_rows(whole, IDS[::2]), expected[IDS[::2]])
    add_rows(whole, RowValues(IDS[::2], random(6, 9)[:, 4:]))
    torch.testing.assert_close(whole, expected.index_add_(0, IDS[::2], random(6, 9)[:, 4:]))


def test_ids_of_32_bits() -> None:
    table = random(10, 4)
    assert torch.equal(read_rows(table, IDS.int()), table[IDS])


def test_no_rows_at_all() -> None:
    table, squares = random(10, 4), torch.zeros(10, dtype=torch.float64)
    before, nothing = table.clone(), RowValues(IDS[:0], random(0, 4))
    assert read_rows(table, IDS[:0]).shape == (0, 4)
    add_rows(table, nothing)
    adagrad_rows(table, squares, nothing, 1.0)
    assert torch.equal(table, before)


@pytest.mark.parametrize("bad", [-1, 10, 2**40])
def test_an_id_that_is_no_row_changes_nothing(bad: int) -> None:
    table, squares = random(10, 4), torch.ones(10, dtype=torch.float64)
    before, ids, values = table.clone(), torch.tensor([1, 2, bad]), random(3, 4)
    for attempt in (
        lambda: read_rows(table, ids),
        lambda: write_rows(table, ids, values),
        lambda: add_rows(table, RowValues(ids, values)),
        lambda: adagrad_rows(table, squares, RowValues(ids, values), 0.1),
    ):
        with pytest.raises((IndexError, RuntimeError)):
            attempt()
    assert torch.equal(squares, torch.ones(10, dtype=torch.float64))
    if choice.native is not None:  # torch adds up to the first bad one
        assert torch.equal(table, before)
    assert outside(ids, 10) == bad
    assert outside(ids[:2], 10) is None
    assert outside(ids[:0], 10) is None


def test_numbers_of_several_kinds_are_left_to_torch() -> None:
    table = random(10, 4)
    with pytest.raises((RuntimeError, ValueError)):
        add_rows(table, RowValues(IDS, random(len(IDS), 4).float()))
    with pytest.raises((RuntimeError, ValueError)):
        add_rows(table, RowValues(IDS, random(len(IDS), 3)))
    with pytest.raises((RuntimeError, IndexError, ValueError)):
        adagrad_rows(table, torch.zeros(3, dtype=torch.float64), RowValues(IDS, random(len(IDS), 4)), 0.1)
    assert torch.equal(read_rows(torch.arange(20).view(10, 2), IDS), torch.arange(20).view(10, 2)[IDS])
    half = random(10, 4).to(torch.bfloat16)
    assert torch.equal(read_rows(half, IDS), half[IDS])


def test_adagrad_goes_on_after_the_table_was_converted() -> None:
    table, squares = random(10, 4), torch.ones(10)
    values = random(len(IDS), 4)
    expected, exact = table.clone(), torch.ones(10, dtype=torch.float64)
    adagrad_rows(table, squares, RowValues(IDS, values), 0.1)
    adagrad_rows(expected, exact, RowValues(IDS, values), 0.1)
    torch.testing.assert_close(table, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
def test_the_sum_of_numbers_however_they_lie(dtype: torch.dtype) -> None:
    x = random(7, 37, dtype=dtype)
    for laid in (x, x.T, x[:, :30], x[::2, ::3], x[0], x[:0]):
        assert sum_all(laid) == pytest.approx(float(laid.double().sum()), rel=1e-5)
    assert math.isnan(sum_all(x.index_fill(0, torch.tensor([3]), math.nan)))
