"""metrics.jsonl, status.json, the console and the clock."""

import io
import json
import sys
from pathlib import Path

import pytest

from lstlm.files import write_atomic
from lstlm.training.log.console import Console, clock_text
from lstlm.training.log.metrics import MetricsFile, cut_after
from lstlm.training.loop import clock
from lstlm.training.loop.clock import PhaseClock
from lstlm.training.loop.schedule import Budget


def test_metrics_are_strict_json(tmp_path: Path) -> None:
    metrics = MetricsFile(tmp_path / "m.jsonl")
    metrics.write(3, {"loss/train": float("nan"), "eval/loss": 0.1, "nested": [float("inf")]})
    metrics.close()
    line = (tmp_path / "m.jsonl").read_text()
    assert json.loads(line) == {"step": 3, "loss/train": None, "eval/loss": 0.1, "nested": [None]}
    assert "NaN" not in line


def test_resume_cuts_what_will_be_written_again(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text('{"step": 1}\n{"step": 5}\nnot json\n{"step": 9}\n{"step": 2, "cut off')
    cut_after(path, 5)
    assert path.read_text() == '{"step": 1}\n{"step": 5}\n'
    cut_after(tmp_path / "absent.jsonl", 5)


def test_write_atomic_leaves_the_old_file_when_it_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "status.json"
    write_atomic(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_atomic(path, "\ud800")

    def no_room(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", no_room)
    with pytest.raises(OSError, match="No space"):
        write_atomic(path, "new")
    assert path.read_text() == "old" and [p.name for p in tmp_path.iterdir()] == ["status.json"]


def test_clock_divides_time_among_phases(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([0.0, 1.0, 3.0, 10.0, 11.0, 15.0])
    monkeypatch.setattr(clock, "perf_counter", lambda: next(times))
    watch = PhaseClock()
    for repairs in (0.5, 0.0):
        watch.start()
        watch.lap("data")
        watch.lap("update")
        watch.move(repairs, "update", "stabilise")
    assert watch.milliseconds() == {"data": 1000.0, "stabilise": 250.0, "update": 2750.0}
    assert watch.milliseconds() == {"data": 0.0, "stabilise": 0.0, "update": 0.0}


def test_an_asynchronous_device_waits_on_measured_steps_only() -> None:
    waits: list[int] = []
    watch = PhaseClock(synchronise=lambda: waits.append(1))
    for measured in (False, False, True):
        watch.start(measured=measured)
        watch.lap("data")
    assert len(waits) == 2 and watch.steps == 1


VALUES = {"throughput/words_per_s": 1000.0, "loss/train": 2.5, "progress/epoch": 0.5, "optim/lr_scale": 1.0}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_one_line_an_interval_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    console = Console(Budget(200, None), 10)
    console.advance()
    console.train_line(100, VALUES, 5.0)
    assert stream.getvalue() == "step 100/200 | epoch 0.50 | loss 2.5000 | 1,000 words/s | left 0:00:01\n"


def test_a_bar_on_a_terminal_continues_where_the_run_was(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    console = Console(Budget(200, None), 10, step=100)
    console.train_line(100, VALUES, 5.0)
    console.advance()
    console.close()
    assert "50%" in stream.getvalue() and "1.01k/2.00k" in stream.getvalue() and "loss=2.5000" in stream.getvalue()


def test_quiet_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    console = Console(Budget(200, None), 10, quiet=True)
    console.train_line(100, VALUES, 5.0)
    console.close()
    assert stream.getvalue() == ""


def test_clock_text() -> None:
    assert [clock_text(s) for s in (None, 0, 59.9, 3723)] == ["?", "0:00:00", "0:00:59", "1:02:03"]
