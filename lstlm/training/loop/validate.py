"""The periodic evaluation: validation loss, perplexity where it is defined, hits, and SimLex-999."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import isfinite
from pathlib import Path

import torch
from torch import Tensor

from lstlm.config import Config
from lstlm.data import Batch, Corpus, Vocabulary, evaluation_batches
from lstlm.errors import DataError
from lstlm.evaluation import datasets, perplexity, similarity
from lstlm.nn.network import Network
from lstlm.vectors import Vectors

_RANK_PRODUCTS = 10**9  # multiply-adds that an evaluation may spend on ranks: about a second
_FEWEST_RANKS = 256

Scorer = Callable[[Network], dict[str, float]]
"""Further figures of a network, by the names they are logged under."""


class Interrupted(Exception):
    """The evaluation was given up because a signal asked for the end."""


class WordPairs:
    """Lists of word pairs with human scores, such as SimLex-999, on the few rows of a table that they need.

    `files` are named explicitly or None, to be found; of the latter, one that is not there is left out.
    """

    def __init__(self, vocabulary: Vocabulary, files: Mapping[str, Path | None]) -> None:
        self._pairs = {}
        for kind, explicit in files.items():
            try:
                self._pairs[kind] = datasets.read_pairs(datasets.find_dataset(kind, explicit))
            except DataError:
                if explicit is not None:
                    raise
        wanted = {word.upper() for pairs in self._pairs.values() for p in pairs for word in (p.first, p.second)}
        rows = [row for row, word in enumerate(vocabulary.words) if word.upper() in wanted]
        self.rows = torch.as_tensor(rows, dtype=torch.int64)  # of no words at all torch would make floats
        self.words = [vocabulary.words[row] for row in rows]

    def score(self, words: Sequence[str], matrix: Tensor) -> dict[str, similarity.SimilarityResult]:
        """Return the result of each list for vectors (n,size) of `words`; nothing where too few words are known."""
        if len(words) < 2:
            return {}
        vectors = Vectors(list(words), matrix.detach().double().cpu().numpy())
        return {kind: similarity.evaluate_pairs(vectors, pairs) for kind, pairs in self._pairs.items()}


class Validator:
    """Scores a network on the validation split, `train.eval_examples` at most, in corpus order."""

    def __init__(self, config: Config, corpus: Corpus, scorer: Scorer | None = None) -> None:
        self._config = config
        self._corpus = corpus
        self._scorer = scorer
        self._pairs = WordPairs(corpus.vocabulary, {"simlex": None} if config.train.simlex else {})

    def __call__(self, network: Network, stop: Callable[[], bool] = lambda: False) -> dict[str, float]:
        """Return eval/… figures; raise Interrupted where `stop` says so between two batches."""
        figures = self._losses(network, stop)
        if len(words := self._pairs.words) > 1:
            rows = network.input_rows(self._pairs.rows.to(network.embedding.weight.device))
            simlex = self._pairs.score(words, rows)["simlex"]
            if isfinite(simlex.spearman):  # a single pair has no correlation
                figures |= {"eval/simlex_spearman": simlex.spearman, "eval/simlex_pairs": simlex.pairs_used}
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
