"""`ShortlistSoftmax`: the shortlist head in the manner of `torch.nn.AdaptiveLogSoftmaxWithLoss`."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lstlm.errors import ConfigError
from lstlm.outputs.shortlist import ShortlistOutput
from lstlm.protocol.arguments import checked_tensor


class Result(NamedTuple):
    """log p(target) of each example, in the shape of target, and the mean of its negative: what is to be minimised."""

    output: Tensor
    loss: Tensor


class ShortlistSoftmax(nn.Module):
    """An exact softmax-like output over a huge number of classes, at a cost that does not depend on how many there are.

        head = ShortlistSoftmax(512, 800_000)      # classes ordered by frequency, or give counts=
        output, loss = head(h, target)             # h (m,512) or (B,T,512)
        loss.backward()                            # the exact gradient reaches h
        head.update(lr=0.05)                        # the head's own step

    It takes the place of `torch.nn.AdaptiveLogSoftmaxWithLoss(512, 800_000, cutoffs)`. The difference: its weights are
    no parameters. `backward` leaves what belongs to them with the head, and `update(lr)` takes the step: row-wise
    Adagrad for the frequent classes, exact SGD on factors for all others, in place of the optimizer's step on a
    gradient of the size of the whole matrix. Call it once after every `backward` (or after several, which then count as
    one larger minibatch); 0.05 suits most data, falling to 0 with the optimizer's own rate. To have it called:

        head.follow(optimizer, lr=0.05)             # every optimizer.step() then updates the head too,
        scheduler = LambdaLR(optimizer, …)         # at a rate that keeps pace with the optimizer's

    `ignore_index` marks targets that count for nothing; an empty minibatch has loss 0. Under autocast, inputs of half
    precision are taken and computed with in float32. See `ShortlistOutput` for the mathematics.
    """

    def __init__(
        self,
        in_features: int,
        n_classes: int,
        *,
        counts: Tensor | None = None,
        shortlist: int = 250,
        ignore_index: int = -100,
        **settings: Any,
    ) -> None:
        """Make a head for `n_classes`, the most frequent first unless `counts` (n_classes,) says otherwise.

        The other keywords are those of `ShortlistOutput`: classes, middle_inputs, loss, prior_power, tail_rate,
        tail_inputs, bias, squares, dtype, device, generator. `classes` (M,) int64 puts the M classes after the list
        into groups of such as occur alike, each with a softmax of its own: better than the tail where M is thousands.
        """
        super().__init__()
        if counts is None:
            counts = 1e6 / torch.arange(1.0, n_classes + 1.0, dtype=torch.float64)  # Zipf's law
        checked_tensor("counts", counts)
        if counts.shape != (n_classes,):
            raise ConfigError(f"counts has shape {tuple(counts.shape)}: expected one for each of {n_classes} classes")
        self.in_features, self.n_classes, self.ignore_index = in_features, n_classes, ignore_index
        self.layer = ShortlistOutput(in_features, counts, shortlist=shortlist, **settings)
        self._nothing = False  # whether the last minibatch had no target that counts

    def forward(self, input: Tensor, target: Tensor) -> Result:
        """Return log p(target) and the mean loss.  input (…,in_features), target (…) int64."""
        for name, given in (("input", input), ("target", target)):
            checked_tensor(name, given)
        if input.shape[:-1] != target.shape:
            raise ConfigError(
                f"input {tuple(input.shape)} and target {tuple(target.shape)}: all but the last must agree"
            )
        counted = target != self.ignore_index
        self._nothing = not bool(counted.any())
        if self._nothing:
            zero = input.sum(-1).float() * 0.0  # part of the graph, so that backward works as always
            return Result(zero, zero.sum())
        losses = self.layer(input[counted], target[counted])
        output = losses.new_zeros(target.shape).masked_scatter(counted, -losses)
        return Result(output, losses.mean())

    def update(self, lr: float, weight_decay: float = 0.0) -> None:
        """Take the step for the backward passes since the last one; nothing where no target counted."""
        if not self._nothing:
            self.layer.update(lr, weight_decay)

    def follow(self, optimizer: torch.optim.Optimizer, lr: float) -> None:
        """Update after every `optimizer.step()`, at `lr` times the optimizer's rate as a share of what it is now."""
        first = float(optimizer.param_groups[0]["lr"])

        def step(optimizer: torch.optim.Optimizer, *_: Any) -> None:
            share = float(optimizer.param_groups[0]["lr"]) / first
            self.update(lr * share) if share > 0 else self.layer.discard()

        optimizer.register_step_post_hook(step)

    def log_prob(self, input: Tensor) -> Tensor:
        """Return the log-probabilities of all classes, (…,n_classes), as torch's head does. O(m·n_classes·in_features).

        `layer.log_prob(h, ids)` has those of single classes, at a cost free of n_classes.
        """
        h = self._flat(input)
        out = h.new_empty(len(h), self.n_classes, dtype=self.layer.dtype)
        with torch.no_grad():
            for ids, scores in self.layer.all_log_probs(h):
                out[:, ids] = scores
        return out.view(*input.shape[:-1], self.n_classes)

    def predict(self, input: Tensor) -> Tensor:
        """Return the likeliest class of each example, in the shape of a target."""
        h = self._flat(input).to(self.layer.dtype)
        best = self.layer.topk(h, 1)[1] if len(h) else torch.empty(0, dtype=torch.int64, device=h.device)
        return best.view(input.shape[:-1])

    def _flat(self, input: Tensor) -> Tensor:
        checked_tensor("input", input)
        if input.shape[-1:] != (self.in_features,):
            raise ConfigError(f"input has shape {tuple(input.shape)}; expected (…, {self.in_features})")
        return input.reshape(-1, self.in_features)

    def extra_repr(self) -> str:
        """Show the sizes and the loss."""
        layer = self.layer
        sizes = f"{self.in_features}, {self.n_classes}, shortlist={layer.shortlist}, tail_inputs={layer.tail_inputs}"
        if layer.middle is not None:
            sizes += f", middle={layer.middle.words} in {layer.middle.classes} groups"
        return f"{sizes}, loss={layer.tail.loss!r}"
