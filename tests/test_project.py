"""What the project says about itself holds: recipes load, commands in pages exist, scripts parse, versions agree."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import distributions, metadata
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from packaging.specifiers import SpecifierSet

from lstlm import __version__
from lstlm.cli import COMMANDS, cli
from lstlm.config import dump_config, load_config, parse_config
from tests.helpers import PATIENCE_S, wait_until

ROOT = Path(__file__).parents[1]
SCRIPTS = [*(ROOT / "scripts" / name for name in ("test", "demo", "sanitize", "setup.sh")), ROOT / ".ci/run"]
RECIPES = sorted((ROOT / "configs").glob("*.yaml"))
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("data/*.md")])


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_loads(path: Path) -> None:
    config = load_config(path)
    assert parse_config(dump_config(config)) == config


def test_a_built_package_carries_its_recipes(tmp_path: Path) -> None:
    """As a wheel has them, without its compiled part; used in a folder that holds nothing."""
    built, empty = tmp_path / "built", tmp_path / "empty"
    empty.mkdir()
    setup = [sys.executable, "setup.py", "-q"]
    subprocess.run([*setup, "egg_info", "--egg-base", tmp_path, "build_py", "--build-lib", built], cwd=ROOT, check=True)
    listing = "import lstlm; print(lstlm.__file__); from lstlm.config import recipes; print(*recipes())"
    environment = {**os.environ, "PYTHONPATH": str(built)}
    done = subprocess.run(
        [sys.executable, "-c", listing], cwd=empty, env=environment, capture_output=True, text=True, check=True
    )
    where, names = done.stdout.splitlines()
    assert Path(where).is_relative_to(built)
    shown = (tmp_path / "lstlm.egg-info/PKG-INFO").read_text(encoding="utf-8")
    assert "# lstlm" in shown and not re.search(r"\]\((?!\w+:|#)", shown), "an index would show links that lead nowhere"
    assert set(names.split()) == {path.stem for path in RECIPES}


def test_without_a_compiler_it_installs_all_the_same(tmp_path: Path) -> None:
    built = tmp_path / "built"
    setup = [sys.executable, "setup.py", "-q", "build_ext", "--build-lib", built, "--build-temp", tmp_path / "objects"]
    done = subprocess.run(
        setup, cwd=ROOT, env={**os.environ, "CC": "false", "CXX": "false"}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert not [*built.rglob("_native*")]
    assert "_native" in done.stdout + done.stderr, "it says which part is missing"


def every_command(command: click.Command) -> Iterator[click.Command]:
    yield command
    if isinstance(command, click.Group):
        for name in command.list_commands(click.Context(command)):
            child = command.get_command(click.Context(command), name)
            assert child is not None
            yield from every_command(child)


def test_examples_of_help_name_recipes_that_travel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    named = {name for command in every_command(cli) for name in re.findall(r"--config (\S+)", command.epilog or "")}
    assert {"tiny", "demo"} <= named
    for name in named - {"mine.yaml"}:
        load_config(name)


def test_the_recipes_that_scripts_and_pages_count_on_are_there() -> None:
    names = {path.stem for path in RECIPES}
    assert {"tiny", "demo", "lm-shortlist", "embed-cooccurrence-small", "paper-z"} <= names


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150


def commands_of(page: Path) -> list[list[str]]:
    """Return the ``lstlm …`` command lines in a page's code blocks, continuation lines joined."""
    text = page.read_text(encoding="utf-8")
    # every fence is matched, whatever its language: else the end of one block would pass for the start of the next
    fences = re.findall(r"^```(\w*)\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    blocks = [block for language, block in fences if language in ("", "sh", "bash", "console", "shell")]
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    starts = [re.sub(r"^(\$ )?(\.venv/bin/)?", "", line.strip()) for line in lines]
    return [shlex.split(line, comments=True) for line in starts if line.startswith("lstlm ")]


def find_command(words: list[str]) -> tuple[click.Command, list[str]]:
    """Follow the command's name through the groups; return it and the words that are left."""
    command: click.Command = cli
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        child = command.get_command(click.Context(command), words[0])
        assert child is not None, f"no command {words[0]!r}"
        command, words = child, words[1:]
    return command, words


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_in_the_pages_exist_with_their_options(page: Path) -> None:
    for words in commands_of(page):
        line = " ".join(words)
        command, rest = find_command(words[1:])
        known = {name for param in command.params for name in (*param.opts, *param.secondary_opts)} | {"--help", "-h"}
        for word in rest:
            if word.startswith("-") and len(word) > 1:
                assert word.split("=")[0] in known, f"{page.name}: `{line}`: no option {word}"


def test_the_readme_shows_commands() -> None:
    used = {words[1] for words in commands_of(ROOT / "README.md")}
    assert {"prepare", "train", "eval", "nn", "predict", "vectors"} <= used


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_inside_the_project_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}, which is not there"


PICTURES = {
    (page.parent / target).resolve()
    for page in PAGES
    for target in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", page.read_text(encoding="utf-8"))
}


