"""Documents: JSON that reads back, tables that say what the records say, speed-ups that compare like with like."""

import json
from importlib import import_module
from pathlib import Path

import pytest

from lstlm.bench import learning, model, output, records
from lstlm.errors import ConfigError, DataError, LstlmError

RECORD = {"method": "naive", "loss": "z", "D": 1000, "d": 300, "m": 128, "threads": 1, "dtype": "float32"}
TIMES = {"step_ms_p10": 1.0, "step_ms_p90": 3.0, "steps": 9, "stabilise": "none", "stabilise_ms": 0.0}


def timed(method: str, ms: float, **more: object) -> records.Record:
    return {**RECORD, **TIMES, "gemm_floor_ms": 0.5, "method": method, "step_ms": ms, "step_ms_mean": ms, **more}


def test_a_document_reads_back_and_names_its_environment(tmp_path: Path) -> None:
    document = records.make_document("output", [timed("naive", 12.3456789)], skipped=[])
    path = tmp_path / "new" / "records.json"
    records.write(document, path)
    again = records.read([path])
    assert again["records"][0]["step_ms"] == 12.3457
    assert {"date", "command", "blas", "threads", "processor", "packages"} <= set(again["environment"])
    assert sum(line.startswith('    {"method"') for line in path.read_text().splitlines()) == 1


@pytest.mark.parametrize("ms", [0.39049997, 12.350004])
def test_a_table_printed_at_once_is_the_one_of_the_file(ms: float, tmp_path: Path) -> None:
    """Either is rounded otherwise when six of its digits are rounded to three than when all are."""
    document = records.make_document("output", [timed("naive", ms)], skipped=[])
    records.write(document, tmp_path / "records.json")
    assert records.markdown(document) == records.markdown(records.read([tmp_path / "records.json"]))


def test_files_are_merged(tmp_path: Path) -> None:
    for number in (1, 2):
        document = {"benchmark": "output", "records": [timed("naive", float(number))], "environment": {}}
        (tmp_path / f"{number}.json").write_text(json.dumps(document))
    merged = records.read([tmp_path / "1.json", tmp_path / "2.json"])
    assert [record["step_ms"] for record in merged["records"]] == [1.0, 2.0]
    (tmp_path / "3.json").write_text(json.dumps({"benchmark": "data", "records": []}))
    with pytest.raises(DataError, match=r"different benchmarks \(data, output\)"):
        records.read([tmp_path / "1.json", tmp_path / "3.json"])


@pytest.mark.parametrize("text", ["{", "[]", '{"records": 3}', '{"records": [], "benchmark": "x"}'])
def test_what_is_no_document_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(DataError, match="bad.json"):
        records.read([path])


def test_a_place_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="--json .*: cannot be written"):
        records.write({"benchmark": "output", "records": []}, tmp_path / "file" / "x.json")


def test_a_full_disk_is_a_failure_as_everywhere() -> None:
    with pytest.raises(LstlmError, match="--json /dev/full: cannot be written: No space left on device") as error:
        records.write({"benchmark": "output", "records": []}, Path("/dev/full"))
    assert error.value.exit_code == 1


def test_a_number_that_json_lacks_is_an_error() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        records.dump({"records": [{"step_ms": float("nan")}]})


def test_tables_are_markdown_with_numbers_to_the_right() -> None:
    text = records.table(
        [{"a": "x", "b": 1234}, {"a": "yy", "b": None}], [("A", lambda r: r["a"]), ("B", lambda r: r["b"])]
    )
    assert text.splitlines() == ["| A  |     B |", "| -- | ----: |", "| x  | 1,234 |", "| yy |     – |"]
    assert [records.cell(x) for x in (0.01234, 12.34, 1234.5, 7)] == ["0.0123", "12.3", "1,234", "7"]


