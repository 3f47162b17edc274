"""The answer is verified before it is timed: every method against plain autograd over stored weights, at a small size.

The check runs the very class that will be timed, in float64, with m/d as in the timing, so that a layer which chooses
its formula by (m, d) chooses the same one.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, log_softmax, pad

from lstlm.bench.methods import Method, learning_rate, make_layer, make_runner
from lstlm.bench.verification import relative
from lstlm.bench.workload import Workload
from lstlm.errors import ConfigError, NumericsError
from lstlm.registry import OUTPUTS, load

VOCAB, WIDTH, STEPS = 400, 40, 8
TOLERANCE = 1e-8


def verify(method: Method, d: int, m: int, targets: int = 1) -> float:
    """Return the largest relative error of a method's losses, ∂/∂h and weights over some steps; raise if too large."""
    hidden = WIDTH - 1
    batch_size = max(1, round(m * WIDTH / d))
    work = Workload(hidden, VOCAB, batch_size, targets=targets, dtype=torch.float64, seed=7)
    # With all words as candidates the sampled softmax is the full one, so that it has a right answer.
    # A tight range makes the stabiliser repair within a few steps.
    tight = {} if method.stabilise == "lazy" else {"stabilise_every": 2}
    settings = {"candidates": VOCAB, "shortlist": 60, "middle": 120, "stabilise_range": (0.7, 1.5), **tight}
    layer = make_layer(method, hidden, work.counts, dtype=torch.float64, settings=settings)
    oracle = make_oracle(method, layer)
    batches = [next(work) for _ in range(STEPS)]
    lr = learning_rate(method, VOCAB, [h for h, _ in batches[:3]]) / 2
    runner = make_runner(method, layer, lr)
    error = 0.0
    for number, (h, ids) in enumerate(batches):
        if number % 2 == 0:
            layer.expect(torch.cat([ids for _, ids in batches[number : number + 2]]))
        expected_loss, expected = oracle.step(h.clone(), ids, lr)
        found = runner.step(h.clone(), ids)
        error = max(error, relative(found, expected))
        error = max(error, abs(runner.last_loss - expected_loss) / max(abs(expected_loss), 1e-12))
    error = max(error, relative(layer.weight(), oracle.weight()))
    if not error <= TOLERANCE:
        raise NumericsError(
            f"{method}: wrong, hence not timed: error {error:.1e} against plain autograd, limit {TOLERANCE:.0e} "
            f"(D={VOCAB}, d={WIDTH}, m={batch_size}, {STEPS} steps, float64); run `lstlm verify`"
        )
    return error


class Oracle:
    """Weights that autograd sees, a loss of them written out in full, and SGD. `parts` are copies of a layer's."""

    def __init__(self, layer: Any, parts: list[Tensor] | None = None) -> None:
        """Copy the parts of a layer: where None, its weights and biases."""
        parts = [layer.weight(), layer.bias_vector()] if parts is None else parts
        self.parts = [part.detach().clone().requires_grad_() for part in parts]

    def losses(self, h: Tensor, ids: Tensor) -> Tensor:
        """Return the losses (m,) of h (m,hidden) for ids (m,), or (m,K) where the layer takes several targets."""
        raise TypeError(f"{type(self).__name__} has no losses")

    def step(self, h: Tensor, ids: Tensor, lr: float) -> tuple[float, Tensor]:
        """Return the mean loss and ∂(mean loss)/∂h, and update the weights."""
        h = h.requires_grad_()
        loss = self.losses(h, ids).mean()
        loss.backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            self._descend(lr)
        for part in self.parts:
            part.grad = None
        assert h.grad is not None
        return float(loss.detach()), h.grad

    def _descend(self, lr: float) -> None:
        for part in self.parts:
            if part.grad is not None:
                part -= lr * part.grad

    def weight(self) -> Tensor:
        """Return the word vectors (D,hidden)."""
        return self.parts[0].detach()


class SphericalOracle(Oracle):
    """ℓ(‖o‖², Σo, o, y) with o = W h + b and targets y in full; only the loss as such is taken from the package."""

    def __init__(self, layer: Any) -> None:
        super().__init__(layer)
        self.loss = layer.loss

    def losses(self, h: Tensor, ids: Tensor) -> Tensor:
        W, b = self.parts
        o = h @ W.T + b
        ids = ids.view(len(h), -1)
        y = torch.zeros_like(o).scatter_add_(1, ids, torch.full_like(ids, 1 / ids.shape[1], dtype=o.dtype))
        losses: Tensor = self.loss.partials(o.square().sum(1), o.sum(1), o, y, float(len(W))).value
        return losses


class LogProbOracle(SphericalOracle):
    """log p(target), and no learning."""

    def step(self, h: Tensor, ids: Tensor, lr: float) -> tuple[float, Tensor]:
        losses = self.losses(h, ids).detach()
        return float(losses.mean()), -losses


