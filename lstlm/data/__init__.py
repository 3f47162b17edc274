"""From text to minibatches: sources, vocabulary, encoded corpus, examples.  Imports numpy, never torch."""

from lstlm.data.corpus import Corpus, Split
from lstlm.data.ngrams import Examples, evaluation_batches
from lstlm.data.vocabulary import Vocabulary
from lstlm.data.windows import Batch

__all__ = ["Batch", "Corpus", "Examples", "Split", "Vocabulary", "evaluation_batches"]
