"""Training by several ranks: one learner and one trainer a process, which take the same decisions at the same step.

What ranks could see differently, they add up: the gradients, the loss, the votes to stop, and the first rank's clock.
All of it travels in one sum a step.
"""

import hashlib
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lstlm.config import Config
from lstlm.data import Corpus
from lstlm.distributed import Ranks
from lstlm.distributed.shards import split_state
from lstlm.distributed.shortlist import ShardedShortlist
from lstlm.distributed.spherical import OverRanks
from lstlm.errors import ConfigError
from lstlm.training.loop.diagnostics import Diagnostics
from lstlm.training.loop.learner import Learner
from lstlm.training.loop.signals import STOPPING
from lstlm.training.loop.trainer import Trainer
from lstlm.training.run.checkpoint import Checkpoint, keep_best_and_newest, newest_valid, reopen, step_folders
from lstlm.training.run.shards import rows_file, save_sharded

COMPARE_EVERY = 500
"""Steps between two comparisons of the replicas."""

_WEIGHTS = {number: 1024.0**place for place, number in enumerate(STOPPING)}
"""What a vote for a signal counts: of those in a sum, the heaviest tells."""


class Votes:
    """Whether to stop: the same answer on every rank at the same step, whoever got the signal."""

    def __init__(self, ranks: Ranks, received: Callable[[], int | None]) -> None:
        self._ranks, self._received = ranks, received
        self.signal: int | None = None

    def mine(self) -> float:
        """Return this rank's vote."""
        number = self._received()
        return 0.0 if number is None else _WEIGHTS[signal.Signals(number)]

    def count(self, total: float) -> None:
        """Take in the sum of all votes."""
        if self.signal is None and total > 0:
            self.signal = int(max((weight, number) for number, weight in _WEIGHTS.items() if total >= weight)[1])

    def __call__(self) -> bool:
        """Say what the votes counted so far decided."""
        return self.signal is not None

    def ask(self) -> bool:
        """Vote now. Collective."""
        self.count(float(sum(row[0] for row in self._ranks.numbers([int(self.mine())]))))
        return self()


class RankLearner(Learner):
    """A learner whose minibatch is spread over the ranks; its step is that of one process with the whole of it."""

    def __init__(self, config: Config, corpus: Corpus, device: torch.device, ranks: Ranks) -> None:
        if config.data.context_kind == "cooccurrence":
            raise ConfigError("data.context_kind cooccurrence: refitted by one process; start it without torchrun")
        self.ranks, self.rank, self.world = ranks, ranks.rank, ranks.world
        self.vote_and_clock: Callable[[], tuple[float, float]] = lambda: (0.0, 0.0)  # what this rank adds to the sums
        self.votes_and_clock = (0.0, 0.0)  # the sums over the ranks at the last step
        super().__init__(config, corpus, device, ranks=ranks)

    def _examples_of(self, here: int) -> int:
        output = self.network.output
        assert isinstance(output, OverRanks | ShardedShortlist)
        return output.examples

    def _reduce_gradients(self, loss: float, slope: float) -> tuple[float, float]:
        """Add up over the ranks: the gradients of the hidden layers, in place, and what is returned. Collective."""
        parameters = [p for p in self.network.hidden.parameters() if p.grad is not None]
        few = self.network.output.like.new_tensor([loss, slope, *self.vote_and_clock()])
        flat = torch.cat([p.grad.reshape(-1) for p in parameters if p.grad is not None] + [few])
        self.ranks.total_(flat)
        start = 0
        for parameter in parameters:
            parameter.grad = flat[start : start + parameter.numel()].view_as(parameter)
            start += parameter.numel()
        self.votes_and_clock = (float(flat[-2]), float(flat[-1]))
        return float(flat[-4]), float(flat[-3])

    # ---- replicas --------------------------------------------------------------------------------------------------
    def digest(self) -> int:
        """Return 62 bits that tell whether two ranks hold the same weights and optimiser state."""
        code = hashlib.blake2b(digest_size=8)
        for tensor in self._replicated(self.network.state_dict()):
            code.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        return int.from_bytes(code.digest(), "little") >> 2

    def _replicated(self, network: dict[str, Tensor]) -> list[Tensor]:
        hidden = self.optimisers.hidden
        alike, _ = split_state(network)
        return [*alike.values(), *(x for state in (hidden.state.values() if hidden else ()) for x in state)]

    def compare_replicas(self) -> list[int]:
        """Return the ranks whose replica differed from the first one's; they hold its numbers now. Collective."""
        codes = [row[0] for row in self.ranks.numbers([self.digest()])]
        wrong = [rank for rank, code in enumerate(codes) if code != codes[0]]
        if wrong:
            state = self.network.state_dict()
            with torch.no_grad():
                self.ranks.copy_from_first_(self._replicated(state))
            self.network.load_state_dict(state)  # what is derived from them is computed anew
        return wrong

    def tensors(self) -> dict[str, dict[str, Any]]:
        """Return this rank's tensors to save, by file: its rows, and on the first rank what all have alike."""
        files = super().tensors()
        alike, rows = split_state(files["network.pt"])
        training = files["training.pt"]
        squares = training["optimisers"]["squares"]
        mine: dict[str, dict[str, Any]] = {rows_file(self.rank, self.world): {"network": rows, "squares": squares}}
        if not self.ranks.first:
            return mine
        training = {**training, "optimisers": {**training["optimisers"], "squares": None}}
        return {"network.pt": alike, "training.pt": training, **mine}