def test_speedups_compare_the_same_loss_size_and_threads() -> None:
    found = output.with_speedups(
        [
            timed("naive", 80.0, step_ms_mean=100.0),
            timed("naive", 300.0, loss="taylor"),
            timed("naive", 900.0, threads=2),
            timed("naive-blocked", 50.0),
            timed("factored", 2.0, loss="taylor"),
            timed("factored", 2.0, step_ms_mean=4.0),
            timed("sampled", 10.0, loss="softmax"),
            timed("log_prob", 1.0, loss="taylor"),
        ]
    )
    assert [record.get("times_naive") for record in found[4:]] == [150.0, 25.0, 10.0, None]
    assert found[5]["times_blocked"] == 12.5 and found[0]["times_naive"] == 1  # mean by mean
    assert "| factored" in output.markdown(found)


def test_the_papers_column_stands_beside_ours() -> None:
    rows = [
        {"method": name, "loss": "z", "D": model.PAPER_D, "output_ms": o, "step_ms": 0.9 * w, "step_ms_mean": w}
        for name, o, w in (("naive", 2000.0, 2200.0), ("factored", 2.0, 4.0), ("sampled", 8.0, 10.0))
    ]
    naive, factored, sampled = model.with_paper(rows)
    assert (naive["speedup_output"], factored["speedup_output"], factored["speedup_model"]) == (1.0, 1000.0, 550.0)
    assert (factored["paper_cpu_output"], factored["paper_cpu_model"]) == (763.3, 501.0)
    assert (factored["paper_gpu_output"], factored["paper_gpu_model"]) == (3257.3, 1852.3)
    assert "paper_cpu_output" not in sampled
    smaller = model.with_paper([{**row, "D": 10_000} for row in rows])
    assert not any("paper_cpu_output" in row for row in smaller)  # it says nothing of other sizes


def test_whole_models_compare_with_naive_of_the_same_size_and_say_the_size() -> None:
    phases = {"phases_ms": dict.fromkeys(model.PHASES, 0.1), "hidden_ms": 0.1, "hidden_floor_ms": 0.1, "words_per_s": 9}
    rows = [
        timed(method, ms, D=D, output_ms=ms, **phases)
        for D, naive_ms in ((1000, 10.0), (10_000, 100.0))
        for method, ms in (("naive", naive_ms), ("factored", 2.0))
    ]
    found = model.with_paper(rows)
    assert [row["speedup_model"] for row in found] == [1.0, 5.0, 1.0, 50.0]
    lines = model.markdown(found).splitlines()
    assert [lines[i].split("|")[3].strip() for i in (0, 2, 4, 7, 9, 11)] == ["D", "1,000", "10,000"] * 2


def test_learning_is_summarised_over_seeds() -> None:
    points = [
        {"label": "a", "seed": seed, "D": 10, "train_s": 9.0, "simlex": 0.1 * seed, "final": True} for seed in (1, 3)
    ]
    points.append({"label": "a", "seed": 1, "D": 10, "train_s": 2.0, "simlex": 9.0, "final": False})
    (row,) = learning.summarise(points)
    assert row["seeds"] == 2 and row["simlex"] == pytest.approx(0.2) and row["simlex_sd"] == pytest.approx(0.1 * 2**0.5)
    assert "0.200 ± 0.141" in learning.markdown(points)


def test_training_time_is_read_from_the_metrics_of_a_run() -> None:
    lines = [
        {"step": 10, "progress/train_s": 1.0},
        {"step": 15, "eval/loss": 5.0, "eval/top10": 0.3, "bench/wordsim": 0.2, "time/eval_s": 100.0},
        {"step": 20, "progress/train_s": 3.0},
        {"step": 20, "eval/loss": 4.0, "eval/perplexity": 80.0},
    ]
    first, last = learning.curve(json.dumps(line) for line in lines)
    assert first == {"step": 15, "train_s": 2.0, "loss_value": 5.0, "top10": 0.3, "wordsim": 0.2, "final": False}
    assert last["train_s"] == 3.0 and last["perplexity"] == 80.0 and last["final"] is True


@pytest.mark.parametrize("kind", records.KINDS)
def test_there_is_a_table_for_each_benchmark(kind: str) -> None:
    assert callable(import_module(f"lstlm.bench.{kind}").markdown)
