"""The diffs of CONTRIBUTING.md are real: applied to a copy of the package, they do what the page says."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DIFFS = re.findall(r"```diff\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), re.DOTALL)
CHECKS = """
from lstlm.bench.check import TOLERANCE, verify
from lstlm.bench.methods import Method
from lstlm.bench.verification import compare
from lstlm.config import output_rate, parse_config

assert compare("halves", 20, "float64", 1).worst() < 1e-9
assert output_rate(parse_config("output: {loss: halves}"), 1000) == 0.3
for method in (Method("factored", "halves", "lazy"), Method("mine", "softmax"), Method("factored", "z", "always")):
    assert verify(method, d=300, m=128) <= TOLERANCE
assert parse_config("train: {mine: 3}").train.mine == 3
"""


def apply(diff: str, root: Path) -> set[str]:
    """Apply a diff without line numbers: + lines go after the lines before them, or to the end; return the files."""
    touched = set()
    for section in re.split(r"^--- .*\n(?=\+\+\+)|^--- ", diff, flags=re.MULTILINE)[1:]:
        name, *lines = section.rstrip().splitlines()
        path = root / re.sub(r"^(\+\+\+ )?[ab]/", "", name)
        context = "".join(f"{line[1:]}\n" for line in lines if line.startswith(" "))
        added = "".join(f"{line[1:]}\n" for line in lines if line.startswith("+"))
        before = path.read_text(encoding="utf-8") if path.exists() else ""
        assert before.count(context) == 1 or not context, f"{path}: {context!r} is not there once"
        after = before.replace(context, context + added) if context else before + "\n\n" * bool(before) + added
        path.write_text(after, encoding="utf-8")
        touched.add(str(path.relative_to(root)))
    return touched


def test_the_diffs_of_the_page_do_what_it_says(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "lstlm", tmp_path / "lstlm", ignore=shutil.ignore_patterns("__pycache__", "recipes"))
    assert [len(apply(diff, tmp_path)) for diff in DIFFS] == [2, 2, 2, 1]
    result = subprocess.run(
        [sys.executable, "-c", CHECKS],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr


def test_a_diff_that_does_not_fit_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "file.py").write_text("one\n")
    with pytest.raises(AssertionError, match="not there once"):
        apply("--- a/file.py\n two\n+three\n", tmp_path)
