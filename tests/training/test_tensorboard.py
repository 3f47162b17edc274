"""A real TensorBoard server on a run folder that was interrupted and resumed."""

import json
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import numpy as np
import pytest
from tensorboard import program

from lstlm.training.log.tensorboard import Board
from tests.helpers import PATIENCE_S, wait_until
from tests.training.harness import Cli, figures

Get = Callable[..., Any]
TAGS = ("loss/train", "eval/loss", "lst/weight_norm", "progress/words")


def serve(logdir: Path) -> Get:
    """Start TensorBoard on 127.0.0.1 and return a function that asks it."""
    server = program.TensorBoard()
    options = ["--logdir", str(logdir), "--port", "0", "--host", "127.0.0.1", "--load_fast=false"]
    server.configure(argv=[None, *options, "--reload_interval", "1"])
    base = server.launch().rstrip("/")

    def get(path: str, body: dict[str, Any] | None = None, **query: str) -> bytes:
        data = None if body is None else json.dumps(body).encode()
        url = f"{base}/data/{path}" + (f"?{urllib.parse.urlencode(query)}" if query else "")
        request = urllib.request.Request(url, data=data, headers={"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            return bytes(answer.read())

    return get


def wait_until_read(get: Get, run: Path) -> None:
    """Wait until the server has read all that the run has logged: it reads on while it answers."""
    last = {tag: max(figures(run, tag)) for tag in TAGS}

    def read() -> bool:
        known = json.loads(get("plugin/scalars/tags")).get(".", {})
        return (
            known.keys() >= last.keys()
            and all(series(get, tag)[-1:] == [(step, ANY)] for tag, step in last.items())
            and [group["sessions"][0]["status"] for group in session_groups(get)] == ["STATUS_SUCCESS"]
        )

    wait_until(read, "TensorBoard has not read the run")


def series(get: Get, tag: str) -> list[tuple[int, float]]:
    """Return (step, value) of a tag, in the order that the server has them."""
    return [(step, value) for _, step, value in json.loads(get("plugin/scalars/scalars", run=".", tag=tag))]


def session_groups(get: Get) -> list[dict[str, Any]]:
    """Return what the page of hyper-parameters shows."""
    statuses = ["STATUS_UNKNOWN", "STATUS_SUCCESS", "STATUS_FAILURE", "STATUS_RUNNING"]
    body = {"startIndex": 0, "sliceSize": 10, "allowedStatuses": statuses, "colParams": []}
    groups: list[dict[str, Any]] = json.loads(get("plugin/hparams/session_groups", body))["sessionGroups"]
    return groups


def test_a_later_file_is_read_later(tmp_path: Path) -> None:
    """The server goes by names, and within one second the tenth file of a process comes before its ninth."""
    seconds = []
    for _ in range(2):
        before = set(tmp_path.iterdir())
        Board(tmp_path, purge_step=0).close()
        (new,) = set(tmp_path.iterdir()) - before
        seconds.append(int(new.name.split(".")[3]))
    assert seconds[0] < seconds[1]


def test_a_clock_that_was_put_back_keeps_nobody_waiting(tmp_path: Path) -> None:
    (tmp_path / "events.out.tfevents.9999999999.host.1.0").touch()
    Board(tmp_path, purge_step=0).close()
    assert len(list(tmp_path.iterdir())) == 2


def test_a_real_server_serves_the_run(lstlm: Cli, tmp_path: Path) -> None:
    run = tmp_path / "run"
    lstlm.ok(run, output__kind="factored", train__max_steps=40)
    checkpoint = run / "checkpoints" / "step-00000020"
    lstlm.ok(run, "--resume", str(checkpoint), "--force", output__kind="factored", train__max_steps=60)
    get = serve(run)
    wait_until_read(get, run)
    assert json.loads(get("runs")) == ["."]  # hparams made no second run
    tags = set(json.loads(get("plugin/scalars/tags"))["."])
    for prefix in ("loss/", "eval/", "time/", "throughput/words_per_s", "lst/", "optim/"):
        assert any(tag.startswith(prefix) for tag in tags), prefix
    for tag in TAGS:
        served = series(get, tag)
        steps = [step for step, _ in served]
        assert steps == sorted(set(steps)), f"{tag}: what came after step 20 must be hidden, then written once"
        assert dict(served) == pytest.approx(figures(run, tag), rel=1e-6)
    check_words(get, run)
    check_settings(get)
    check_projector(get, run)


def check_words(get: Get, run: Path) -> None:
    """Runs compare by words seen, before the resumption and after it; what never changes has no card."""
    tags = set(json.loads(get("plugin/scalars/tags"))["."])
    assert tags.isdisjoint({"eval/simlex_pairs", "eval/words"})
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for name, words, tag in (
        ("loss/train", "progress/words", "by_words/loss_train"),
        ("eval/loss", "eval/words", "by_words/loss"),
    ):
        expected = [(line[words], pytest.approx(line[name], rel=1e-6)) for line in lines if name in line]
        assert len(expected) == len(figures(run, name)) >= 3 and series(get, tag) == expected


def check_settings(get: Get) -> None:
    layout = json.loads(get("plugin/custom_scalars/layout"))
    assert [category["title"] for category in layout["category"]] == [
        "Learning",
        "Against words seen",
        "Time",
        "Output layer",
    ]
    text = json.loads(get("plugin/text/text", run=".", tag="config/text_summary"))
    assert "batch_size" in text[-1]["text"]
    groups = session_groups(get)
    assert len(groups) == 1
    assert groups[0]["hparams"]["train.batch_size"] == 16 and groups[0]["hparams"]["model.hidden"] == "[12]"
    assert groups[0]["sessions"][0]["status"] == "STATUS_SUCCESS"


def check_projector(get: Get, run: Path) -> None:
    info = json.loads(get("plugin/projector/info", run="."))["embeddings"]
    assert len(info) == 1
    rows, width = info[0]["tensorShape"]
    name = info[0]["tensorName"]
    vectors = np.frombuffer(get("plugin/projector/tensor", run=".", name=name), dtype=np.float32)
    assert vectors.shape == (rows * width,) and width == 8
    words = get("plugin/projector/metadata", run=".", name=name).decode().splitlines()
    vocabulary = (run / "vocab.tsv").read_text().splitlines()
    assert len(words) == rows + 1 and rows == min(len(vocabulary), 10_000)
