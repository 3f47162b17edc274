"""The examples run, and what the notebook shows was printed by its own cells."""

import json
import runpy
from pathlib import Path
from typing import Any

import pytest
import torch

from lstlm.data.demo import PIECES, DemoSource

NOTEBOOK = Path(__file__).parents[1] / "examples" / "text-to-vectors.ipynb"


def code_cells() -> list[dict[str, Any]]:
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


def test_the_notebook_was_run_in_order_and_holds_its_pictures() -> None:
    cells = code_cells()
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    kinds = [output["output_type"] for cell in cells for output in cell["outputs"]]
    assert "error" not in kinds
    pictures = [output for cell in cells for output in cell["outputs"] if "image/png" in output.get("data", {})]
    assert len(pictures) == 2


def test_recommendation_learns_with_either_head(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    example = runpy.run_path(str(NOTEBOOK.parent / "multilabel.py"))
    monkeypatch.setattr("sys.argv", ["multilabel.py", "--items", "2000", "--seconds", "0.4", "--test-users", "50"])
    threads = torch.get_num_threads()
    try:
        example["main"]()
    finally:
        torch.set_num_threads(threads)
    printed = capsys.readouterr().out
    assert [line.split()[0] for line in printed.splitlines()] == ["2000", "SphericalOutput", "rate", "BCE,", "rate"]


@pytest.mark.slow
def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("matplotlib", "gensim"):
        pytest.importorskip(package)
    import matplotlib

    less = DemoSource(pieces=PIECES[:1])  # half a million words, not three
    monkeypatch.setattr("lstlm.data.sources.DemoSource", lambda: less)
    matplotlib.use("Agg")
    monkeypatch.chdir(tmp_path)
    threads = torch.get_num_threads()
    names: dict[str, Any] = {}
    try:
        for number, cell in enumerate(code_cells(), 1):
            exec(compile("".join(cell["source"]), f"cell {number}", "exec"), names)
    finally:
        torch.set_num_threads(threads)
    assert names["run"].most_similar("water", k=1)[0][1] > 0.3
    assert names["units"].shape[0] == len(names["words"]) >= 25
    assert len(names["spherical"]) == len(names["full"]) == len(names["sizes"])
