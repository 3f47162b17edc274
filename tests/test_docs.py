"""The documentation site builds, and nothing in it leads nowhere."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lstlm.cli import COMMANDS
from lstlm.config import recipes

pytest.importorskip("mkdocs", reason="the docs extra is not installed")
ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return folder


def test_every_command_and_recipe_has_its_place(site: Path) -> None:
    commands = (site / "commands" / "index.html").read_text(encoding="utf-8")
    for name in COMMANDS:
        assert f'id="lstlm-{name}"' in commands, f"no section for lstlm {name}"
    table = (site / "recipes" / "index.html").read_text(encoding="utf-8")
    for name in recipes():
        assert f"<code>{name}</code>" in table


def test_the_python_page_explains_the_layer(site: Path) -> None:
    assert "SphericalOutput" in (site / "api" / "index.html").read_text(encoding="utf-8")
