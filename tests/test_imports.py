"""Imports point one way.  Read from the source, so that an import inside a function counts as well."""

import ast
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "lstlm"

# room → the rooms it may import, besides itself.  The order is that of the house: nothing imports what stands above it.
FOUNDATION = {"bar", "errors", "files", "registry", "sealed", "streams"}
MAY_IMPORT = {
    "errors": set(),
    "bar": set(),
    "files": set(),
    "sealed": set(),
    "streams": set(),
    "registry": {"errors"},
    "cores": set(),
    "config": FOUNDATION,
    "data": FOUNDATION,
    "kernels": {"errors"},
    "protocol": {"errors", "kernels"},
    "spherical": FOUNDATION | {"kernels", "protocol"},
    "environment": FOUNDATION | {"__init__", "cores", "kernels"},
    "outputs": FOUNDATION | {"config", "kernels", "protocol", "spherical"},
    "distributed": FOUNDATION | {"config", "kernels", "protocol", "spherical", "outputs"},
    "nn": FOUNDATION | {"config", "kernels", "protocol", "spherical", "outputs", "distributed"},
    "vectors": FOUNDATION | {"config", "spherical", "outputs", "nn"},
    "evaluation": FOUNDATION | {"config", "data", "spherical", "outputs", "nn", "vectors"},
}
# From here on, everything below; `__init__` is the version number.
MAY_IMPORT["training"] = {*MAY_IMPORT, "__init__"}
MAY_IMPORT["selftest"] = {*MAY_IMPORT, "__init__"}
MAY_IMPORT["bench"] = {*MAY_IMPORT, "__init__"}
MAY_IMPORT["api"] = {*MAY_IMPORT, "__init__"}
MAY_IMPORT["cli"] = {*MAY_IMPORT, "__init__"}
MAY_IMPORT["__main__"] = {"cli"}
MAY_IMPORT["__init__"] = {"outputs", "api", "cores", "errors", "spherical"}

STANDARD = set(sys.stdlib_module_names) | {"compression"}  # the latter from Python 3.14 on, imported where it exists


def room(path: Path) -> str:
    """Return the name of the room that a file belongs to: its first folder, or the file itself."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported(path: Path) -> set[str]:
    """Return the dotted names of all modules that a file imports, wherever the statement stands."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import; write the whole name"
            # `from lstlm import x` imports the room x
            names |= {f"lstlm.{alias.name}" for alias in node.names} if node.module == "lstlm" else {node.module or ""}
    return names


def rooms(names: set[str]) -> set[str]:
    """Return which rooms of the package a set of dotted names leads to."""
    public = {"lstlm.__version__", "lstlm.__all__", "lstlm"}
    inside = {name for name in names if name.split(".")[0] == "lstlm"}
    return {"__init__" if name in public else name.split(".")[1] for name in inside}


FILES = sorted(path for path in PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_one_way(path: Path) -> None:
    own = room(path)
    assert own in MAY_IMPORT, f"{own} is a new room: say in MAY_IMPORT what it may import"
    wrong = rooms(imported(path)) - MAY_IMPORT[own] - {own}
    assert not wrong, f"{path.relative_to(PACKAGE)} ({own}) must not import {', '.join(sorted(wrong))}"


@pytest.mark.parametrize(
    ("own", "allowed"),
    [
        ("kernels", {"torch"}),
        ("spherical", {"torch"}),
        ("data", {"numpy", "tqdm", "gensim"}),
        ("config", {"yaml"}),
        ("registry", set()),
        ("errors", set()),
    ],
)
def test_rooms_with_few_guests(own: str, allowed: set[str]) -> None:
    for path in FILES:
        if room(path) == own:
            outside = {name.split(".")[0] for name in imported(path)} - {"lstlm"} - STANDARD
            assert outside <= allowed, f"{path.relative_to(PACKAGE)} imports {', '.join(sorted(outside - allowed))}"


def test_only_one_file_calls_a_collective() -> None:
    users = {room(path) for path in FILES if any(name.startswith("torch.distributed") for name in imported(path))}
    assert users <= {"distributed"}


def test_the_table_has_no_way_back() -> None:
    """The rule itself is sound: following it never leads from a room back to that room."""
    for own in MAY_IMPORT:
        seen: set[str] = set()
        queue = set(MAY_IMPORT[own]) - {own, "__init__"}
        while queue:
            step = queue.pop()
            seen.add(step)
            queue |= MAY_IMPORT[step] - seen - {"__init__"}
        assert own not in seen, f"{own} can reach itself"


def test_every_file_is_read_in_one_sitting() -> None:
    long = {
        str(path.relative_to(PACKAGE)): lines for path in FILES if (lines := len(path.read_text().splitlines())) > 330
    }
    assert not long, f"files above about 300 lines: {long}"
