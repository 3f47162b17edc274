"""gensim opens what is exported, finds the same bits in it, and scores it as we do."""

from pathlib import Path

import numpy as np
import pytest

from lstlm.evaluation.analogy import AnalogySolver, evaluate_analogies, read_questions, total
from lstlm.evaluation.datasets import find_dataset, read_pairs
from lstlm.evaluation.similarity import evaluate_pairs
from lstlm.vectors import Vectors, load_vectors
from lstlm.vectors.writers import WRITERS

gensim = pytest.importorskip("gensim")
from gensim.models import KeyedVectors  # noqa: E402
from gensim.test.utils import datapath  # noqa: E402


def named_vectors(words: list[str], dim: int = 20, seed: int = 0) -> Vectors:
    generator = np.random.default_rng(seed)
    scale = 10.0 ** generator.integers(-30, 30, size=(len(words), 1))
    return Vectors(words, (generator.standard_normal((len(words), dim)) * scale).astype(np.float32))


def plain_vectors(words: list[str], dim: int = 20, seed: int = 0) -> Vectors:
    return Vectors(words, np.random.default_rng(seed).standard_normal((len(words), dim)).astype(np.float32))


@pytest.mark.parametrize("form", ["word2vec", "word2vec-bin"])
def test_gensim_reads_our_files_bit_for_bit(tmp_path: Path, form: str) -> None:
    ours = named_vectors(["the", "King", "naïve", "日本", "<unk>", "</s>", "a\u00a0b", "'", '"', "#"])
    path = WRITERS[form](ours, tmp_path / "v")[0]
    theirs = KeyedVectors.load_word2vec_format(str(path), binary=form == "word2vec-bin")
    assert theirs.index_to_key == list(ours.words)
    assert theirs.vectors.tobytes() == np.asarray(ours.matrix).tobytes()


@pytest.mark.parametrize("binary", [False, True])
def test_we_read_gensims_files_bit_for_bit(tmp_path: Path, binary: bool) -> None:
    ours = plain_vectors(["the", "King", "naïve", "日本"])
    theirs = KeyedVectors(ours.dim)
    theirs.add_vectors(list(ours.words), ours.matrix)
    path = tmp_path / "g"
    theirs.save_word2vec_format(str(path), binary=binary)
    back = load_vectors(path)
    assert list(back.words) == theirs.index_to_key
    assert back.matrix.tobytes() == theirs.vectors.tobytes()


def judged_words() -> list[str]:
    pairs = read_pairs(find_dataset("simlex")) + read_pairs(datapath("wordsim353.tsv"))
    words = sorted({word for pair in pairs for word in (pair.first, pair.second)})
    # some are missing, some are there in two cases, some only in another case
    kept = [word for number, word in enumerate(words) if number % 7]
    return [word.capitalize() if number % 5 == 0 else word for number, word in enumerate(kept)] + kept[::25]


def unique(words: list[str]) -> list[str]:
    return list(dict.fromkeys(words))


@pytest.mark.parametrize("case", ["fold", "exact"])
@pytest.mark.parametrize("name", ["simlex999.txt", "wordsim353.tsv"])
def test_word_pairs_score_as_in_gensim(tmp_path: Path, name: str, case: str) -> None:
    ours = plain_vectors(unique(judged_words()))
    path = WRITERS["word2vec"](ours, tmp_path / "v.txt")[0]
    theirs = KeyedVectors.load_word2vec_format(str(path))
    pearson, spearman, oov = theirs.evaluate_word_pairs(datapath(name), case_insensitive=case == "fold")
    pairs = read_pairs(datapath(name))
    result = evaluate_pairs(load_vectors(path), pairs, case=case)
    assert result.pairs_used > 40
    assert result.spearman == pytest.approx(spearman.statistic, abs=1e-6)
    assert result.pearson == pytest.approx(pearson.statistic, abs=1e-6)
    assert 100 * (1 - result.pairs_used / result.pairs_total) == pytest.approx(oov)


def test_a_file_read_for_the_wanted_rows_scores_as_the_whole_file(tmp_path: Path) -> None:
    path = WRITERS["word2vec"](plain_vectors(unique([*judged_words(), "filler", "rest"])), tmp_path / "v.txt")[0]
    pairs = read_pairs(find_dataset("simlex"))
    wanted = {word for pair in pairs for word in (pair.first, pair.second)}
    few = load_vectors(path, wanted, case="fold")
    assert "filler" not in few.words
    assert evaluate_pairs(few, pairs) == evaluate_pairs(load_vectors(path), pairs)


def test_analogies_score_as_in_gensim(tmp_path: Path) -> None:
    """Vectors with a shared offset in each pair, and noise, so that some answers are right and some wrong."""
    generator = np.random.default_rng(0)
    sections = read_questions(datapath("questions-words.txt"))[:2]
    pairs = {pair for section in sections for q in section.questions for pair in (q[:2], q[2:])}
    words, rows, offset = [], [], generator.standard_normal(8)
    for left, right in sorted(pairs):
        base = generator.standard_normal(8)
        for word, row in ((left, base), (right, base + offset)):
            if word not in words:
                words.append(word)
                rows.append(row + 0.5 * generator.standard_normal(8))
    ours = Vectors(words[:-5], np.array(rows[:-5], dtype=np.float32))
    theirs = KeyedVectors(8)
    theirs.add_vectors(list(ours.words), ours.matrix)
    text = tmp_path / "questions.txt"
    lines = [[f": {s.name}", *(" ".join(q) for q in s.questions)] for s in sections]
    text.write_text("\n".join(line for part in lines for line in part) + "\n")
    accuracy, found = theirs.evaluate_word_analogies(str(text))
    scores = evaluate_analogies(AnalogySolver(ours), read_questions(text), "add")
    assert [score.correct for score in scores] == [len(section["correct"]) for section in found[:-1]]
    everything = total("total", scores)
    assert everything.accuracy == pytest.approx(accuracy)
    assert 0 < everything.correct < everything.used < everything.total
