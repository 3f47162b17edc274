"""The likeliest words in a context that a person types."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from lstlm.data import Vocabulary
from lstlm.data.tokenise import TextOptions
from lstlm.data.vocabulary import BOS, EOS
from lstlm.errors import ConfigError
from lstlm.nn.network import Network

GAP = "_"
_BLOCK = 1 << 16  # words whose probabilities are computed at a time


class Predictor:
    """Reads text as the training data was read, and asks the network."""

    def __init__(self, network: Network, vocabulary: Vocabulary, *, context: int, kind: str, text: TextOptions) -> None:
        if kind == "cooccurrence":
            raise ConfigError("a run of context_kind cooccurrence scores pairs, not the next word; ask `lstlm nn`")
        self._network, self._vocabulary = network, vocabulary
        self._context, self._kind, self._text = context, kind, text

    def read(self, text: str) -> tuple[list[int], list[str]]:
        """The ids of the context that the model sees, and its words that the vocabulary lacks.

        Of several sentences the one with the gap counts, else the last: no example of training crosses their border.
        previous: the last n words, <s> before the first; window: n/2 words on either side of a lone `_` (or before the
        end), padded with <s> and </s>; bag: the last word.
        """
        sentences = list(self._text.sentences(text)) or [[]]
        words = next((words for words in sentences if self._kind == "window" and GAP in words), sentences[-1])
        half, places = self._context // 2, (1, 0)  # of the context before and after the word that is asked for
        before, after = words[-1:], words[:0]
        if self._kind == "previous":
            before, places = words[-self._context :], (self._context, 0)
        elif self._kind == "window":
            gap = words.index(GAP) if GAP in words else len(words)
            before, after, places = words[max(0, gap - half) : gap], words[gap + 1 : gap + 1 + half], (half, half)
        if not words:
            raise ConfigError("an empty context; give at least one word")
        known = self._vocabulary
        padded = [BOS] * (places[0] - len(before)) + before + after + [EOS] * (places[1] - len(after))
        return known.encode(padded).tolist(), [word for word in (*before, *after) if word not in known.index]

    @torch.no_grad()
    def predict(self, context: list[int], count: int) -> dict[str, Any]:
        """The `count` best words with score and, where defined, probability. <s> is left out: it never follows."""
        network, words = self._network, self._vocabulary.words
        h = self._encode_context(context)
        k = min(count + 1, len(words))
        scores, ids = network.output.topk(h, k)
        chances = [None] * k
        if network.output.normalised:
            chances = network.output.log_prob(h.expand(k, -1), ids[0]).double().exp().tolist()
        entries = [
            {"word": words[at], "probability": chance, "score": score}
            for at, score, chance in zip(ids[0].tolist(), scores[0].tolist(), chances, strict=True)
            if at != self._vocabulary.bos_id
        ]
        return {"context": [words[at] for at in context], "predictions": entries[:count]}

    def generate(self, text: str, words: int, *, temperature: float = 1.0, seed: int | None = None) -> list[str]:
        """Up to `words` words that go on from `text` (from a sentence's start if it is empty), until a sentence ends.

        Each is drawn from p(word | context)^(1/temperature), renormalised over all words but <unk> and <s>; temperature
        0 takes the best one, with or without probabilities. The same seed draws the same words. O(D·hidden) a word.
        """
        if self._kind != "previous":
            raise ConfigError(f"a run of context_kind {self._kind} does not predict the next word: it cannot go on")
        if not 0 <= temperature < float("inf"):
            raise ConfigError(f"temperature {temperature}: at least 0, which always takes the best word, and finite")
        if temperature > 0 and not self._network.output.normalised:
            raise ConfigError("the loss of this run defines no probabilities to draw from; use temperature 0")
        known, random = self._vocabulary, np.random.default_rng(seed)
        context = self.read(text)[0] if text.strip() else [known.bos_id] * self._context
        found: list[str] = []
        while len(found) < words and (word := self._next(context, temperature, random)) != known.eos_id:
            context = [*context[1:], word]
            found.append(known.words[word])
        return found

    @torch.no_grad()
    def _next(self, context: list[int], temperature: float, random: np.random.Generator) -> int:
        head, known = self._network.output, self._vocabulary
        h = self._encode_context(context)
        if temperature == 0:
            best = head.topk(h, 3)[1][0].tolist()
            return int(next(word for word in best if word not in (known.unk_id, known.bos_id)))
        ids = torch.arange(len(known), device=h.device)
        log_p = (
            torch.cat([head.log_prob(h, block[None])[0] for block in torch.split(ids, _BLOCK)]).double().cpu().numpy()
        )
        log_p[[known.unk_id, known.bos_id]] = -np.inf
        sums = np.cumsum(np.exp((log_p - log_p.max()) / temperature))
        return int(np.searchsorted(sums, random.random() * sums[-1], side="right"))

    def _encode_context(self, context: list[int]) -> Tensor:
        device = self._network.input_vectors().device
        return self._network.encode(torch.tensor([context], dtype=torch.int64, device=device))