class SoftmaxOracle(Oracle):
    """Cross-entropy over all words."""

    def losses(self, h: Tensor, ids: Tensor) -> Tensor:
        W, b = self.parts
        return cross_entropy(h @ W.T + b, ids, reduction="none")


class TwoLevelOracle(Oracle):
    """−log p(class) − log p(word | class), each a masked softmax in full."""

    def __init__(self, layer: Any) -> None:
        parts = [layer.weight(), layer.bias_vector(), layer.classes.weight(), layer.classes.bias_vector()]
        super().__init__(layer, parts)
        self.class_of_word = layer.locate(torch.arange(layer.vocab))[0]

    def losses(self, h: Tensor, ids: Tensor) -> Tensor:
        W, b, R, r = self.parts
        own = self.class_of_word[ids]
        outside = self.class_of_word[None, :] != own[:, None]
        within = (h @ W.T + b).masked_fill(outside, -torch.inf)
        return cross_entropy(h @ R.T + r, own, reduction="none") + cross_entropy(within, ids, reduction="none")


class AdaptiveOracle(Oracle):
    """The adaptive softmax written out: a head over short list and clusters, a projected softmax in each cluster."""

    def __init__(self, layer: Any) -> None:
        module = layer.module
        super().__init__(layer, [module.head.weight, module.head.bias, *(p.weight for t in module.tail for p in t)])
        self.rank, self.cutoffs = layer.rank, [int(c) for c in module.cutoffs]

    def losses(self, h: Tensor, ids: Tensor) -> Tensor:
        head, bias, *tails = self.parts
        short = self.cutoffs[0]
        top = log_softmax(h @ head.T + bias, 1)
        columns = [top[:, :short]]
        for number, (down, up) in enumerate(zip(tails[::2], tails[1::2], strict=True)):
            columns.append(log_softmax(h @ down.T @ up.T, 1) + top[:, short + number, None])
        return -torch.cat(columns, 1).gather(1, self.rank[ids][:, None])[:, 0]

    def weight(self) -> Tensor:
        head, _, *tails = (part.detach() for part in self.parts)
        rows = [up @ down for down, up in zip(tails[::2], tails[1::2], strict=True)]
        return torch.cat([head[: self.cutoffs[0]], *rows])[self.rank]


class ShortlistOracle(Oracle):
    """The shortlist head written out: softmaxes of top and classes by Adagrad, a Taylor softmax of the tail."""

    def __init__(self, layer: Any) -> None:
        self.order, self.tail_rate, self.k = layer.word_of_rank, layer.tail_rate, layer.shortlist
        self.root, self.tail_part, self.middle = layer.tail.state.p.double(), layer.tail_part, layer.middle
        parts = [*layer.tables(), layer.tail]  # of each, the vectors and the biases
        super().__init__(layer, [part for table in parts for part in (table.weight(), table.bias_vector())])
        self.squares = [torch.zeros(len(table.matrix), dtype=torch.float64) for table in layer.tables()]

    def losses(self, h: Tensor, ids: Tensor) -> Tensor:
        S, s, *middle, W, b = self.parts
        top = log_softmax(h @ S.T + s, 1)
        o = (self.tail_part(h) @ W.T + b) / self.root
        t = self.root.square() * (1 + o + o.square() / 2)
        columns = [top[:, : self.k], top[:, -1:] + (t / t.sum(1, keepdim=True)).log()]
        if middle:
            scores = self.middle.part(h) @ middle[0].T + middle[1]
            parts = torch.split(scores, self.middle.bounds.diff().tolist(), 1)
            columns[1:1] = [top[:, self.k + g, None] + log_softmax(part, 1) for g, part in enumerate(parts)]
        return -torch.cat(columns, 1).gather(1, self.order.argsort()[ids][:, None])[:, 0]

    def _descend(self, lr: float) -> None:
        for W, b, squares in zip(self.parts[0:-2:2], self.parts[1:-2:2], self.squares, strict=True):
            if W.grad is None or b.grad is None:
                continue
            squares += torch.cat([W.grad, b.grad[:, None]], 1).square().mean(1)
            rates = lr / (squares.sqrt() + 1e-10)
            W -= rates[:, None] * W.grad
            b -= rates * b.grad
        for part in self.parts[-2:]:
            part -= lr * self.tail_rate * (0 if part.grad is None else part.grad)

    def weight(self) -> Tensor:
        tables = [part.detach() for part in self.parts[0::2]]
        tables[0], tables[-1] = tables[0][: self.k], tables[-1] / self.root[:, None]
        return torch.cat([pad(W, (0, tables[0].shape[1] - W.shape[1])) for W in tables])[self.order.argsort()]


def make_oracle(method: Method, layer: Any) -> Oracle:
    """Return the oracle that starts from the layer's weights."""
    make = OUTPUTS[method.kind].reference
    if make is None:
        raise ConfigError(
            f"--methods {method.name}: its entry in the registry names no reference to verify it against; "
            "what is not verified is not timed"
        )
    oracle: Oracle = LogProbOracle(layer) if method.name == "log_prob" else load(make)(layer)
    return oracle
