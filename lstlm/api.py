"""The library on a postcard: prepare a corpus, train a model, use what was trained.

    corpus = lstlm.prepare("news.txt", "data/news", tokenise="simple", lowercase=True, min_count=5)
    run = lstlm.train("lm-taylor", data=corpus, run="runs/news")    # or run = lstlm.load("runs/news")
    run.most_similar("water")                                       # [("pollution", 0.56), …]
    run.most_similar(positive=["king", "woman"], negative=["man"])
    run.vectors["water"]                                            # a row of numbers
    run.log_prob("the president of the united states")
    run.perplexity(open("held-out.txt"))
    run.generate("the president of", words=10, seed=1)

What goes wrong is said in one line by a `ConfigError` (a ValueError), a `DataError` or another `LstlmError`.
"""

import json
import signal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from lstlm.config import Config, dump_config, load_config, parse_config, vector_config
from lstlm.data import Batch, Corpus, Split, evaluation_batches
from lstlm.data.inputs import TextSource
from lstlm.data.prepare import PrepareOptions
from lstlm.data.prepare import prepare as prepare_corpus
from lstlm.data.sources import SentenceSource, open_source
from lstlm.data.tokenise import TextOptions
from lstlm.data.vocabulary import SPECIALS
from lstlm.errors import ConfigError, DataError
from lstlm.evaluation.perplexity import evaluate, word_scores
from lstlm.evaluation.prediction import Predictor
from lstlm.training.run.folders import default_folder
from lstlm.training.run.saved import LoadedRun, load_run
from lstlm.training.run.session import Options, use_device
from lstlm.training.run.session import train as train_run
from lstlm.vectors import Vectors, load_vectors

__all__ = ["Corpus", "Run", "Vectors", "load", "load_vectors", "prepare", "train", "train_vectors"]


