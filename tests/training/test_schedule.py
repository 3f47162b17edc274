"""Schedules and budgets against their formulas."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lstlm.training.loop.schedule import Budget, decay_factor, warmup_factor


def test_warmup_reaches_one_at_its_last_step() -> None:
    assert [warmup_factor(step, 4) for step in range(6)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    assert warmup_factor(0, 0) == 1.0


@pytest.mark.parametrize(
    ("kind", "quarter", "half", "end"),
    [("constant", 1.0, 1.0, 1.0), ("linear", 0.75, 0.5, 0.0), ("cosine", (1 + math.cos(math.pi / 4)) / 2, 0.5, 0.0)],
)
def test_decay(kind: str, quarter: float, half: float, end: float) -> None:
    values = [decay_factor(kind, share) for share in (0.0, 0.25, 0.5, 1.0, 7.0)]
    assert values == pytest.approx([1.0, quarter, half, end, end], abs=1e-15)


@given(st.sampled_from(["linear", "cosine"]), st.floats(0, 1), st.floats(0, 1))
def test_decay_falls(kind: str, first: float, second: float) -> None:
    low, high = sorted((first, second))
    assert decay_factor(kind, low) >= decay_factor(kind, high) >= 0.0


def test_the_first_limit_ends_the_run() -> None:
    budget = Budget.of(max_steps=50, max_epochs=2, max_minutes=0.5, batches_per_epoch=20)
    assert (budget.steps, budget.seconds) == (40, 30.0)
    assert not budget.spent(39, 29.9) and budget.spent(40, 0.0) and budget.spent(0, 30.0)
    assert Budget.of(30, 2, None, 20).steps == 30


def test_progress_follows_steps_where_they_are_known() -> None:
    assert Budget(100, 10.0).progress(25, 9.0) == 0.25
    assert Budget(None, 10.0).progress(25, 9.0) == 0.9


def test_time_left_is_the_shorter_of_both() -> None:
    assert Budget(100, 60.0).seconds_left(50, 20.0, steps_per_second=10.0) == 5.0
    assert Budget(100, 22.0).seconds_left(50, 20.0, steps_per_second=10.0) == 2.0
    assert Budget(None, None).seconds_left(50, 20.0, 10.0) is None
