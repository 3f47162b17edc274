"""How many threads a run takes."""

from pathlib import Path

import pytest
import torch

from lstlm.config import load_config
from lstlm.training.run.threads import multiply_adds, set_threads
from tests.helpers import write_tiny_corpus

WORDS = 16_213  # of the demo corpus


@pytest.mark.parametrize(
    ("recipe", "vocab", "millions"),
    [
        ("demo", WORDS, 51.2),  # 5 × 1024 × 100²
        ("paper-z", WORDS, 230.4),  # four words of 300, two hidden layers: 3 × 128 × 300 × (1200 + 300); 5 × 128 × 300²
        ("paper-softmax", WORDS, 2040.5),  # 3 × 128 × 300 × 16,213, and the hidden layers
        ("embed-cooccurrence-small", WORDS, 648.5),  # 200² a word
    ],
)
def test_the_work_of_a_step(recipe: str, vocab: int, millions: float) -> None:
    assert multiply_adds(load_config(recipe), vocab) == pytest.approx(millions * 1e6, rel=1e-3)


def test_the_demo_takes_one_thread_and_what_is_asked_for_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[int] = []
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    monkeypatch.setattr(torch, "set_num_threads", used.append)
    set_threads(load_config("demo"), WORDS, None)
    set_threads(load_config("paper-softmax"), WORDS, None)
    set_threads(load_config("demo"), WORDS, 3)
    assert used == [1, 8, 3]


def test_training_leaves_the_threads_of_the_program_alone(tmp_path: Path) -> None:
    from lstlm import api

    corpus, before = write_tiny_corpus(tmp_path / "corpus"), torch.get_num_threads()
    settings = {"train.max_steps": 2, "model.embedding": 4, "train.simlex": False}
    try:
        torch.set_num_threads(2)
        api.train("tiny", data=corpus, run=tmp_path / "run", settings=settings, quiet=True)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
