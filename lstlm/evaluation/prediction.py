"""The likeliest words in a context that a person types."""

from typing import Any

import torch

from lstlm.data import Vocabulary
from lstlm.errors import ConfigError
from lstlm.nn.network import Network

GAP = "_"


def is_lowercase(vocabulary: Vocabulary) -> bool:
    """Whether the vocabulary has no capitals, so that text must be lowered before it is looked up."""
    return all(word == word.lower() for word in vocabulary.words)


class Predictor:
    """Reads text as the training data was read, and asks the network."""

    def __init__(self, network: Network, vocabulary: Vocabulary, *, context: int, kind: str) -> None:
        if kind == "cooccurrence":
            raise ConfigError("a run of context_kind cooccurrence scores pairs, not the next word; ask `lstlm nn`")
        self._network, self._vocabulary = network, vocabulary
        self._context, self._kind = context, kind
        self._lower = is_lowercase(vocabulary)

    def read(self, text: str) -> tuple[list[int], list[str]]:
        """The ids of the context that the model sees, and its words that the vocabulary lacks.

        previous: the last n words, <s> before the first; window: n/2 words on either side of a lone `_` (or before the
        end), padded with <s> and </s>; bag: the last word.
        """
        words = text.split()
        known = self._vocabulary
        if self._kind == "previous":
            before, after = words[-self._context :], []
        elif self._kind == "window":
            half = self._context // 2
            gap = words.index(GAP) if GAP in words else len(words)
            before, after = words[max(0, gap - half) : gap], words[gap + 1 : gap + 1 + half]
        else:
            before, after = words[-1:], []
        if not words or (self._kind not in ("previous", "window") and not before):
            raise ConfigError("an empty context; give at least one word")
        missing: list[str] = []
        left, right = self._encode(before, missing), self._encode(after, missing)
        if self._kind == "previous":
            return [known.bos_id] * (self._context - len(left)) + left, missing
        if self._kind == "window":
            half = self._context // 2
            return [known.bos_id] * (half - len(left)) + left + right + [known.eos_id] * (half - len(right)), missing
        return left, missing

    def _encode(self, words: list[str], missing: list[str]) -> list[int]:
        ids = []
        for word in words:
            seen = word.lower() if self._lower else word
            if seen not in self._vocabulary.index:
                missing.append(word)
            ids.append(self._vocabulary.index.get(seen, self._vocabulary.unk_id))
        return ids

    @torch.no_grad()
    def predict(self, context: list[int], count: int) -> dict[str, Any]:
        """The `count` best words with score and, where defined, probability. <s> is left out: it never follows."""
        network, words = self._network, self._vocabulary.words
        device = network.input_vectors().device
        h = network.encode(torch.tensor([context], dtype=torch.int64, device=device))
        k = min(count + 1, len(words))
        scores, ids = network.head.topk(h, k)
        chances = [None] * k
        if network.head.normalised:
            chances = network.head.log_prob(h.expand(k, -1), ids[0]).double().exp().tolist()
        entries = [
            {"word": words[at], "probability": chance, "score": score}
            for at, score, chance in zip(ids[0].tolist(), scores[0].tolist(), chances, strict=True)
            if at != self._vocabulary.bos_id
        ]
        return {"context": [words[at] for at in context], "predictions": entries[:count]}
