"""``lstlm config list``, ``show`` and ``validate``."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from lstlm.cli import cli
from lstlm.config import Config, load_config, parse_config, recipes, to_dict


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["config", *arguments])


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text("train: {seed: 7}\noptim: {output_lr: 1e-3}\n")
    return path


@pytest.mark.parametrize("flags", [[], ["--explain"]])
def test_show_prints_what_loads_back_to_the_same_object(file: Path, flags: list[str]) -> None:
    result = run("show", str(file), "--set", "model.hidden=[5]", *flags)
    assert result.exit_code == 0
    assert result.stderr == ""
    assert parse_config(result.stdout) == load_config(file, ["model.hidden=[5]"])


def test_show_as_json(file: Path) -> None:
    assert json.loads(run("show", str(file), "--json").stdout) == to_dict(load_config(file))


def test_show_without_a_file_prints_the_defaults() -> None:
    assert parse_config(run("show").stdout) == Config()
    assert parse_config(run("show", "--set", "train.seed=3").stdout).train.seed == 3


def test_show_puts_the_meaning_above_the_key() -> None:
    assert "  # examples per step\n  batch_size: 128\n" in run("show", "--explain").stdout


def test_validate_says_valid_or_lists_everything(file: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text("train: {sead: 1, batch_size: 0}\n")
    assert run("validate", str(file)).stdout == f"{file}: valid\n"
    result = run("validate", str(file), str(bad), str(tmp_path))
    assert result.exit_code == 2
    assert result.stdout == f"{file}: valid\n"
    assert [line.partition(": error: ")[2].partition(":")[0] for line in result.stderr.splitlines()] == [
        str(bad),
        str(bad),
        str(tmp_path),
    ]


@pytest.mark.parametrize("arguments", [["show", "--set", "train.seed"], ["show", "nowhere.yaml"], ["validate"]])
def test_wrong_input_is_exit_2_and_one_line(arguments: list[str]) -> None:
    result = run(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("lstlm: error: ")
    assert result.stderr.count("\n") == 1


def test_every_recipe_is_listed_with_one_line_and_found_by_its_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    listed = dict(line.split(maxsplit=1) for line in run("list").stdout.splitlines())
    assert listed == recipes() == json.loads(run("list", "--json").stdout)
    assert {"demo", "tiny"} <= set(listed)
    for name, title in listed.items():
        assert 20 < len(title) <= 100 and title.endswith("."), f"{name}: the first line should say what it trains"
        assert parse_config(run("show", name).stdout) == load_config(name)


def test_a_file_comes_before_the_recipe_of_its_name_and_a_folder_does_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("demo").write_text("train: {seed: 77}\n")
    assert load_config("demo").train.seed == 77
    Path("demo").unlink()
    Path("demo").mkdir()
    assert load_config("demo").train.seed == 1


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("configs/demo.yaml", "did you mean the recipe demo?"),
        ("demoo", "did you mean the recipe demo?"),
        ("../demo", "did you mean the recipe demo?"),
        ("nothing-like-it", "or the name of a recipe (`lstlm config list`)"),
    ],
)
def test_a_missing_file_is_told_of_the_recipes(
    name: str, remedy: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run("show", name)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"lstlm: error: {name}: no such file; ") and result.stderr.endswith(f"{remedy}\n")
