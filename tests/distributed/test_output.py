"""The sharded layers are the layers of one process: losses, gradients and weights after dozens of steps."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from lstlm.distributed import Ranks
from lstlm.distributed.shortlist import ShardedShortlist
from lstlm.distributed.spherical import ShardedDenseOutput, ShardedOutput
from lstlm.outputs import ShortlistOutput
from lstlm.spherical import DenseSphericalOutput, SphericalOutput, make_loss
from tests.distributed.processes import run_ranks

HIDDEN, VOCAB = 11, 37  # 37 rows on 3 ranks: 13, 12, 12
RATES = {"squared": 0.02, "spherical": 0.5, "taylor": 0.5, "z": 2.0}
LOSSES = tuple(RATES)


def batches(
    m: int, K: int, steps: int, vocab: int = VOCAB, hidden: int = HIDDEN
) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Return global minibatches: few distinct targets, so that they repeat, and one strong direction of h."""
    random = torch.Generator().manual_seed(5)
    out = []
    for _ in range(steps):
        h = torch.randn(m, HIDDEN, generator=random, dtype=torch.float64)
        h[:, 0] += 3.0
        ids = (torch.rand(m, K, generator=random) ** 2 * vocab).long()
        out.append((h, ids, torch.rand(m, K, generator=random, dtype=torch.float64) + 0.1))
    return out


def settings(seed: int = 1, **more: Any) -> dict[str, Any]:
    return {"dtype": torch.float64, "init_scale": 0.3, "generator": torch.Generator().manual_seed(seed), **more}


def learn(head: Any, name: str, m: int, K: int, part: slice, steps: int) -> dict[str, Tensor]:
    """Train on this part of the minibatches; return the losses, the gradients of h and the weights at the end."""
    losses, gradients, norms = [], [], []
    for number, (h, ids, values) in enumerate(batches(m, K, steps)):
        mine = h[part].clone().requires_grad_()
        out = head(mine, ids[part], values[part] if K > 1 else None)
        (out.sum() / m).backward()
        if number % 20 == 0:
            norms.append(head.grad_norm())
        head.update(RATES[name], weight_decay=1e-3)
        losses.append(out.detach())
        gradients.append(mine.grad)
    return {
        "losses": torch.stack(losses),
        "gradients": torch.stack(gradients),
        "weight": head.weight(),
        "bias": head.bias_vector(),
        "norms": torch.tensor([*norms, head.weight_norm()]),
    }


def reading(head: Any) -> dict[str, Tensor]:
    """Return what the layer tells about one batch that all ranks ask about."""
    head.eval()
    h, ids, _ = batches(12, 1, 1)[0]
    scores, names = head.topk(h, 20)
    with torch.no_grad():
        told = {"scores": scores, "names": names, "ranks": head.rank_of(h, ids), "loss": head(h, ids)}
    return {**told, "log_prob": head.log_prob(h, ids)} if head.normalised else told


def sharded(ranks: Ranks, kind: str, losses: tuple[str, ...], m: int, K: int, steps: int) -> dict[str, Any]:
    """Train one layer for each loss; the state that must be equal everywhere comes along."""
    make = ShardedOutput if kind == "factored" else ShardedDenseOutput
    found = {}
    for name in losses:
        head = make(ranks, HIDDEN, VOCAB, make_loss(name), **settings())
        learned = learn(head, name, m, K, ranks.part(m), steps)
        replica = head.state.exact + head.state.recent if kind == "factored" else torch.zeros(0)
        repairs = int(head.stabiliser.total) if kind == "factored" else 0
        found[name] = {**learned, **reading(head), "replica": replica, "repairs": repairs}
    return found


def alone(kind: str, name: str, m: int, K: int, steps: int) -> dict[str, Tensor]:
    make = SphericalOutput if kind == "factored" else DenseSphericalOutput
    head = make(HIDDEN, VOCAB, make_loss(name), **settings())
    return {**learn(head, name, m, K, slice(None), steps), **reading(head)}


