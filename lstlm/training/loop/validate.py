"""The periodic evaluation: validation loss, perplexity where it is defined, hits, and SimLex-999."""

from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from lstlm.config import Config
from lstlm.data import Batch, Corpus, Vocabulary, evaluation_batches
from lstlm.errors import DataError
from lstlm.evaluation import perplexity, similarity
from lstlm.nn.network import Network
from lstlm.vectors import Vectors

_RANK_PRODUCTS = 10**9  # multiply-adds that an evaluation may spend on ranks: about a second
_FEWEST_RANKS = 256

Scorer = Callable[[Network], dict[str, float]]
"""Further figures of a network, by the names they are logged under."""


class Interrupted(Exception):
    """The evaluation was given up because a signal asked for the end."""


class SimLex:
    """SimLex-999 on the few rows of the embedding table that it needs; found once, not at every evaluation."""

    def __init__(self, vocabulary: Vocabulary, path: Path) -> None:
        self.pairs = similarity.read_pairs(path)
        wanted = {word.upper() for pair in self.pairs for word in (pair.first, pair.second)}
        self._rows = [row for row, word in enumerate(vocabulary.words) if word.upper() in wanted]
        self._words = [vocabulary.words[row] for row in self._rows]

    def score(self, network: Network) -> dict[str, float]:
        """Return Spearman's correlation and the number of pairs used; nothing where too few words are known."""
        if len(self._rows) < 2:
            return {}
        ids = torch.as_tensor(self._rows, device=network.embedding.weight.device)
        rows = network.input_rows(ids).double().cpu().numpy()
        result = similarity.evaluate_pairs(Vectors(self._words, rows), self.pairs)
        return {"eval/simlex_spearman": result.spearman, "eval/simlex_pairs": result.pairs_used}


def find_simlex(config: Config, vocabulary: Vocabulary) -> SimLex | None:
    """Return the SimLex test if it is wanted and its file is found; its absence is no error."""
    if not config.train.simlex:
        return None
    try:
        return SimLex(vocabulary, similarity.find_simlex(None))
    except DataError:
        return None


class Validator:
    """Scores a network on the validation split, `train.eval_examples` at most, in corpus order."""

    def __init__(self, config: Config, corpus: Corpus, scorer: Scorer | None = None) -> None:
        self._config = config
        self._corpus = corpus
        self._scorer = scorer
        self.simlex = find_simlex(config, corpus.vocabulary)

    def __call__(self, network: Network, stop: Callable[[], bool] = lambda: False) -> dict[str, float]:
        """Return eval/… figures; raise Interrupted where `stop` says so between two batches."""
        figures = self._losses(network, stop)
        if self.simlex is not None:
            figures.update(self.simlex.score(network))
        if self._scorer is not None:
            figures.update(self._scorer(network))
        return figures

    def _losses(self, network: Network, stop: Callable[[], bool]) -> dict[str, float]:
        if self._config.data.context_kind == "cooccurrence":
            return {"eval/loss": float(network.unexplained)}  # of the rows themselves: held-out text has no such rows
        result = perplexity.evaluate(network, self._batches(stop), rank_examples=self._rank_examples(network))
        if not result.tokens:
            return {}  # no validation text
        figures = {"eval/loss": result.loss, "eval/top1": result.top1, "eval/top10": result.top10}
        return figures if result.perplexity is None else {**figures, "eval/perplexity": result.perplexity}

    def _rank_examples(self, network: Network) -> int:
        """Return on how many examples to take hits."""
        affordable = perplexity.affordable_ranks(network, _RANK_PRODUCTS, _FEWEST_RANKS)
        return min(affordable, self._config.train.eval_examples)

    def _batches(self, stop: Callable[[], bool]) -> Iterator[Batch]:
        data, train = self._config.data, self._config.train
        for batch in evaluation_batches(
            self._corpus.valid,
            self._corpus.vocabulary,
            context=data.context,
            kind=data.context_kind,
            batch_size=train.batch_size,
            limit=train.eval_examples,
        ):
            if stop():
                raise Interrupted
            yield batch