class RankTrainer(Trainer):
    """A trainer among others: the clock is the first rank's, files are written together, replicas are compared."""

    learner: RankLearner
    votes: Votes

    def run(self, stopped: Callable[[], bool]) -> None:
        """Train like one process. `stopped` is the `Votes` of this run."""
        assert isinstance(stopped, Votes)
        self.votes = stopped
        ranks = self.learner.ranks
        self.learner.vote_and_clock = lambda: (stopped.mine(), self._clock() if ranks.first else 0.0)
        # figures of all rows need all ranks, so the first one's clock decides when they are taken
        self._diagnose = Diagnostics(lambda earned: bool(ranks.numbers([int(earned)])[0][0]))
        stopped.ask()
        super().run(stopped)

    def _clock(self) -> float:
        return self.now() - self._started

    def elapsed(self) -> float:
        """Return the seconds of training by the first rank's clock, as of the last step."""
        return self.progress.elapsed

    def _take_step(self) -> None:
        super()._take_step()
        votes, self.progress.elapsed = self.learner.votes_and_clock
        self.votes.count(votes)

    def _do_what_is_due(self, stopped: Callable[[], bool]) -> None:
        step = self.progress.step
        if step % COMPARE_EVERY == 0 and (wrong := self.learner.compare_replicas()):
            text = f"step {step}: the replica of rank {', '.join(map(str, wrong))} differed and was copied from rank 0"
            self.log.event(step, "replica", text)
        super()._do_what_is_due(stopped)

    def _evaluate(self, stopped: Callable[[], bool]) -> bool:
        return super()._evaluate(self.votes.ask)

    def _newest(self) -> tuple[Checkpoint | None, list[str]]:
        def find() -> tuple[str | None, list[str]]:
            checkpoint, skipped = newest_valid(step_folders(self.root))
            return None if checkpoint is None else str(checkpoint.folder), skipped

        folder, skipped = self.learner.ranks.on_first(find)
        return None if folder is None else reopen(Path(folder)), skipped

    def _write(self, contents: dict[str, Any]) -> None:
        # Not in the background: the ranks agree on the outcome by collectives, and steps need those meanwhile.
        ranks = self.learner.ranks
        mine = contents if ranks.first else self.learner.tensors()
        folder = save_sharded(self.root, self.progress.step, mine, self._facts, ranks)
        if folder is not None:
            keep_best_and_newest(folder, best=self._is_best(), keep=self.config.train.keep_checkpoints)