@pytest.mark.parametrize("picture", sorted(PICTURES), ids=lambda picture: picture.name)
def test_pictures_of_measurements_have_their_records(picture: Path) -> None:
    """`timing.png` and `timing-speedup.png` are drawn from records/timing-*.json, which hold no path of a machine."""
    if picture.suffix == ".png":
        found = list(picture.parent.glob(f"records/{picture.stem.removesuffix('-speedup')}*.json"))
        assert found, f"{picture.name}: no records/{picture.stem}*.json that it could be drawn from"
        assert not any(re.search(r'"/(tmp|home|root|work)', path.read_text(encoding="utf-8")) for path in found)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_scripts_are_posix_shell(script: Path) -> None:
    assert subprocess.run(["sh", "-n", str(script)]).returncode == 0
    if script.suffix != ".sh":
        assert script.stat().st_mode & 0o111, f"{script.name} is not executable"
        assert script.read_text().startswith("#!/bin/sh\n")


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
def test_shellcheck_is_content() -> None:
    done = subprocess.run(["shellcheck", "-x", *map(str, SCRIPTS)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_sanitize_leaves_nothing_behind_when_it_is_killed(tmp_path: Path) -> None:
    """With a Python that, once called, goes on for ever instead of compiling."""
    project, places, tools = (tmp_path / name for name in ("project", "places", "tools"))
    for folder in (project / "lstlm", project / "tests", project / "scripts", places, tools):
        folder.mkdir(parents=True)
    for name in ("pyproject.toml", "README.md", "LICENSE", "scripts/setup.sh"):
        (project / name).touch()
    script = shutil.copy(ROOT / "scripts/sanitize", project / "scripts")
    called = tmp_path / "called"
    (tools / "python").write_text(f"#!/bin/sh\necho $$ >{called}\nexec sleep 3600\n")
    (tools / "python").chmod(0o755)
    environment = {**os.environ, "TMPDIR": str(places), "PATH": f"{tools}:{os.environ['PATH']}"}
    process = subprocess.Popen(["sh", script, "address", "tests"], env=environment)
    wait_until(lambda: called.exists() and called.read_text() != "", "it never calls Python")
    assert len(list(places.iterdir())) == 1
    process.terminate()
    assert process.wait(PATIENCE_S) == 143 and not list(places.iterdir())
    wait_until(lambda: not running(int(called.read_text())), "what it had started goes on")


def running(process: int) -> bool:
    """Say whether there is such a process that has not ended."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_the_demo_uses_commands_and_options_that_exist() -> None:
    text = (ROOT / "scripts/demo").read_text().replace('"$', '"')
    lines = [line.strip() for line in text.splitlines() if line.strip().startswith("lstlm ")]
    assert {line.split()[1] for line in lines} == {"prepare", "train", "eval", "nn", "bench"}
    for line in lines:
        command, rest = find_command(shlex.split(line)[1:])
        known = {name for param in command.params for name in param.opts}
        assert {word for word in rest if word.startswith("-")} <= known, line


def test_one_version_and_pinned_requirements() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == __version__
    assert f"## {__version__}" in (ROOT / "CHANGELOG.md").read_text()
    pins = dict(re.findall(r"^([\w.-]+)==([\w.]+)$", (ROOT / "constraints.txt").read_text(), flags=re.MULTILINE))
    extras = [need for group in project["optional-dependencies"].values() for need in group]
    names = {re.split(r"[><=]", need)[0].lower() for need in [*project["dependencies"], *extras]}
    assert names <= {name.lower() for name in pins}
    assert pins["torch"] == "2.13.0"


def test_what_is_pinned_runs_on_the_oldest_python_of_the_readme() -> None:
    """A pin that wants 3.11.5 leaves a system whose own Python is 3.11.2 without `scripts/test`."""
    pinned = re.findall(r"^([\w.-]+)==", (ROOT / "constraints.txt").read_text(), flags=re.MULTILINE)
    needs = {name: metadata(name)["Requires-Python"] for name in pinned if next(distributions(name=name), None)}
    assert len(needs) > 50
    assert not {name: need for name, need in needs.items() if need and "3.11.0" not in SpecifierSet(need)}


def test_runtime_needs_six_packages() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = {re.split(r"[><=]", need)[0].lower() for need in project["dependencies"]}
    assert names == {"torch", "numpy", "click", "tqdm", "pyyaml", "tensorboard"}


def test_every_command_is_in_the_readme() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for name in COMMANDS:
        assert f"`{name}`" in readme


def test_the_example_of_a_bad_file_is_what_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bad.yaml").write_text("train:\n  batch_size: 0\n  lr: 1e-3\n")
    result = CliRunner().invoke(cli, ["config", "validate", "bad.yaml"])
    assert f"$ lstlm config validate bad.yaml\n{result.stderr}```" in (ROOT / "docs/recipes.md").read_text(
        encoding="utf-8"
    )


@pytest.mark.parametrize("page", ["README.md", "docs/own-model.md"])
def test_the_layers_in_the_pages_learn(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    examples = [e for e in re.findall(r"^```python\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL) if "head" in e]
    assert examples
    for example in examples:
        names: dict[str, Any] = {}
        exec(compile(example, page, "exec"), names)
        below = names["trunk"].weight if "trunk" in names else names["h"]
        assert below.grad.abs().sum() > 0
