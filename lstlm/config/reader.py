"""Strict YAML to ``Config``.  Every problem of a file is found before any is reported."""

import difflib
import math
import operator
import os
import re
import types
from collections.abc import Sequence
from dataclasses import Field, fields
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from lstlm.config import strict_yaml
from lstlm.config.recipe_files import find_recipe, recipes
from lstlm.config.rules import broken_rules
from lstlm.config.schema import LARGEST_INT, Config
from lstlm.config.strict_yaml import INTEGER, NUMBER, Mapping, Scalar, Value
from lstlm.errors import ConfigError

LARGEST_FILE = 1_000_000  # bytes; a configuration is a page
LONGEST_NUMBER = 1000  # characters; Python refuses to read one of several thousand digits


class Invalid(Exception):
    """One value that cannot be used: the rest of the line after ``file:line: key: ``."""


class Problems:
    """Collects lines ``where: key: what is wrong`` and the keys that are bad."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.lines: list[str] = []
        self.bad_keys: set[str] = set()

    def add(self, line: int, key: str, message: str) -> None:
        where = f"{self.name}:{line}" if line else self.name
        self.lines.append(f"{where}: {key}: {message}" if key else f"{where}: {message}")
        self.bad_keys.add(key)


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> Config:
    """Read a YAML file, or a recipe by its name; then apply ``overrides`` (``"section.key=value"``).

    ConfigError lists everything that is wrong.  A file is taken before a recipe of the same name.
    """
    path = Path(path)
    recipe = None if path.is_file() else find_recipe(path)
    try:
        return parse_config(_read(recipe or path).decode("utf-8-sig"), str(path), overrides)
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text (byte {error.start}); give a YAML configuration file") from None


def _read(path: Path) -> bytes:
    """Return the bytes of a configuration file, or say why there are none."""
    try:
        with path.open("rb") as file:
            raw = file.read(LARGEST_FILE + 1)
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file; {_instead_of(path)}") from None
    except IsADirectoryError:
        inside = path / "config.yaml"
        hint = f"did you mean {inside}?" if inside.is_file() else "give the path of a YAML file"
        raise ConfigError(f"{path}: is a folder, not a file; {hint}") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"{path}: cannot be read: {reason}") from None
    if len(raw) > LARGEST_FILE:
        raise ConfigError(f"{path}: larger than {LARGEST_FILE} bytes; give a YAML configuration file")
    return raw


def _instead_of(path: Path) -> str:
    """Return a remedy for a file that is not there: a near one beside it, else a near recipe."""
    if near := difflib.get_close_matches(path.name, _yaml_files(path.parent), n=1):
        return f"did you mean {path.parent / near[0]}?"
    if near := difflib.get_close_matches(path.stem, recipes(), n=1, cutoff=0.75):
        return f"did you mean the recipe {near[0]}?"
    return "give the path of a YAML file, or the name of a recipe (`lstlm config list`)"


def _yaml_files(folder: Path) -> list[str]:
    try:
        return [name for name in os.listdir(folder) if name.endswith((".yaml", ".yml"))]
    except OSError:
        return []


def parse_config(text: str, name: str = "config", overrides: Sequence[str] = ()) -> Config:
    """Read YAML text as ``load_config`` reads a file; ``name`` stands for the file in messages."""
    problems = Problems(name)
    tree = strict_yaml.parse(text, problems.add)
    values: dict[str, dict[str, Any]] = {field.name: {} for field in fields(Config)}
    if isinstance(tree, Mapping):
        for key, value in tree.entries.items():
            _read_section(key, value, values, problems)
    elif tree is not None:
        problems.add(tree.line, "", f"holds {describe(tree)}; expected sections: {_names(Config)}")
    elif not problems.lines:
        problems.add(0, "", f"is empty; give at least one section of: {_names(Config)}")
    for override in overrides:
        _read_override(override, values, problems)
    config = Config(**{field.name: _section_type(field)(**values[field.name]) for field in fields(Config)})
    for key, message in broken_rules(config, problems.bad_keys):
        problems.add(0, key, message)
    if problems.lines:
        raise ConfigError("\n".join(problems.lines))
    return config


def _read_section(name: str, value: Value, values: dict[str, dict[str, Any]], problems: Problems) -> None:
    section = next((field for field in fields(Config) if field.name == name), None)
    if section is None:
        problems.add(value.line, name, f"unknown section; {_suggest(name, [field.name for field in fields(Config)])}")
    elif not isinstance(value, Mapping):
        keys = _names(_section_type(section))
        problems.add(value.line, name, f"{describe(value)} where a section is expected; its keys: {keys}")
    else:
        for key, entry in value.entries.items():
            _read_key(section, key, entry, values, problems)


def _read_key(
    section: Field[Any], key: str, value: Value, values: dict[str, dict[str, Any]], problems: Problems
) -> None:
    kind = _section_type(section)
    dotted = f"{section.name}.{key}"
    field = next((field for field in fields(kind) if field.name == key), None)
    if field is None:
        near = [f"{section.name}.{field.name}" for field in fields(kind)]
        problems.add(value.line, dotted, f"unknown key; {_suggest(dotted, near)}")
        return
    try:
        values[section.name][key] = convert(value, type_of(kind, field), field.metadata["limits"])
    except Invalid as error:
        problems.add(value.line, dotted, str(error))


def _read_override(override: str, values: dict[str, dict[str, Any]], problems: Problems) -> None:
    """Apply one ``section.key=value``; the value is YAML, checked like the file's."""
    dotted, equals, text = override.partition("=")
    dotted = dotted.strip()
    at = Problems(f"--set {override}" if len(override) <= 80 else f"--set {override[:77]}...")
    section_name, dot, key = dotted.partition(".")
    section = next((field for field in fields(Config) if field.name == section_name), None)
    if not equals:
        at.add(0, "", "no '='; write --set section.key=value, for example --set train.batch_size=64")
    elif not text.strip():
        at.add(0, dotted, "no value after '='; write null for none")
    elif not dot or section is None:
        at.add(0, dotted, f"unknown key; {_suggest(dotted, _all_keys())}")
    else:
        tree = strict_yaml.parse(text, at.add)
        if tree is not None:
            _read_key(section, key, tree, values, at)
    problems.lines += [re.sub(r"^(--set .*?):1: ", r"\1: ", line) for line in at.lines]
    problems.bad_keys |= at.bad_keys


