"""A hundred thousand items, several right ones for a user: `lstlm.SphericalOutput` beside BCE with sampled negatives.

    python examples/multilabel.py --seconds 6     # then 20

The data are made here: 600 clusters of items, each with its own Zipfian favourites; a user likes two clusters, is
known by a noisy vector, and has taken 1 to 30 items, a fifth of them from what everybody takes. The network has two
hidden layers of 128 units. Our head learns the exact gradient over all items, from targets that differ in number
(`offsets`); the other one sees the right items and 1,024 others, drawn by popularity^0.75, and learns by Adagrad.
Both trunks learn by Adam. Each head gets a quarter of the time for each of three rates, then all of it for the best,
in CPU seconds. Precision@k: of the k items that score best, the share that the user took, over 1,000 held-out users
(a user with one item cannot give more than 0.2 at k = 5). The rates are chosen on these users too, for both heads.
It printed, on one core of a busy machine:

    100000 items, 7.7 a user, 6 CPU s for each head
    SphericalOutput  p@1 0.304  p@5 0.182   684 steps of 256   head 59 MiB
                     rate 1000 of (p@5 after a quarter of the time) 100: 0.048, 300: 0.077, 1000: 0.080
    BCE, sampled     p@1 0.215  p@5 0.163   430 steps of 256   head 98 MiB
                     rate 0.1 of (p@5 after a quarter of the time) 0.01: 0.042, 0.03: 0.134, 0.1: 0.181
    100000 items, 7.7 a user, 20 CPU s for each head
    SphericalOutput  p@1 0.312  p@5 0.200   2096 steps of 256   head 59 MiB
                     rate 300 of (p@5 after a quarter of the time) 100: 0.167, 300: 0.173, 1000: 0.172
    BCE, sampled     p@1 0.185  p@5 0.152   1468 steps of 256   head 98 MiB
                     rate 0.1 of (p@5 after a quarter of the time) 0.01: 0.083, 0.03: 0.167, 0.1: 0.174
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits as bce

from lstlm import SphericalOutput, ZLoss

CLUSTERS, LATENT, WIDTH, EXAMPLES, NEGATIVES = 600, 64, 128, 256, 1024


class Users(NamedTuple):
    """x (m,LATENT), and the items they took, ids (n,): user i has those from offsets[i] up to offsets[i+1]."""

    x: Tensor
    ids: Tensor
    offsets: Tensor

    @property
    def example(self) -> Tensor:
        return torch.repeat_interleave(torch.arange(len(self.x)), self.offsets.diff())


class World:
    """Items, clusters and how users come by their items."""

    def __init__(self, items: int, seed: int = 1) -> None:
        self.items, self.random = items, torch.Generator().manual_seed(seed)
        self.centres = torch.randn(CLUSTERS, LATENT, generator=self.random)
        self.order = torch.randperm(items, generator=self.random)  # an item's cluster: its place here by CLUSTERS
        self.popularity = torch.zeros(items)
        self.popularity[torch.randperm(items, generator=self.random)] = 1 / torch.arange(10.0, items + 10)
        self.cumulative = self.popularity.double().cumsum(0)

    def _zipf(self, most: int, n: int) -> Tensor:
        """Draw n ranks below `most`, rank r about as 1/(r + 1)."""
        return ((most + 1.0) ** torch.rand(n, generator=self.random) - 1).long().clamp_(max=most - 1)

    def users(self, m: int) -> Users:
        pair = torch.randint(CLUSTERS, (m, 2), generator=self.random)
        x = self.centres[pair].sum(1) + 0.5 * torch.randn(m, LATENT, generator=self.random)
        numbers = 1 + self._zipf(30, m)
        n, example = int(numbers.sum()), torch.repeat_interleave(torch.arange(m), numbers)
        cluster = pair[example, torch.randint(2, (n,), generator=self.random)]
        ids = self.order[self._zipf(self.items // CLUSTERS, n) * CLUSTERS + cluster]
        common = torch.rand(n, generator=self.random) < 0.2
        drawn = torch.rand(int(common.sum()), generator=self.random, dtype=torch.float64) * self.cumulative[-1]
        ids[common] = torch.searchsorted(self.cumulative, drawn).clamp_(max=self.items - 1)
        taken = torch.unique(example * self.items + ids)  # an item once for each user
        offsets = torch.zeros(m + 1, dtype=torch.int64)
        offsets[1:] = torch.bincount(taken // self.items, minlength=m).cumsum(0)
        return Users(x, taken % self.items, offsets)


class Head(Protocol):
    """What stands on the trunk."""

    rates: tuple[float, ...]

    def learn(self, h: Tensor, users: Users, lr: float) -> float: ...
    def top(self, h: Tensor, k: int) -> Tensor: ...
    def bytes(self) -> int: ...


class Exact:
    """Our head: the Z-loss, a mean over the items of a user."""

    rates = (100.0, 300.0, 1000.0)

    def __init__(self, world: World) -> None:
        generator = torch.Generator().manual_seed(2)
        self.head = SphericalOutput(WIDTH, world.items, ZLoss(a=0.1, b=10.0), generator=generator)

    def learn(self, h: Tensor, users: Users, lr: float) -> float:
        share = (1 / users.offsets.diff())[users.example]
        losses, gradient = self.head.value_and_grad(h.detach(), users.ids, share, offsets=users.offsets)
        h.backward(gradient)
        self.head.update(lr)
        return float(losses.mean())

    def top(self, h: Tensor, k: int) -> Tensor:
        return self.head.topk(h, k)[1]

    def bytes(self) -> int:
        return sum(x.numel() * x.element_size() for x in self.head.buffers())


class Sampled:
    """A plain linear head under BCE: the items taken against some that were drawn."""

    rates = (0.01, 0.03, 0.1)

    def __init__(self, world: World) -> None:
        torch.manual_seed(2)
        self.table = nn.Embedding(world.items, WIDTH + 1, sparse=True)
        nn.init.normal_(self.table.weight, 0, 0.01)  # from larger ones it learns far less
        nn.init.constant_(self.table.weight[:, -1].detach(), -4.0)
        self.optimizer = torch.optim.Adagrad(self.table.parameters())
        self.cumulative = (world.popularity**0.75).cumsum(0)

    def learn(self, h: Tensor, users: Users, lr: float) -> float:
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        H = nn.functional.pad(h, (0, 1), value=1.0)
        drawn = torch.searchsorted(self.cumulative, torch.rand(NEGATIVES) * self.cumulative[-1])
        right = (H[users.example] * self.table(users.ids)).sum(1)
        others = H @ self.table(drawn.clamp_(max=len(self.cumulative) - 1)).T
        loss = bce(right, torch.ones_like(right), reduction="sum") + bce(
            others, torch.zeros_like(others), reduction="sum"
        )
        loss = loss / len(h)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return float(loss.detach())

    def top(self, h: Tensor, k: int) -> Tensor:
        W = self.table.weight
        return torch.cat([(part @ W[:, :-1].T + W[:, -1]).topk(k)[1] for part in h.split(100)])

    def bytes(self) -> int:
        return 2 * self.table.weight.numel() * self.table.weight.element_size()  # with Adagrad's squares


def train(make: Callable[[World], Head], items: int, lr: float, seconds: float) -> tuple[Head, nn.Module, World, int]:
    """Train a head and its trunk for so many CPU seconds, making users not counted; the rates fall to 0."""
    world = World(items)
    head = make(world)
    torch.manual_seed(3)
    trunk = nn.Sequential(nn.Linear(LATENT, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh())
    optimizer = torch.optim.Adam(trunk.parameters(), 2e-3)
    spent, steps = 0.0, 0
    while spent < seconds:
        users = world.users(EXAMPLES)
        began, left = time.process_time(), 1 - spent / seconds
        optimizer.param_groups[0]["lr"] = 2e-3 * left
        optimizer.zero_grad()
        head.learn(trunk(users.x), users, lr * left)
        optimizer.step()
        spent += time.process_time() - began
        steps += 1
    return head, trunk, world, steps


@torch.no_grad()
def precision(head: Head, trunk: nn.Module, users: Users, k: int) -> float:
    """Return how many of the k best items users had taken."""
    items = head.top(trunk(users.x), k)
    pairs = torch.arange(len(users.x))[:, None] * 10**9 + items
    return float(torch.isin(pairs, users.example * 10**9 + users.ids).double().mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=6.0, help="CPU seconds of training for each head")
    parser.add_argument("--test-users", type=int, default=1000)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.sparse.check_sparse_tensor_invariants.disable()  # torch's Adagrad warns if nobody says so
    held_out = World(options.items)
    held_out.random.manual_seed(99)
    test = held_out.users(options.test_users)
    print(f"{options.items} items, {len(test.ids) / len(test.x):.1f} a user, {options.seconds:g} CPU s for each head")
    contenders: dict[str, Callable[[World], Head]] = {"SphericalOutput": Exact, "BCE, sampled": Sampled}
    for name, make in contenders.items():
        tried = {}
        for lr in make.rates:  # type: ignore[attr-defined]
            head, trunk, *_ = train(make, options.items, lr, options.seconds / 4)
            tried[lr] = precision(head, trunk, test, 5)
        best = max(tried, key=lambda lr: tried[lr])
        head, trunk, _, steps = train(make, options.items, best, options.seconds)
        scores = "  ".join(f"p@{k} {precision(head, trunk, test, k):.3f}" for k in (1, 5))
        rates = ", ".join(f"{lr:g}: {score:.3f}" for lr, score in tried.items())
        print(f"{name:16s} {scores}   {steps} steps of {EXAMPLES}   head {head.bytes() / 2**20:.0f} MiB")
        print(f"{'':16s} rate {best:g} of (p@5 after a quarter of the time) {rates}")


if __name__ == "__main__":
    main()
