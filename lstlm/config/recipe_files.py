"""The recipes that come with the package: found by name, each described by the first line of its file."""

from pathlib import Path

_FOLDER = Path(__file__).with_name("recipes")


def recipes() -> dict[str, str]:
    """Return name → what it trains, in one line, for every recipe."""
    files = sorted(_FOLDER.glob("*.yaml"), key=lambda file: file.stem)  # paper-z before paper-z-identity
    return {file.stem: _title(file) for file in files}


def find_recipe(path: Path) -> Path | None:
    """Return the file of the recipe that `path` names: `demo`, without folder or ending; None where there is none."""
    file = _FOLDER / f"{path}.yaml"
    return file if path.name == str(path) and file.is_file() else None


def _title(path: Path) -> str:
    with path.open(encoding="utf-8") as file:
        return file.readline().removeprefix("#").strip()