class Run(LoadedRun):
    """A trained model with its words: `lstlm.load("runs/x")`.

    folder      where it was trained
    config      all settings of the run
    vocabulary  its words and their counts
    network     the model, a torch module in evaluation mode; `network.output` is the output layer
    step        how many updates it has seen
    text        how text becomes words, as the text of its corpus did
    predictor   reads text and asks the network
    """

    def __repr__(self) -> str:
        return f"<lstlm run {self.folder}: {len(self.vocabulary):,} words, step {self.step:,}>"

    @cached_property
    def vectors(self) -> Vectors:
        """The word vectors: `run.vectors["water"]`, `"water" in run.vectors`, `run.vectors.matrix` (words, length)."""
        return self.word_vectors()

    def word_vectors(self, which: str = "input") -> Vectors:
        """Return the embeddings (`input`), the weights of the output layer (`output`), or their `sum`, row by row."""
        if which not in ("input", "output", "sum"):
            raise ConfigError(f"--which {which!r}: one of input, output, sum")
        table = self.network.output_vectors() if which == "output" else self.network.input_vectors()
        if which == "sum":
            output = self.network.output_vectors()
            if output.shape != table.shape:
                raise ConfigError(
                    f"--which sum needs input and output vectors of one length; these have {table.shape[1]} and "
                    f"{output.shape[1]}: train with model.embedding equal to the last of model.hidden, or use "
                    "--which input"
                )
            table = table + output
        counts = self.vocabulary.counts.tolist()
        return Vectors(self.vocabulary.words, table.detach().cpu().numpy(), counts)

    def most_similar(
        self, positive: str | Iterable[str], negative: str | Iterable[str] = (), k: int = 10, *, oov: bool = False
    ) -> list[tuple[str, float]]:
        """Return the k words nearest to a word, or to a sum and difference of words, with their cosines.

        king − man + woman is `most_similar(positive=["king", "woman"], negative=["man"])`. With `oov`, a word that has
        no vector is given one by its spelling.
        """
        return self.vectors.most_similar(positive, negative, k, oov=oov)

    def predict(self, text: str, k: int = 10) -> list[tuple[str, float]]:
        """Return the k likeliest next words with their probabilities, or with scores where the loss has none."""
        predictor = self.predictor
        entries = predictor.predict(predictor.read(text)[0], k)["predictions"]
        key = "probability" if self.network.output.normalised else "score"
        return [(entry["word"], entry[key]) for entry in entries]

    def generate(self, prompt: str = "", words: int = 20, *, temperature: float = 1.0, seed: int | None = None) -> str:
        """Return the prompt with up to `words` words after it, drawn one by one, until the sentence ends.

        The same seed draws the same words. A temperature below 1 prefers likely words; 0 takes the likeliest.
        """
        found = self.predictor.generate(prompt, words, temperature=temperature, seed=seed)
        return " ".join([prompt, *found] if prompt else found)

    def log_prob(self, sentence: str) -> float:
        """Return ln p(sentence), its end included: Σ ln p(word | words before)."""
        return sum(score for _, score in self.word_log_probs(sentence))

    def word_log_probs(self, sentence: str) -> list[tuple[str, float]]:
        """Return each word of the sentence, and </s>, with its log-probability given the words before it.

        A word outside the vocabulary has the probability of <unk>, and is returned as that.
        """
        if self.config.data.context_kind != "previous":
            kind = self.config.data.context_kind
            raise ConfigError(f"a run of context_kind {kind} gives no probability of a sentence; train one of previous")
        self._need_probabilities()
        split = self._encode([sentence])
        if split.sentences != 1:
            raise ConfigError(f"{split.sentences} sentences where one is needed; perplexity takes a whole text")
        scores = word_scores(self.network, self.batches(split))
        return [(self.vocabulary.words[target], score) for target, score in scores]

    def perplexity(self, text: str | Iterable[str]) -> float:
        """Return exp(−mean log p) over all words and sentence ends of a text, or of lines such as an open file's."""
        self._need_probabilities()
        result = evaluate(self.network, self.batches(self._encode(text)), rank_examples=0)
        assert result.perplexity is not None  # there are probabilities
        return result.perplexity

    @cached_property
    def predictor(self) -> Predictor:
        """What answers `predict` and `generate`; ConfigError where the model predicts no words."""
        data = self.config.data
        return Predictor(self.network, self.vocabulary, context=data.context, kind=data.context_kind, text=self.text)

    def _need_probabilities(self) -> None:
        if self.config.data.context_kind == "cooccurrence":
            raise ConfigError("a run of context_kind cooccurrence scores pairs of words, not text")
        if not self.network.output.normalised:
            raise ConfigError(
                f"output.loss {self.config.output.loss} defines no probabilities; train with taylor or spherical, "
                "or another output.kind"
            )

    def _encode(self, text: str | Iterable[str]) -> Split:
        """Return the ids of a text, each sentence ended by </s>."""
        lines = [text] if isinstance(text, str) else text
        sentences = (words for line in lines for words in self.text.sentences(line))
        split = Split.from_sentences("the text", sentences, self.vocabulary)
        if not split.tokens:
            raise DataError("the text holds no words")
        return split

    def batches(self, split: Split, limit: int | None = None) -> Iterator[Batch]:
        """Yield the examples of a split, `limit` at most, as the model was trained on them."""
        data, size = self.config.data, max(self.config.train.batch_size, 256)
        return evaluation_batches(
            split, self.vocabulary, context=data.context, kind=data.context_kind, batch_size=size, limit=limit
        )


def load(path: str | Path, *, device: str = "cpu") -> Run:
    """Load the last checkpoint of a run folder, or the checkpoint at `path`."""
    return Run(**vars(load_run(Path(path), device=use_device(device))))


