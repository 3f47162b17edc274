"""The learner of the co-occurrence recipe: a step is a pass, which refits both sides of the model to all words.

It stands where the learner of minibatches stands, so that a run of passes is logged, evaluated, saved, stopped and
resumed like any other. An epoch is one pass.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from lstlm.config import Config, DataConfig
from lstlm.data import Batch, Corpus
from lstlm.data.association import association_rows
from lstlm.data.vocabulary import SPECIALS
from lstlm.errors import CheckpointError, ConfigError
from lstlm.training.loop.learner import Learner, StepResult
from lstlm.training.loop.refit import TargetRows, refit


class Passes:
    """The place of the stream of examples: every step takes the whole matrix."""

    batches_per_epoch = 1

    def __init__(self, words: int) -> None:
        self.num_examples = words
        self.epoch = 0

    def __next__(self) -> Batch:
        raise StopIteration("a pass takes all rows at once; it has no batches")

    def coming(self) -> None:
        """Return None: a pass takes all rows."""

    def state(self) -> dict[str, int]:
        """Return how many passes were made."""
        return {"epoch": self.epoch}

    def restore(self, state: dict[str, int]) -> None:
        """Continue after a `state()`."""
        try:
            self.epoch = int(state["epoch"])
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"the saved position is damaged ({error!r}); resume from another checkpoint"
            ) from None


def row_settings(data: DataConfig, seed: int) -> dict[str, Any]:
    """Return what the rows of association scores depend on; on the seed where words are dropped at random."""
    names = ("distance", "min_pair", "weighting", "shift", "smoothing", "discount")
    random = {"subsample": data.subsample, "seed": seed} if data.subsample else {}
    return {"window": data.context // 2, **{name: getattr(data, name) for name in names}, **random}


def check_embedding(config: Config, corpus: Corpus) -> None:
    """Refuse more directions than there are rows of scores: the words, without <unk>, <s> and </s>."""
    words, size = len(corpus.vocabulary) - len(SPECIALS), config.model.embedding
    if config.data.context_kind == "cooccurrence" and size > words:
        raise ConfigError(
            f"model.embedding: {size} is above the {words} words of {corpus.folder}, and cooccurrence finds at most "
            f"one direction a word; use at most {words}, or prepare more text"
        )


class RefitLearner(Learner):
    """Refits word vectors and output weights in turn; the rows are counted, or mapped, at the first step."""

    has_rates = False
    examples: Passes

    def __init__(self, config: Config, corpus: Corpus, device: torch.device) -> None:
        check_embedding(config, corpus)
        super().__init__(config, corpus, device, Passes(len(corpus.vocabulary)))
        self.words_per_step = len(corpus.vocabulary)
        self._corpus = corpus
        self._targets: TargetRows | None = None

    def step(self, lr_scale: float, *, measured: bool = True) -> StepResult:
        """Make one pass.  `lr_scale` is not used: a refit has no rate."""
        del lr_scale
        self.clock.start(measured=measured)
        targets = self._targets = self._targets or self._open_targets()
        self.clock.lap("data")
        config, table = self.config, self.network.embedding.weight
        with torch.no_grad():
            fit = refit(targets, table, config.output.ridge, config.model.vector_power)
            table.copy_(fit.H)
            self.network.output.set_weight(fit.W)  # type: ignore[operator]
            self.network.unexplained.fill_(fit.unexplained)
        self.clock.lap("update")
        self.examples.epoch += 1
        return StepResult(fit.unexplained, self.words_per_step)

    def _open_targets(self) -> TargetRows:
        settings = row_settings(self.config.data, self.config.train.seed)
        rows, facts = association_rows(self._corpus, settings, self._progress(), self.say)
        how = "made in" if facts["made"] else "from an earlier run, made in"
        self.say(f"{facts['entries']:,} association scores, {how} {facts['seconds']:.1f} s")
        # What an earlier run paid for belongs to the price of this one, too.
        self.seconds_before = 0.0 if facts["made"] else float(facts["seconds"])
        return TargetRows(rows, self.network.embedding.weight.dtype, self.device)

    def _progress(self) -> Callable[[str, float], None]:
        told: dict[str, int] = {}

        def tell(phase: str, share: float) -> None:
            quarter = int(4 * share)
            if told.get(phase, 0) < quarter:
                told[phase] = quarter
                self.say(f"{phase} {25 * quarter} %")

        return tell


def make_learner(config: Config, corpus: Corpus, device: torch.device) -> Learner:
    """Return the learner that the configuration asks for."""
    kind = RefitLearner if config.data.context_kind == "cooccurrence" else Learner
    return kind(config, corpus, device)
