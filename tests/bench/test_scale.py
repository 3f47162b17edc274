"""The rehearsal of the full size, at a tiny one: what it records, and that it removes what it made."""

import json
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from lstlm.bench import scale
from lstlm.bench.watched import Watched, memory_of, watch
from lstlm.cli import cli
from lstlm.errors import LstlmError
from tests.warm import run_lstlm

SMALL = ["--words", "20000", "--types", "300", "--minutes", "600", "--threads", "1"]
SETTINGS = {"max_steps": 60, "log_every": 5, "eval_every": 50, "eval_examples": 100, "checkpoint_every": 20}
SETS = [part for key, value in SETTINGS.items() for part in ("--set", f"train.{key}={value}")]


def bench(*arguments: object) -> Any:
    return CliRunner().invoke(cli, ["bench", "scale", "--config", "tiny", *SMALL, *SETS, *map(str, arguments)])


def test_it_records_what_was_asked_and_leaves_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    result = bench("--dir", folder, "--json", "-")
    assert result.exit_code == 0, result.stderr
    prepared, trained = json.loads(result.stdout)["records"]
    assert (prepared["what"], prepared["words"], prepared["D"]) == ("prepare", 21_000, 300)
    assert trained["label"] == "tiny" and trained["steps"] == 60 and trained["epoch_words"] == 20_000 + 800
    assert trained["epoch_hours"] == pytest.approx(trained["epoch_words"] / trained["words_per_s"] / 3600, rel=1e-4)
    for name in (
        "words_per_s_first",
        "words_per_s_last",
        "eval_s",
        "halt_s",
        "background_s",
        "resume_s",
        "resume_cpu_s",
    ):
        assert trained[name] > 0, name
    assert trained["checkpoints"] >= 3 and trained["checkpoint_bytes"] > 300 * 8
    assert not folder.exists()


def test_a_kept_corpus_is_used_again_and_nothing_else_is_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def at_once(arguments: Sequence[str], until: Callable[[], bool] = lambda: False) -> Watched:
        done = run_lstlm(arguments, tmp_path)
        assert done.code == 0, done.err
        return Watched(done.out, 1.0, 1.0 if until() else None, None)

    monkeypatch.setattr(scale, "watch", at_once)
    folder = tmp_path / "kept"
    first = bench("--dir", folder, "--keep")
    assert first.exit_code == 0, first.stderr
    assert [path.name for path in folder.iterdir()] == ["corpus"]
    assert "| prepare s |" in first.stdout and "hours an epoch" in first.stdout
    again = bench("--dir", folder, "--json", tmp_path / "records.json")
    assert "corpus from an earlier run" in again.stderr and (folder / "corpus").is_dir()
    assert CliRunner().invoke(cli, ["bench", "plot", str(tmp_path / "records.json")]).stdout == again.stdout
    (folder / "notes.txt").write_text("mine")
    refused = bench("--dir", folder)
    assert refused.exit_code == 2 and "name a new folder, or one that --keep left" in refused.stderr
    assert sorted(path.name for path in folder.iterdir()) == ["corpus", "notes.txt"]


def test_a_full_disk_is_said_before_any_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(scale.shutil, "disk_usage", lambda path: usage)
    result = bench("--dir", tmp_path / "new")
    assert result.exit_code == 1 and "are needed for 20,000 words; name another folder" in result.stderr
    assert not (tmp_path / "new").exists()


def test_a_command_that_fails_is_told_by_its_last_line(tmp_path: Path) -> None:
    with pytest.raises(LstlmError, match=r"lstlm train ended with 2: lstlm: error: .*absent"):
        watch(["train", "--config", str(tmp_path / "absent.yaml")])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--set", "train.nonsense=1"], "train.nonsense"),
        (["--config", "absent"], "absent: no such file"),
        (["--dir", "/proc/none"], "/proc/none: cannot be made"),
    ],
)
def test_what_cannot_be_done_is_refused_before_any_work(tmp_path: Path, arguments: list[str], said: str) -> None:
    result = bench("--dir", tmp_path / "new", *arguments)
    assert result.exit_code == 2 and said in result.stderr and "making" not in result.stderr
    assert not (tmp_path / "new").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
def test_memory_is_that_of_a_process_and_its_children() -> None:
    import os
    import subprocess

    code = "import subprocess, sys; x = bytes(range(256)) * 200_000; print(flush=True); sys.stdin.read()"
    nested = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {code!r}])"
    with subprocess.Popen([sys.executable, "-c", nested], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdout.readline()
        memory = memory_of(process.pid)
        process.stdin.close()
    assert memory is not None and memory.own > 51_200_000 and memory.mapped > 0
    assert memory_of(process.pid) is None and (mine := memory_of(os.getpid())) is not None and mine.own > 0


def entry(step: int, seconds: float, **more: float) -> dict[str, float]:
    clocks = {"progress/elapsed_s": 2 * seconds, "progress/train_s": seconds, "progress/cpu_s": 5 + seconds / 2}
    return {"step": step, "progress/words": 10 * step, "progress/epoch": step / 1000, **clocks, **more}


def test_rates_are_of_steps_at_the_ends_and_of_everything_on_the_whole() -> None:
    """A run that is twice as fast in its first third, and spends half of its time aside."""
    steps = [(20 * t if t <= 100 else 2000 + 10 * (t - 100), float(t)) for t in range(0, 301, 10)]
    entries: list[dict[str, Any]] = [{"step": 0, "time/checkpoint_s": 9.0}]
    entries += [entry(step, seconds) for step, seconds in steps]
    entries += [{"step": 50, "time/checkpoint_s": 1.0}, {"step": 90, "time/checkpoint_s": 3.0, "time/eval_s": 7.0}]
    found = scale.figures(entries)
    assert found["words_per_s_first"] == pytest.approx(200) and found["words_per_s_last"] == pytest.approx(100)
    assert found["words_per_cpu_s_first"] == pytest.approx(400) and found["words_per_cpu_s_last"] == pytest.approx(200)
    assert found["epoch_cpu_hours"] == pytest.approx(10_000 / (40_000 / 150) / 3600)
    assert found["words_per_s"] == pytest.approx(40_000 / 600) and found["epoch_words"] == 10_000
    assert (found["halt_first_s"], found["halt_s"], found["halt_longest_s"]) == (9.0, 2.0, 3.0)
    assert found["eval_s"] == 7.0 and found["background_s"] is None
    with pytest.raises(LstlmError, match="too few steps to measure"):
        scale.figures(entries[:1])


def test_a_machine_that_logs_once_a_minute_has_rates_too() -> None:
    entries = [{"step": 0, "time/checkpoint_s": 1.0}, *(entry(10 * t, float(t)) for t in (60, 180, 300))]
    found = scale.figures(entries)
    assert found["words_per_s_first"] == found["words_per_s_last"] == pytest.approx(100)