def prepare(
    source: str | Path | Iterable[str | Path | Sequence[str]],
    out: str | Path,
    *,
    tokenise: str = "none",
    lowercase: bool = False,
    min_count: int | None = 1,
    max_vocab: int | None = None,
    valid_fraction: float = 0.01,
    force: bool = False,
) -> Corpus:
    """Turn text into a corpus in the folder `out`, as `lstlm prepare` does, and open it.

    source          a file, folder, glob, "demo" or "1b"; several `Path`s; or an iterable of sentences, each a string or
                    a sequence of words, which is read once and may be a generator
    tokenise        "simple" cuts raw text into sentences and words; "none": words stand between blanks, one sentence a
                    line
    lowercase       lower-case the text
    min_count       leave out rarer words; None leaves the number to the size of the text
    max_vocab       keep the commonest so many words, <unk>, <s> and </s> included
    valid_fraction  share of the sentences kept for validation
    force           replace a corpus that is there
    """
    text = TextOptions(lowercase, tokenise)
    options = PrepareOptions(min_count=min_count, max_vocab=max_vocab, valid_fraction=valid_fraction, text=text)
    prepare_corpus(_source(source), Path(out), options, force=force)
    return Corpus.open(Path(out), verify=False)


def _source(source: str | Path | Iterable[Any]) -> TextSource:
    if isinstance(source, str | Path):
        return open_source([str(source)])
    if isinstance(source, Sequence) and source and all(isinstance(item, Path) for item in source):
        return open_source([str(path) for path in source])
    if not isinstance(source, Iterable):
        raise ConfigError(f"source {source!r:.60}: a path, several Paths, or an iterable of sentences is needed")
    return SentenceSource(source)


def train(
    config: Config | Mapping[str, Any] | str | Path,
    *,
    data: Corpus | str | Path | None = None,
    run: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    resume: str | None = None,
    force: bool = False,
    device: str = "cpu",
    threads: int | None = None,
    quiet: bool = False,
) -> Run:
    """Train as `lstlm train` does, and load what was trained.

    config    a recipe by name ("demo"), a YAML file, sections in a dict ({"model": {"embedding": 100}}), or a `Config`
    data      the corpus; takes the place of data.dir
    run       the run folder; by default runs/<config>-<time>
    settings  single keys to change: {"train.max_minutes": 1}
    resume    "auto" continues the run from its newest checkpoint; a path, from that one
    force     start anew in a folder that holds a run
    device    where to compute: "cpu", "cuda", "cuda:1", …
    threads   how many threads; None for as many as a step is worth
    quiet     nothing on stderr

    Ctrl-C finishes the step, saves, and then raises KeyboardInterrupt; `resume="auto"` goes on from there.
    """
    changes = dict(settings or {})
    if data is not None:
        changes["data.dir"] = str(data.folder if isinstance(data, Corpus) else data)
    chosen, name = _config(config, [f"{key}={_yaml(value)}" for key, value in changes.items()])
    folder = default_folder(Path(name)) if run is None else Path(run)
    place = use_device(device)
    how = Options(device=place, resume=resume, threads=threads, force=force, quiet=quiet)
    summary = train_run(chosen, folder, how)
    if summary.signal is not None:
        stopped = KeyboardInterrupt if summary.signal == signal.SIGINT else SystemExit
        raise stopped(128 + summary.signal)
    return Run(**vars(load_run(folder, device=place)))


def train_vectors(
    data: Corpus | str | Path, *, settings: Mapping[str, Any] | None = None, run: str | Path | None = None, **how: Any
) -> Run:
    """Train word vectors on a corpus by the co-occurrence recipe that suits its size, in seconds to minutes.

    `settings`, `run` and what else is given are as in `train`.
    """
    corpus = data if isinstance(data, Corpus) else Corpus.open(Path(data))
    words = len(corpus.vocabulary) - len(SPECIALS)
    if words < 2:
        raise DataError("a single word of the text is frequent enough; give more text")
    config = vector_config(corpus.train.words, words)
    return train(config, data=corpus, settings=settings, run=run or default_folder(Path("vectors")), **how)


def _config(config: Config | Mapping[str, Any] | str | Path, overrides: Sequence[str]) -> tuple[Config, str]:
    """Return the checked configuration and a name for its run."""
    if isinstance(config, str | Path):
        return load_config(config, overrides), Path(config).stem
    text = dump_config(config) if isinstance(config, Config) else _yaml(config)
    return parse_config(text, "config", overrides), "run"


def _yaml(value: Any) -> str:
    """Return a Python value as YAML (of which JSON is a part), so that settings from Python pass a file's checks."""
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"settings: {error}; use plain numbers, strings, lists and dicts") from None