def convert(value: Value, kind: Any, limits: dict[str, float]) -> Any:
    """Return ``value`` as the declared type ``kind``, within ``limits``; Invalid says what is allowed."""
    nullable = get_origin(kind) in (Union, types.UnionType)
    if nullable:
        if isinstance(value, Scalar) and value.guess == "null":
            return None
        kind = next(arm for arm in get_args(kind) if arm is not type(None))
    if get_origin(kind) is tuple:
        return _convert_list(value, kind, limits)
    wanted = _wanted(kind, limits) + (", or null" if nullable else "")
    if not isinstance(value, Scalar):
        raise Invalid(f"{describe(value)} is not {wanted}")
    if get_origin(kind) is Literal:
        return _convert_choice(value, get_args(kind))
    if kind is str:
        return _convert_str(value, wanted)
    if value.quoted or not _FORMS[kind].fullmatch(value.text) or len(value.text) > LONGEST_NUMBER:
        raise Invalid(f"{describe(value)} is not {wanted}")
    return value.text == "true" if kind is bool else _convert_number(value, kind, wanted, limits)


def _convert_list(value: Value, kind: Any, limits: dict[str, float]) -> tuple[Any, ...]:
    inner = get_args(kind)
    length = None if inner[-1] is Ellipsis else len(inner)
    if not isinstance(value, strict_yaml.Sequence) or (length is not None and len(value.items) != length):
        count = "a list" if length is None else f"a list of {length}"
        raise Invalid(f"{describe(value)} is not {count}, each {_wanted(inner[0], limits)}")
    if len(value.items) > 64:
        raise Invalid(f"{len(value.items)} entries are too many; at most 64")
    return tuple(convert(item, inner[0], limits) for item in value.items)


