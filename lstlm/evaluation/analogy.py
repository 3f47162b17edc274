"""Word analogies: a is to b as c is to … ?  (questions-words format; 3CosAdd and 3CosMul)"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lstlm.errors import DataError
from lstlm.evaluation.datasets import read_text
from lstlm.vectors import Vectors, unit_rows

METHODS = ("add", "mul")
_EPSILON = 1e-3  # keeps 3CosMul from dividing by zero
_BLOCK_BYTES = 64 << 20


@dataclass(frozen=True)
class Section:
    """A named list of questions (a, b, c, answer)."""

    name: str
    questions: tuple[tuple[str, str, str, str], ...]


@dataclass(frozen=True)
class SectionScore:
    """How many questions had all four words, and how many of those were answered right."""

    name: str
    correct: int
    used: int
    total: int

    @property
    def accuracy(self) -> float | None:
        return self.correct / self.used if self.used else None

    def to_dict(self) -> dict[str, Any]:
        fields = {"accuracy": self.accuracy, "correct": self.correct, "used": self.used, "total": self.total}
        return {"name": self.name, **fields}


def read_questions(path: str | Path) -> list[Section]:
    """Read ': section' lines, each followed by lines of four words."""
    path = Path(path)
    sections: list[tuple[str, list[tuple[str, str, str, str]]]] = []
    for number, line in enumerate(read_text(path).split("\n"), 1):
        fields = line.split()
        if not fields or line.startswith("#"):
            continue
        if fields[0].startswith(":"):
            sections.append((line.lstrip(": \t").strip() or f"section {len(sections) + 1}", []))
        elif len(fields) != 4:
            raise DataError(f"{path}: line {number} has {len(fields)} words, a question has 4: {line[:80]!r}")
        elif not sections:
            raise DataError(f"{path}: line {number}: a question before the first ': section' line")
        else:
            sections[-1][1].append((fields[0], fields[1], fields[2], fields[3]))
    if not any(questions for _, questions in sections):
        raise DataError(f"{path}: holds no questions")
    return [Section(name, tuple(questions)) for name, questions in sections]


class AnalogySolver:
    """Unit vectors of the candidates: the first `restrict` words (0: all), one row for forms that differ by case."""

    def __init__(self, vectors: Vectors, *, case: str = "fold", restrict: int = 300_000) -> None:
        self._case = case
        first: dict[str, int] = {}
        for row, word in enumerate(vectors.words[: restrict or None]):
            first.setdefault(self._key(word), row)
        self._rows = {key: number for number, key in enumerate(first)}
        self._units = unit_rows(np.asarray(vectors.matrix[list(first.values())], dtype=np.float32))

    def _key(self, word: str) -> str:
        return word if self._case == "exact" else word.upper()

    def ids(self, question: Sequence[str]) -> list[int] | None:
        """The rows of the four words, or None if one has none."""
        rows = [self._rows.get(self._key(word)) for word in question]
        return None if None in rows else [row for row in rows if row is not None]

    def answers(self, questions: Any, method: str, block_bytes: int = _BLOCK_BYTES) -> Any:
        """The best row (q,) for each (a, b, c) of questions (q,≥3), none of the three being allowed.  O(q·n·d).

        add: argmax cos(x, b − a + c);  mul: argmax s(x,b)·s(x,c) / (s(x,a) + ε) with s = (cos + 1)/2.
        """
        step = max(1, block_bytes // (4 * len(self._units)))
        parts = [self._block(questions[at : at + step, :3], method) for at in range(0, len(questions), step)]
        return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)

    def _block(self, abc: Any, method: str) -> Any:
        a, b, c = (self._units[abc[:, column]] for column in range(3))
        if method == "add":
            scores = (b - a + c) @ self._units.T
        else:
            near = ((b @ self._units.T) + 1) * ((c @ self._units.T) + 1)
            scores = near / ((a @ self._units.T) + 1 + 2 * _EPSILON)
        np.put_along_axis(scores, abc, -np.inf, axis=1)
        return scores.argmax(axis=1)


def evaluate_analogies(solver: AnalogySolver, sections: Iterable[Section], method: str = "add") -> list[SectionScore]:
    """Score each section; questions with a word that is no candidate are left out and counted."""
    scores = []
    for section in sections:
        known = [rows for rows in map(solver.ids, section.questions) if rows is not None]
        table = np.array(known, dtype=np.int64).reshape(-1, 4)
        correct = int((solver.answers(table, method) == table[:, 3]).sum())
        scores.append(SectionScore(section.name, correct, len(known), len(section.questions)))
    return scores


def total(name: str, scores: Sequence[SectionScore]) -> SectionScore:
    """The sum over sections."""
    return SectionScore(name, sum(s.correct for s in scores), sum(s.used for s in scores), sum(s.total for s in scores))


def summary(scores: Sequence[SectionScore]) -> dict[str, SectionScore]:
    """Semantic, syntactic (sections named gram…) and all."""
    syntactic = [score for score in scores if score.name.startswith("gram")]
    semantic = [score for score in scores if not score.name.startswith("gram")]
    groups = {"semantic": semantic, "syntactic": syntactic, "total": list(scores)}
    return {name: total(name, group) for name, group in groups.items()}
