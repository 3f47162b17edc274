"""What tests share: a small prepared corpus, always the same, made at once; and waiting for what must happen."""

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from lstlm.data import Corpus
from lstlm.data.inputs import FileSource
from lstlm.data.prepare import PrepareOptions, prepare

PATIENCE_S = 3600.0
"""Seconds after which a test calls something a hang: what takes a minute may take half an hour on a slow machine."""


def wait_until(happened: Callable[[], bool], what: str, alive: Callable[[], bool] = lambda: True) -> None:
    """Look again and again until it has happened, while what should bring it about is `alive`."""
    deadline = time.monotonic() + PATIENCE_S
    while not happened():
        assert alive() or happened(), what
        assert time.monotonic() < deadline, f"a hang: {what}"
        time.sleep(0.02)


def tiny_text(sentences: int = 400, words: int = 200, seed: int = 0) -> str:
    """Return sentences from a noisy bigram chain over Zipfian words, so that contexts tell something about targets."""
    rng = np.random.default_rng(seed)
    names = [f"w{number}" for number in range(words)]
    zipf = 1.0 / np.arange(1, words + 1)
    zipf /= zipf.sum()
    follows = rng.integers(0, words, size=(words, 2))
    lines = []
    for _ in range(sentences):
        line = [int(rng.choice(words, p=zipf))]
        for _ in range(int(rng.integers(2, 14))):
            likely = rng.random() < 0.8
            line.append(int(follows[line[-1], rng.integers(2)] if likely else rng.choice(words, p=zipf)))
        lines.append(" ".join(names[number] for number in line))
    return "\n".join(lines) + "\n"


def write_tiny_corpus(
    folder: Path, *, sentences: int = 400, words: int = 200, min_count: int = 1, seed: int = 0
) -> Corpus:
    """Prepare the text of `tiny_text` in `folder` (which must not exist or be empty) and open it."""
    folder = Path(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    text = folder.parent / f"{folder.name}.txt"
    text.write_text(tiny_text(sentences, words, seed), encoding="utf-8")
    try:
        source = FileSource(name="tiny", files=[(str(text), "train")])
        prepare(source, folder, PrepareOptions(min_count=min_count, valid_fraction=0.1))
    finally:
        text.unlink()
    return Corpus.open(folder)