def _convert_choice(value: Scalar, choices: tuple[str, ...]) -> str:
    if value.text in choices:
        return value.text
    near = difflib.get_close_matches(value.text, choices, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise Invalid(f"{describe(value)} is not one of {', '.join(choices)}{hint}")


def _convert_str(value: Scalar, wanted: str) -> str:
    if not value.quoted and (value.guess != "str" or NUMBER.fullmatch(value.text)):
        guess = "float" if value.guess == "str" else value.guess
        raise Invalid(f"{describe(value)} is not {wanted} (YAML reads it as {guess}); put it in quotes")
    if not value.text.strip() or not value.text.isprintable():
        raise Invalid(f"{describe(value)} is not {wanted}")
    return value.text


def _convert_number(value: Scalar, kind: type[int] | type[float], wanted: str, limits: dict[str, float]) -> float:
    number = kind(value.text)
    finite = abs(number) <= LARGEST_INT if kind is int else math.isfinite(number)
    if not (finite and all(_BOUNDS[word](number, bound) for word, bound in limits.items())):
        raise Invalid(f"{describe(value)} is out of range; allowed: {wanted}")
    return number


_FORMS = {bool: re.compile("true|false"), int: INTEGER, float: NUMBER}
_BOUNDS = {"above": operator.gt, "at_least": operator.ge, "below": operator.lt, "at_most": operator.le}


def _wanted(kind: Any, limits: dict[str, float]) -> str:
    """Say what a field takes: ``an integer, at least 1``."""
    names = {bool: "true or false", int: "an integer", float: "a finite number", str: "a string of printable text"}
    base = names.get(kind) or "one of " + ", ".join(get_args(kind))
    bounds = [f"{word.replace('_', ' ')} {bound}" for word, bound in limits.items()]
    return ", ".join([base, " and ".join(bounds)]) if bounds else base


def describe(value: Value) -> str:
    """Show a value in a message, short and on one line."""
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, strict_yaml.Sequence):
        return "a list" if not value.items else f"a list of {len(value.items)}"
    if value.guess == "null" and not value.text:
        return "an empty value"
    text = value.text if len(value.text) <= 60 else value.text[:57] + "..."
    return repr(text) if value.quoted or not text.isprintable() else text


def _section_type(section: Field[Any]) -> Any:
    return section.default_factory


def type_of(section: Any, field: Field[Any]) -> Any:
    """Return the declared type of a field; where its values come from a registry, the names that are there now."""
    registry = field.metadata.get("registry")
    return get_type_hints(section)[field.name] if registry is None else Literal[registry.names()]


def _names(kind: Any) -> str:
    return ", ".join(field.name for field in fields(kind))


def _all_keys() -> list[str]:
    """Return every dotted key, in the order of the schema."""
    return [f"{section.name}.{field.name}" for section in fields(Config) for field in fields(_section_type(section))]


def _suggest(name: str, pool: list[str]) -> str:
    """Return ``did you mean X?``: the nearest of ``pool``, else of all keys by their last part; else list ``pool``."""
    if near := difflib.get_close_matches(name, pool, n=1, cutoff=0.8):
        return f"did you mean {near[0]}?"
    part = name.rpartition(".")[2]
    lasts = {key.rpartition(".")[2]: key for key in reversed(_all_keys())}
    ends = [last for last in reversed(lasts) if last.endswith(f"_{part}")]  # lr: output_lr
    if near := difflib.get_close_matches(part, lasts, n=1, cutoff=0.75) or ends:
        return f"did you mean {lasts[near[0]]}?"
    return f"known: {', '.join(pool)}" if len(pool) <= 20 else "`lstlm config show --explain` lists them all"
