"""gensim's word2vec on the same prepared corpus: rows to compare with."""

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch

from lstlm.bench.records import Record
from lstlm.data import Corpus

Score = Callable[[Mapping[str, int], np.ndarray[Any, np.dtype[Any]]], dict[str, float]]
_CHUNK = 1 << 20


def write_sentences(corpus: Corpus, path: Path) -> None:
    """Write the training part as text, one sentence a line; words outside the vocabulary are left out."""
    vocabulary = corpus.vocabulary
    names = np.array(list(vocabulary.words), dtype=object) + " "
    names[vocabulary.eos_id] = "\n"
    names[vocabulary.unk_id] = ""
    with path.open("w", encoding="utf-8") as file:
        for start in range(0, corpus.train.tokens, _CHUNK):
            file.write("".join(names[corpus.train.ids[start : start + _CHUNK].astype(np.int64)]))


@dataclass(frozen=True)
class Peer:
    """What to train: gensim-sg or gensim-cbow, with gensim's defaults but for size and epochs; timed by `now`."""

    name: str
    epochs: int
    dimension: int
    seed: int
    now: Callable[[], float] = perf_counter


def train_peer(peer: Peer, corpus: Corpus, score: Score) -> list[Record]:
    """Train a peer and return one record an epoch.

    The clock stops while it is scored. Counting words is not in the time: the prepared corpus had that done, too.
    """
    from gensim.models import Word2Vec
    from gensim.models.callbacks import CallbackAny2Vec

    points: list[Record] = []

    class Scorer(CallbackAny2Vec):  # type: ignore[misc]
        """Scores the vectors after each epoch, off the clock."""

        def __init__(self) -> None:
            self.seconds = 0.0
            self._began = 0.0

        def on_epoch_begin(self, model: Any) -> None:
            self._began = peer.now()

        def on_epoch_end(self, model: Any) -> None:
            self.seconds += peer.now() - self._began
            found = score(model.wv.key_to_index, model.wv.vectors)
            points.append({"epoch": len(points) + 1, "train_s": self.seconds, **found, "final": False})

    with tempfile.TemporaryDirectory(prefix="lstlm-bench-") as folder:
        path = Path(folder) / "corpus.txt"
        write_sentences(corpus, path)
        skip_gram = int(peer.name == "gensim-sg")
        workers = torch.get_num_threads()
        model = Word2Vec(vector_size=peer.dimension, min_count=1, sg=skip_gram, workers=workers, seed=peer.seed)
        model.build_vocab(corpus_file=str(path))
        model.train(
            corpus_file=str(path),
            total_examples=model.corpus_count,
            total_words=model.corpus_total_words,
            epochs=peer.epochs,
            callbacks=[Scorer()],
        )
    points[-1]["final"] = True
    settings = {"method": peer.name, "loss": "negative sampling", "dimension": peer.dimension, "epochs": peer.epochs}
    return [{**settings, **point} for point in points]
