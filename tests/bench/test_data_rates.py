from pathlib import Path

import pytest

from lstlm.bench.data_rates import rate_of_counter, rate_of_examples, rate_of_gensim, rate_of_prepare
from tests.helpers import tiny_text, write_tiny_corpus


def test_all_ways_to_count_agree_on_what_they_counted(tmp_path: Path) -> None:
    pytest.importorskip("gensim")
    files = [tmp_path / "a", tmp_path / "b"]
    for seed, file in enumerate(files):
        file.write_text(tiny_text(seed=seed))
    words = [word for file in files for word in file.read_text().split()]
    records = [rate_of_counter(files), rate_of_gensim(files), rate_of_prepare(files, workers=1, min_count=1)]
    assert [record["words"] for record in records] == [len(words)] * 3
    # prepare counts types of the training sentences alone
    assert records[0]["types"] == records[1]["types"] == len(set(words)) >= records[2]["types"]
    assert all(record["words_per_s"] * record["seconds"] == pytest.approx(record["words"]) for record in records)


@pytest.mark.parametrize("kind", ["previous", "window", "bag"])
def test_the_rate_of_examples_counts_every_example(tmp_path: Path, kind: str) -> None:
    corpus = write_tiny_corpus(tmp_path / "tiny")
    record = rate_of_examples(corpus, kind=kind, batch_size=50, examples=1000)
    assert 950 <= record["examples"] <= 1000  # the last batch of an epoch is shorter
    assert record["examples_per_s"] > 0
