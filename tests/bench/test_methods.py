"""What is timed is right: every method agrees with plain autograd, and a wrong one is refused."""

import pytest
import torch

from lstlm.bench import check, output
from lstlm.bench.methods import Method, Runner, expand, learning_rate, make_layer, method_names
from lstlm.bench.timing import Effort
from lstlm.bench.workload import Workload, zipf_counts
from lstlm.errors import NumericsError
from lstlm.registry import LOSSES, STABILISERS
from lstlm.spherical import SphericalOutput, make_loss

EVERYTHING = expand(method_names(), LOSSES.names(), STABILISERS.names())


@pytest.mark.parametrize("method", EVERYTHING, ids=str)
def test_every_method_agrees_with_plain_autograd(method: Method) -> None:
    assert check.verify(method, d=300, m=128) <= check.TOLERANCE


@pytest.mark.parametrize("loss", LOSSES.names())
def test_the_form_for_large_minibatches_is_verified_too(loss: str) -> None:
    assert check.verify(Method("factored", loss, "lazy"), d=40, m=60) <= check.TOLERANCE


@pytest.mark.parametrize("m", [12, 60])
@pytest.mark.parametrize("loss", LOSSES.names())
@pytest.mark.parametrize("kind", ["factored", "naive"])
def test_several_targets_are_verified_too(kind: str, loss: str, m: int) -> None:
    method = Method(kind, loss, "lazy" if kind == "factored" else None)
    assert check.verify(method, d=40, m=m, targets=5) <= check.TOLERANCE


@pytest.mark.parametrize("stabilise", ["lazy", "svd", "power", "restore"])
def test_the_check_makes_the_stabiliser_repair(stabilise: str, monkeypatch: pytest.MonkeyPatch) -> None:
    layers: list[SphericalOutput] = []

    def remember(*arguments: object, **options: object) -> SphericalOutput:
        layers.append(make_layer(*arguments, **options))  # type: ignore[arg-type]
        return layers[-1]

    monkeypatch.setattr(check, "make_layer", remember)
    check.verify(Method("factored", "squared", stabilise), d=300, m=128)
    assert int(layers[0].stabiliser.total) > 0


class Careless(Runner):
    """Forgets every third update."""

    taken = 0

    def step(self, h: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        self.taken += 1
        lr, self.lr = self.lr, self.lr * (1e-9 if self.taken % 3 == 0 else 1)
        try:
            return super().step(h, ids)
        finally:
            self.lr = lr


def test_a_wrong_method_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "make_runner", lambda method, layer, lr: Careless(layer, lr))
    monkeypatch.setattr(output, "_time_group", lambda *_: pytest.fail("was timed"))
    plan = output.Plan([Method("naive", "z")], [100], d=8, m=4, effort=Effort(0.01, 3, 1))
    with pytest.raises(NumericsError, match=r"naive, z: wrong, hence not timed: error .* against plain autograd"):
        output.run(plan, lambda _: None)


def test_a_method_that_gives_nan_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "relative", lambda *_: float("inf"))
    with pytest.raises(NumericsError, match="error inf"):
        check.verify(Method("softmax", "softmax"), d=300, m=128)
    assert check.relative(torch.tensor([float("nan")]), torch.ones(1)) == float("inf")


def test_names_become_methods() -> None:
    found = expand(["factored", "naive", "sampled"], ["z", "squared"], ["lazy", "svd"])
    assert [str(method) for method in found] == [
        "factored, z, lazy stabiliser",
        "factored, squared, lazy stabiliser",
        "naive, z",
        "naive, squared",
        "sampled, softmax",
        "factored, z, svd stabiliser",
        "factored, squared, svd stabiliser",
    ]
    assert [m.period for m in found] == [1, 1, 1, 1, 1, 100, 100]


def test_memory_of_the_largest_naive_layer_is_about_what_it_takes() -> None:
    bytes_ = Method("naive", "z").memory_bytes(793_471, 300, 128)
    assert 1.3 * 2**30 < bytes_ < 1.5 * 2**30  # W 908 MiB and O 387 MiB, and a little
    assert Method("naive-blocked", "squared").memory_bytes(793_471, 300, 128) < bytes_ - 380 * 2**20


@pytest.mark.parametrize("loss", LOSSES.names())
def test_the_learning_rate_is_at_most_half_of_what_the_layer_accepts(loss: str) -> None:
    work = Workload(31, 500, 16, dtype=torch.float64)
    h, ids = next(work)
    lr = learning_rate(Method("factored", loss, "lazy"), 500, [h])
    layer = SphericalOutput(31, 500, make_loss(loss), dtype=torch.float64)
    leaf = h.clone().requires_grad_()
    layer(leaf, ids).mean().backward()
    layer.update(lr)  # more than is stable would raise
    if loss == "squared":  # dq = 1: the limit is known exactly
        H = torch.cat([h, torch.ones(16, 1, dtype=h.dtype)], 1)
        assert lr == pytest.approx(0.5 / (2 * float(torch.linalg.matrix_norm(H, ord=2)) ** 2 / 16))


def test_minibatches_look_like_a_trained_network_and_repeat() -> None:
    first, again = Workload(63, 1000, 256), Workload(63, 1000, 256)
    h, ids = next(first)
    h2, ids2 = next(again)
    assert torch.equal(h, h2) and torch.equal(ids, ids2)
    assert h.shape == (256, 63) and float(h.abs().max()) < 1
    sigma = torch.linalg.svdvals(h)
    centred = torch.linalg.svdvals(h - h.mean(0))
    assert float(sigma[0]) > 2 * float(centred[0])  # the mean dominates
    assert float(centred[0]) > 4 * float(centred[31])  # the rest decays
    counts = torch.bincount(torch.cat([ids, *(next(first)[1] for _ in range(50))]), minlength=1000)
    assert counts.argmax() == 0 and int(counts[0]) > 3 * int(counts[10])


def test_the_directions_drift() -> None:
    work = Workload(31, 100, 64)
    early = torch.cat([next(work)[0] for _ in range(20)]).mean(0)
    for _ in range(6000):
        work._step += 1
    work._step -= work._step % 50
    late = torch.cat([next(work)[0] for _ in range(20)]).mean(0)
    cosine = float(torch.cosine_similarity(early, late, dim=0))
    assert cosine < 0.8


def test_counts_follow_zipf() -> None:
    counts = zipf_counts(10_000)
    assert float(counts[0] / counts.sum()) == pytest.approx(0.045, abs=0.02)
    assert bool((counts[1:] <= counts[:-1]).all()) and float(counts[-1]) == 1
