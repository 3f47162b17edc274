"""Analogies by 3CosAdd and 3CosMul against their definitions, word by word."""

from pathlib import Path

import numpy as np
import pytest

from lstlm.errors import DataError
from lstlm.evaluation.analogy import AnalogySolver, Section, evaluate_analogies, read_questions, summary
from lstlm.vectors import Vectors


def definition(units: np.ndarray, a: int, b: int, c: int, method: str) -> int:
    best, winner = -np.inf, -1
    for x in range(len(units)):
        if x in (a, b, c):
            continue
        cosines = [float(units[x] @ units[y]) for y in (a, b, c)]
        if method == "add":
            score = cosines[1] - cosines[0] + cosines[2]
        else:
            near = [(cosine + 1) / 2 for cosine in cosines]
            score = near[1] * near[2] / (near[0] + 0.001)
        if score > best:
            best, winner = score, x
    return winner


@pytest.mark.parametrize("method", ["add", "mul"])
@pytest.mark.parametrize("block_bytes", [1, 64 << 20])
def test_answers_follow_the_definition(method: str, block_bytes: int) -> None:
    matrix = np.random.default_rng(0).standard_normal((40, 6)).astype(np.float32)
    solver = AnalogySolver(Vectors([f"w{n}" for n in range(40)], matrix))
    units = matrix / np.linalg.norm(matrix, axis=1, keepdims=True)
    questions = np.random.default_rng(1).permuted(np.tile(np.arange(40), (30, 1)), axis=1)[:, :3]
    expected = [definition(units.astype(np.float64), *map(int, question), method) for question in questions]
    assert solver.answers(questions, method, block_bytes).tolist() == expected


def test_sections_unknown_words_and_totals() -> None:
    words = ["man", "woman", "king", "Queen", "walk", "walked", "go", "went"]
    base = np.array(
        [[1, 0, 0], [1, 1, 0], [0, 0, 1], [0, 1, 1], [3, 0, 0], [0, 0, 3], [0, 3, 0], [1, 1, 1]], dtype=float
    )
    sections = [
        Section("family", (("man", "woman", "king", "queen"), ("man", "woman", "prince", "princess"))),
        Section("gram7-past-tense", (("walk", "walked", "go", "gone"),)),
    ]
    scores = evaluate_analogies(AnalogySolver(Vectors(words, base)), sections)
    assert [(s.correct, s.used, s.total) for s in scores] == [(1, 1, 2), (0, 0, 1)]
    totals = summary(scores)
    assert (totals["semantic"].accuracy, totals["syntactic"].accuracy, totals["total"].total) == (1.0, None, 3)
    exact = evaluate_analogies(AnalogySolver(Vectors(words, base), case="exact"), sections)
    assert exact[0].used == 0
    restricted = evaluate_analogies(AnalogySolver(Vectors(words, base), restrict=3), sections)
    assert restricted[0].used == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [(": x\na b c\n", "line 2 has 3 words"), ("a b c d\n", "line 1: a question before"), (": x\n", "no questions")],
)
def test_malformed_questions(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "q.txt"
    path.write_text(text)
    with pytest.raises(DataError, match=message):
        read_questions(path)
