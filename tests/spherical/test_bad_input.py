"""Bad input: a clear error of ours, before anything has changed."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from lstlm.errors import ConfigError, NumericsError
from lstlm.spherical import (
    CustomLoss,
    DenseSphericalOutput,
    SphericalOutput,
    SphericalSoftmax,
    SquaredError,
    TaylorSoftmax,
    ZLoss,
    make_loss,
)
from tests.spherical.oracle import assert_unchanged, snapshot

HIDDEN, VOCAB = 5, 20
KINDS = [SphericalOutput, DenseSphericalOutput]


def make(kind: type = SphericalOutput, **settings: object) -> SphericalOutput:
    g = torch.Generator().manual_seed(0)
    return kind(HIDDEN, VOCAB, **{"loss": ZLoss(), "dtype": torch.float64, "generator": g, **settings})


def hidden(m: int = 3, fill: float | None = None) -> Tensor:
    h = torch.randn(m, HIDDEN, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    if fill is not None:
        h[1, 2] = fill
    return h.requires_grad_()


def train(head: SphericalOutput, *arguments: Tensor) -> None:
    head(*arguments).sum().backward()
    head.update(1e-3)


IDS = torch.tensor([3, 3, 7])
FORWARD: dict[str, tuple[Callable[[SphericalOutput], object], str]] = {
    "h of the wrong width": (lambda head: head(torch.zeros(3, 4).double(), IDS), r"\(3, 4\).*\(m, 5\)"),
    "h with one dimension": (lambda head: head(torch.zeros(5).double(), IDS), "shape"),
    "h without a dimension": (lambda head: head(torch.tensor(1.0).double(), IDS), "shape"),
    "h of another dtype": (lambda head: head(hidden().float(), IDS), "float32.*float64"),
    "ids that are floats": (lambda head: head(hidden(), IDS.double()), "integers"),
    "ids that are flags": (lambda head: head(hidden(), IDS > 4), "integers"),
    "ids in three dimensions": (lambda head: head(hidden(), IDS.view(3, 1, 1)), "target_ids"),
    "fewer ids than examples": (lambda head: head(hidden(), IDS[:2]), "target_ids"),
    "no targets": (lambda head: head(hidden(), torch.zeros(3, 0, dtype=torch.int64)), "K ≥ 1"),
    "an id beyond the vocabulary": (lambda head: head(hidden(), torch.tensor([0, 20, 1])), "20 is outside.* 20"),
    "a negative id": (lambda head: head(hidden(), torch.tensor([0, -1, 1])), "-1 is outside"),
    "values of another shape": (lambda head: head(hidden(), IDS, torch.ones(3, 1)), "target_values"),
    "values that are not finite": (lambda head: head(hidden(), IDS, torch.tensor([1, math.nan, 1])), "finite"),
    "weights of another shape": (lambda head: head(hidden(), IDS, weight=torch.ones(2)), "weight"),
    "h that is nan": (lambda head: head(hidden(fill=math.nan), IDS), "not finite"),
    "h that is infinite": (lambda head: head(hidden(fill=math.inf), IDS), "not finite"),
    "h whose outputs overflow": (lambda head: head(hidden(fill=1e200), IDS), "not finite"),
    "log_prob of a loss without one": (lambda head: head.log_prob(hidden(), IDS), "no probability"),
    "topk of none": (lambda head: head.topk(hidden(), 0), "k = 0"),
    "topk of more than there are": (lambda head: head.topk(hidden(), 21), "k = 21.*20"),
    "topk of h of the wrong width": (lambda head: head.topk(torch.zeros(3, 4).double(), 2), "shape"),
    "W of the wrong shape": (lambda head: head.set_weight(torch.zeros(20, 4)), r"\(20, 4\)"),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", FORWARD)
def test_reading(kind: type, case: str) -> None:
    head = make(kind)
    call, message = FORWARD[case]
    before = snapshot(head)
    with pytest.raises((ConfigError, NumericsError), match=message):
        call(head)
    assert_unchanged(head, before)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"lr": 0.0}, "lr = 0"),
        ({"lr": -0.1}, "lr = -0.1"),
        ({"lr": math.nan}, "lr = nan"),
        ({"lr": math.inf}, "lr = inf"),
        ({"lr": 0.1, "weight_decay": -1.0}, "weight_decay = -1"),
        ({"lr": 0.1, "weight_decay": 10.0}, "weight_decay = 10"),
        ({"lr": 0.1, "weight_decay": math.nan}, "weight_decay = nan"),
    ],
)
def test_update_arguments(kind: type, arguments: dict[str, object], message: str) -> None:
    head = make(kind)
    head(hidden(), IDS).mean().backward()
    before = snapshot(head)
    with pytest.raises(ConfigError, match=message):
        head.update(**arguments)
    assert_unchanged(head, before)
    head.update(0.1)  # the backward pass has not been spent


@pytest.mark.parametrize("kind", KINDS)
def test_update_needs_a_backward_of_its_own(kind: type) -> None:
    head = make(kind)
    before = snapshot(head)
    with pytest.raises(NumericsError, match="backward"):
        head.update(0.1)
    with torch.no_grad():
        head(hidden(), IDS)
    head(hidden(), IDS)  # a forward alone is no gradient
    with pytest.raises(NumericsError, match="backward"):
        head.update(0.1)
    assert_unchanged(head, before)
    head(hidden(), IDS).mean().backward()
    head.update(0.1)
    before = snapshot(head)
    with pytest.raises(NumericsError, match="backward"):
        head.update(0.1)
    assert_unchanged(head, before)


@pytest.mark.parametrize("kind", KINDS)
def test_a_gradient_of_weights_that_are_gone_is_refused(kind: type) -> None:
    head = make(kind)
    stale, twice = head(hidden(), IDS).mean(), head(hidden(), IDS).mean()
    twice.backward(retain_graph=True)
    with pytest.raises(NumericsError, match="twice"):
        twice.backward()
    head.update(0.1)
    before = snapshot(head)
    with pytest.raises(NumericsError, match="changed since"):
        stale.backward()
    head(hidden(), IDS).mean().backward()
    head.load_state_dict(head.state_dict())
    with pytest.raises(NumericsError, match="changed since|backward"):
        head.update(0.1)
    assert_unchanged(head, before)


@pytest.mark.parametrize("kind", KINDS)
def test_equal_outputs_have_no_z_score(kind: type) -> None:
    head = make(kind, init_scale=0.0)
    before = snapshot(head)
    with pytest.raises(NumericsError, match="equal|σ"):
        train(head, hidden(), IDS)
    assert_unchanged(head, before)


@pytest.mark.parametrize("m", [2, 12])
@pytest.mark.parametrize(
    ("values", "weight"), [(1e39, 1.0), (1.0, math.inf), (1.0, math.nan), (1.0, 1e39)], ids=["t", "inf", "nan", "w"]
)
@pytest.mark.parametrize("loss", [SquaredError(), TaylorSoftmax()], ids=["squared", "taylor"])
def test_a_gradient_that_overflows_is_not_applied(loss: object, values: float, weight: float, m: int) -> None:
    head = make(loss=loss, dtype=torch.float32, init_scale=0.3)
    before = snapshot(head)
    h = torch.randn(m, HIDDEN, requires_grad=True)
    t = torch.full((m,), values, dtype=torch.float64)
    upstream = torch.tensor([weight] + [1.0] * (m - 1), dtype=torch.float64)
    with pytest.raises((NumericsError, ConfigError)):
        train(head, h, torch.arange(m), t, upstream)
    assert_unchanged(head, before)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: SphericalSoftmax(0.0), "epsilon = 0"),
        (lambda: SphericalSoftmax(math.nan), "epsilon = nan"),
        (lambda: SphericalSoftmax(-1.0), "epsilon = -1"),
        (lambda: ZLoss(a=0.0), "a = 0"),
        (lambda: ZLoss(a=math.inf), "a = inf"),
        (lambda: ZLoss(b=math.nan), "b = nan"),
        (lambda: make_loss("hinge"), "hinge.*squared"),
        (lambda: SphericalOutput(0, 10), "hidden = 0"),
        (lambda: SphericalOutput(4, 1), "vocab = 1"),
        (lambda: SphericalOutput(4, 10, init_scale=-1.0), "init_scale"),
        (lambda: SphericalOutput(4, 10, init_scale=math.nan), "init_scale"),
        (lambda: SphericalOutput(4, 10, dtype=torch.float16), "float16"),
        (lambda: SphericalOutput(4, 10, dtype=torch.int64), "int64"),
        (lambda: SphericalOutput(4, 10, ZLoss(), prior=torch.ones(10)), "prior"),
        (lambda: SphericalOutput(4, 10, TaylorSoftmax(), prior=torch.ones(9)), "prior"),
        (lambda: SphericalOutput(4, 10, TaylorSoftmax(), prior=torch.zeros(10)), "prior"),
    ],
)
def test_construction(build: Callable[[], object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build()


def test_a_custom_loss_must_return_one_value_an_example() -> None:
    head = make(loss=CustomLoss(lambda q, s, o, t, D: o * t))
    with pytest.raises(ConfigError, match=r"\(3, 1\).*\(3,\)"):
        head(hidden(), IDS)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"keep": torch.tensor([0, 0])}, "distinct"),
        ({"keep": torch.tensor([0, 20])}, "vocabulary of 20"),
        ({"keep": torch.tensor([3])}, "at least 2"),
        ({"new_rows": torch.zeros(2, 9)}, r"\(2, 9\)"),
    ],
)
def test_resizing(arguments: dict[str, Tensor], message: str) -> None:
    head = make()
    before = snapshot(head)
    with pytest.raises(ConfigError, match=message):
        head.resize_vocabulary(**arguments)
    assert_unchanged(head, before)


@pytest.mark.parametrize("kind", KINDS)
def test_a_loss_by_name_is_refused(kind: type) -> None:
    with pytest.raises(ConfigError, match=r"loss = 'z'.*make_loss"):
        make(kind, loss="z")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_short_dtype_is_refused(kind: type, dtype: torch.dtype) -> None:
    model = torch.nn.ModuleDict({"head": make(kind)})
    before = snapshot(model["head"])
    with pytest.raises(ConfigError, match="float32 or float64"):
        model.to(dtype)
    assert_unchanged(model["head"], before)


@pytest.mark.parametrize("kind", KINDS)
def test_autocast_rounds_nothing(kind: type) -> None:
    plain, cast = (make(kind, loss=TaylorSoftmax(), dtype=torch.float32) for _ in range(2))
    h = hidden().detach().float()
    train(plain, h, IDS)
    with torch.autocast("cpu", torch.bfloat16):
        train(cast, h, IDS)
        cast.learn(h, IDS, 1e-3)
        log_prob, best = cast.log_prob(h, IDS), cast.topk(h, 2)
    plain.learn(h, IDS, 1e-3)
    assert_unchanged(cast, snapshot(plain))
    assert torch.equal(log_prob, plain.log_prob(h, IDS))
    assert torch.equal(best[0], plain.topk(h, 2)[0])


@pytest.mark.parametrize("given", [{"keep": 12}, {"keep": [1, 2, 3]}, {"new_rows": [[1.0] * HIDDEN]}])
def test_resizing_wants_tensors(given: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="expected a tensor"):
        make().resize_vocabulary(**given)