def compare(one: dict[str, Any], several: list[dict[str, Any]], name: str) -> None:
    for key, dimension in (("losses", 1), ("gradients", 1)):
        whole = torch.cat([found[name][key] for found in several], dimension)
        torch.testing.assert_close(whole, one[key], rtol=1e-9, atol=1e-9, msg=lambda text, key=key: f"{key}: {text}")
    for found in several:
        for key in set(one) - {"losses", "gradients"}:
            torch.testing.assert_close(
                found[name][key], one[key], rtol=1e-9, atol=1e-9, msg=lambda text, key=key: f"{key}: {text}"
            )
        assert torch.equal(found[name]["replica"], several[0][name]["replica"]), "replicas differ in their last bits"


# m = 6 and 7 take the low-rank form, 23 and 24 the square one
@pytest.mark.parametrize(("world", "m", "K", "steps"), [(2, 6, 1, 60), (2, 24, 1, 60), (3, 23, 3, 40), (3, 7, 2, 40)])
def test_ranks_train_what_one_process_trains(tmp_path: Path, world: int, m: int, K: int, steps: int) -> None:
    several = run_ranks(world, tmp_path, sharded, "factored", LOSSES, m, K, steps)
    for name in LOSSES:
        compare(alone("factored", name, m, K, steps), several, name)
    # rows that repairs have not reached yet are part of the test
    assert several[0]["squared"]["repairs"] > 0


def test_naive_rows_are_shared_out_as_well(tmp_path: Path) -> None:
    several = run_ranks(3, tmp_path, sharded, "naive", ("taylor", "z"), 8, 2, 12)
    for name in ("taylor", "z"):
        compare(alone("naive", name, 8, 2, 12), several, name)


def with_prior(ranks: Ranks, m: int) -> Any:
    prior = torch.arange(1.0, VOCAB + 1)
    head = ShardedOutput(ranks, HIDDEN, VOCAB, make_loss("taylor"), **settings(prior=prior, init_scale=3.0))
    return {"taylor": {**learn(head, "taylor", m, 1, ranks.part(m), 50), **reading(head), "replica": head.state.exact}}


@pytest.mark.parametrize("m", [6, 24])
def test_a_prior_is_known_to_all(tmp_path: Path, m: int) -> None:
    several = run_ranks(2, tmp_path, with_prior, m)
    prior = torch.arange(1.0, VOCAB + 1)
    head = SphericalOutput(HIDDEN, VOCAB, make_loss("taylor"), **settings(prior=prior, init_scale=3.0))
    compare({**learn(head, "taylor", m, 1, slice(None), 50), **reading(head)}, several, "taylor")


def learn_otherwise(head: Any, m: int, K: int, part: slice) -> dict[str, Tensor]:
    """Train by the other ways in: `learn`, two backward passes before an update."""
    found = []
    for h, ids, values in batches(m, K, 5):
        found += head.learn(h[part], ids[part], 0.2, values[part])
        for _ in range(2):
            (head(h[part].clone().requires_grad_(), ids[part], values[part]).sum() / m).backward()
        found.append(torch.full((m, 1), head.grad_norm())[part])
        head.update(0.2)
    return {"found": torch.cat([x.reshape(len(x), -1) for x in found], 1), "weight": head.weight()}


def sharded_otherwise(ranks: Ranks, m: int, K: int) -> dict[str, Tensor]:
    head = ShardedOutput(ranks, HIDDEN, VOCAB, make_loss("taylor"), **settings())
    return learn_otherwise(head, m, K, ranks.part(m))


@pytest.mark.parametrize(("world", "m", "K"), [(2, 24, 1), (3, 23, 3), (2, 6, 1)])
def test_the_other_ways_to_learn_are_exact_too(tmp_path: Path, world: int, m: int, K: int) -> None:
    several = run_ranks(world, tmp_path, sharded_otherwise, m, K)
    one = learn_otherwise(SphericalOutput(HIDDEN, VOCAB, make_loss("taylor"), **settings()), m, K, slice(None))
    torch.testing.assert_close(torch.cat([found["found"] for found in several]), one["found"], rtol=1e-9, atol=1e-9)
    for found in several:
        torch.testing.assert_close(found["weight"], one["weight"], rtol=1e-9, atol=1e-9)


def uneven(ranks: Ranks) -> str:
    head = ShardedOutput(ranks, HIDDEN, VOCAB, make_loss("z"), **settings())
    h, ids, _ = batches(6, 1, 1)[0]
    try:
        head(h[: 2 + 2 * ranks.rank], ids[: 2 + 2 * ranks.rank])
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "accepted"


