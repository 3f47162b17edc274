"""Every loss, every algorithm, every shape: losses, gradients and thirty updates equal to dense autograd in float64."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from lstlm.spherical import DenseSphericalOutput
from lstlm.spherical.steps.dense import CHUNK_ROWS, squared_error_step
from tests.spherical.oracle import (
    EXACT,
    LOSSES,
    RATE,
    Batch,
    Dense,
    InTorch,
    Layer,
    Paper,
    assert_same_step,
    assert_same_weights,
    make_batch,
    random_weight,
)

D, d, STEPS = 23, 7, 30
Make = Callable[[Tensor, str], Paper | Layer]

SUBJECTS: dict[str, Make] = {
    "paper": Paper,
    "paper-minibatch": partial(Paper, algorithm="minibatch"),
    "paper-online": partial(Paper, algorithm="online"),
    "touched_rows": partial(Layer, stabilise="none"),  # with repairs: test_stabilise and test_lazy
    "torch": partial(Layer, kind=InTorch, stabilise="none"),
    "naive": partial(Layer, kind=DenseSphericalOutput),
    "blocked": partial(Layer, kind=DenseSphericalOutput, blocked=True),
}


class Case(NamedTuple):
    loss: str
    m: int
    K: int
    start: str

    @property
    def rate(self) -> float:
        # At W = 0 the spherical softmax has the curvature 1/(Dε): a smaller step is the largest stable one there.
        return 0.005 if (self.loss, self.start) == ("spherical", "zero") else RATE[self.loss]

    def weight(self) -> Tensor:
        return random_weight(D, d) if self.start == "random" else torch.zeros(D, d, dtype=torch.float64)

    def batch(self, step: int) -> Batch:
        return make_batch(step, D, d, self.m, self.K)


CASES = [
    Case(loss, m, K, start)
    for loss in LOSSES
    for m in (1, 4, d, 17)
    for K in (1, 3)
    for start in ("random", "zero")
    # where the weights begin is another question than the shapes; at W = 0 all outputs are equal, the Z-loss undefined
    if start == "random" or ((m, K) in ((4, 1), (17, 3)) and loss != "z")
]


def applies(subject: str, case: Case) -> bool:
    """Algorithms 2 and 3 are for squared error, 2 for one example; the naive layers need no more than a few shapes."""
    if subject in ("naive", "blocked"):
        return case.m in (4, 17) and case.start == "random"
    if subject == "interpreted":
        return case.K == 1 and case.m <= d  # elsewhere nothing is compiled
    return not subject.startswith("paper-") or (case.loss == "squared" and (subject[6:] == "minibatch" or case.m == 1))


@cache
def truth(case: Case) -> tuple[list[tuple[Tensor, Tensor]], Tensor]:
    """Return losses and gradients of thirty dense steps, and W after them."""
    dense = Dense(case.weight(), case.loss)
    steps = [dense.step(case.batch(step), case.rate) for step in range(STEPS)]
    if case.start == "random" or case.loss != "spherical":  # for which W = 0 is a stationary point
        assert float((dense.W - case.weight()).norm()) > 0.05, "thirty steps that hardly move W prove little"
    return steps, dense.W


@pytest.mark.parametrize(
    ("subject", "case"),
    [
        pytest.param(subject, case, id=f"{subject}-{case.loss}-m{case.m}-K{case.K}-{case.start}")
        for case in CASES
        for subject in SUBJECTS
        if applies(subject, case)
    ],
)
def test_equal_to_dense_autograd(subject: str, case: Case) -> None:
    tested = SUBJECTS[subject](case.weight(), case.loss)
    steps, W = truth(case)
    for step, expected in enumerate(steps):
        assert_same_step(tested.step(case.batch(step), case.rate), expected)
    assert_same_weights(tested, W)


@pytest.mark.parametrize("subject", ["paper", "touched_rows"])
@pytest.mark.parametrize("loss", LOSSES)
def test_a_permutation_of_the_vocabulary_permutes_w_and_nothing_else(subject: str, loss: str) -> None:
    W = random_weight(D, d)
    order = torch.randperm(D, generator=torch.Generator().manual_seed(1))
    place = order.argsort()  # word i stands in row place[i] of W[order]
    one, other = SUBJECTS[subject](W, loss), SUBJECTS[subject](W[order], loss)
    for step in range(5):
        batch = make_batch(step, D, d, 4, 3)
        expected = one.step(batch, RATE[loss])
        batch.ids = place[batch.ids]
        got = other.step(batch, RATE[loss])
        assert_same_step(got, expected)
    torch.testing.assert_close(other.weight(), one.weight()[order], **EXACT)


@pytest.mark.parametrize("m", [1, 5, 17])
@pytest.mark.parametrize("K", [1, 3])
def test_the_one_pass_squared_error_step(m: int, K: int) -> None:
    W = random_weight(D, d)
    dense, generator = Dense(W, "squared"), torch.Generator().manual_seed(2)
    for step in range(10):
        batch = make_batch(step, D, d, m, K)
        batch.ids = torch.stack([torch.randperm(D, generator=generator)[:K] for _ in range(m)])  # distinct in a row
        batch.weight = torch.ones(m, dtype=torch.float64)
        eta = RATE["squared"] / m
        got = squared_error_step(W, batch.H, batch.ids, batch.values, eta)
        assert_same_step(got, dense.step(batch, eta))
    torch.testing.assert_close(W, dense.W, **EXACT)


def test_a_blocked_layer_of_several_blocks() -> None:
    rows = 2 * CHUNK_ROWS + 5
    W = random_weight(rows, d)
    tested, dense = SUBJECTS["blocked"](W, "taylor"), Dense(W, "taylor")
    for step in range(5):
        batch = make_batch(step, rows, d, 4, 2)
        assert_same_step(tested.step(batch, 0.3), dense.step(batch, 0.3))
    assert_same_weights(tested, dense.W)