def test_parts_that_are_not_even_are_refused_by_every_rank(tmp_path: Path) -> None:
    expected = "ConfigError: the output layer: the ranks hold [2, 4] examples; even parts of the 6 are [3, 3]"
    assert run_ranks(2, tmp_path, uneven) == [expected] * 2


def bytes_of_steps(ranks: Ranks, vocab: int, m: int) -> list[int]:
    head = ShardedOutput(ranks, HIDDEN, vocab, make_loss("z"), **settings())
    sent = []
    for h, ids, _ in batches(m, 1, 8, vocab=10_000):
        before = ranks.sent
        head(h[ranks.part(m)].requires_grad_(), ids[ranks.part(m)]).mean().backward()
        head.update(0.5)
        sent.append(ranks.sent - before)
    return sent


def several_sizes(ranks: Ranks, vocabs: tuple[int, ...], m: int) -> list[list[int]]:
    return [bytes_of_steps(ranks, vocab, m) for vocab in vocabs]


@pytest.mark.parametrize("m", [6, 24])
def test_bytes_of_a_step_do_not_depend_on_the_vocabulary(tmp_path: Path, m: int) -> None:
    small, large = run_ranks(2, tmp_path, several_sizes, (10_000, 1_000_000), m)[0]
    assert small == large
    assert min(small) > m * HIDDEN * 8 // 2  # the rank's part of H, at least
    assert not math.isclose(sum(small), 0)


COUNTS = torch.tensor([(17 * i) % 41 + 1 for i in range(VOCAB)])


def learn_list(head: Any, m: int, part: slice, size: int) -> dict[str, Tensor]:
    """Train by both ways in, with minibatches of the list alone, of the tail alone and of both; read at the end."""
    losses, gradients = [], []
    for number, (h, ids, _) in enumerate(batches(m, 1, 40)):
        near = VOCAB - head.tail.vocab  # the list and the middle
        words = {0: head.word_of_rank[ids % size], 1: head.word_of_rank[near + ids % (VOCAB - near)]}
        ids = words.get(number % 5, ids)[:, 0]
        if number % 2:
            found, gradient = head.value_and_grad(h[part], ids[part])
        else:
            mine = h[part].clone().requires_grad_()
            found = head(mine, ids[part])
            (found.sum() / m).backward()
            gradient = mine.grad
        head.update(0.05, weight_decay=1e-3)
        losses.append(found.detach())
        gradients.append(gradient)
    told = {"losses": torch.stack(losses), "gradients": torch.stack(gradients)}
    return {**told, "weight": head.weight(), "bias": head.bias_vector(), **reading(head)}


def list_settings(optimiser: str, size: int, middle: int) -> dict[str, Any]:
    classes = torch.arange(middle) % 3 if middle else None
    made = {**settings(), "classes": classes, "middle_inputs": HIDDEN - 2, "optimiser": optimiser}
    return {**made, "shortlist": size, "tail_rate": 0.5, "tail_inputs": HIDDEN - 1}


def sharded_list(ranks: Ranks, m: int, *chosen: Any) -> Any:
    head, size = ShardedShortlist(ranks, HIDDEN, COUNTS, **list_settings(*chosen)), chosen[1]
    return {
        "list": {
            **learn_list(head, m, ranks.part(m), size),
            "replica": torch.cat([table.matrix.reshape(-1) for table in head.tables()]),
        }
    }


# of 3 examples the tail has fewer than there are ranks; 23 and 40 take the square form
@pytest.mark.parametrize(
    ("world", "m", "chosen"),
    [
        (2, 3, ("adagrad", 30, 0)),
        (2, 40, ("sgd", 9, 0)),
        (3, 23, ("adagrad", 9, 0)),
        (2, 3, ("adagrad", 9, 12)),
        (3, 40, ("sgd", 9, 12)),
    ],
)
def test_a_shortlist_is_trained_as_one_process_trains_it(
    tmp_path: Path, world: int, m: int, chosen: tuple[str, int, int]
) -> None:
    several = run_ranks(world, tmp_path, sharded_list, m, *chosen)
    head = ShortlistOutput(HIDDEN, COUNTS, **list_settings(*chosen))
    compare(learn_list(head, m, slice(None), chosen[1]), several, "list")
