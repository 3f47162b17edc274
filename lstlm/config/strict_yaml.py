"""YAML without surprises: text to a tree of marked values, nothing converted.

YAML 1.1 reads ``no`` as False, ``010`` as 8, ``1:30`` as 90 and ``1e-3`` as a string, and keeps the last of two equal
keys without a word.  Here a scalar stays the text that was written; the reader of a field, who knows its type, converts
it.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

INTEGER = re.compile(r"[-+]?[0-9](_?[0-9])*")
NUMBER = re.compile(r"[-+]?([0-9](_?[0-9])*(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?")
_STANDARD = "tag:yaml.org,2002:"


@dataclass(frozen=True, kw_only=True)
class Scalar:
    """One value as it was written, and what YAML 1.1 would make of it (``str`` when it is quoted)."""

    text: str
    guess: str
    quoted: bool
    line: int


@dataclass(frozen=True, kw_only=True)
class Sequence:
    """A list, and the line where it starts."""

    items: tuple["Value", ...]
    line: int


@dataclass(frozen=True, kw_only=True)
class Mapping:
    """Keys in the order of the file, and the line where it starts."""

    entries: dict[str, "Value"]
    line: int


Value = Scalar | Sequence | Mapping
Report = Callable[[int, str, str], None]  # (line or 0, dotted key or "", what is wrong)


class _Loader(yaml.SafeLoader):
    """Only ever composes nodes, so no object is constructed from the file; and a node stands in one place."""

    def compose_node(self, parent: Node | None, index: int) -> Node | None:
        # An alias may repeat itself without end (&a [*a, *a]); a configuration has no use for one.
        if self.check_event(yaml.AliasEvent):
            mark = self.get_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.composer.ComposerError(None, None, "an alias (*name); write the value out", mark)
        return super().compose_node(parent, index)


def parse(text: str, report: Report) -> Value | None:
    """Return the one document of ``text``; None when it is empty, or not YAML (which is then reported)."""
    try:
        node = yaml.compose(text, Loader=_Loader)
        return None if node is None else _value(node, "", report)
    except yaml.reader.ReaderError as error:
        report(0, "", f"character {chr(error.character)!r} at position {error.position} is not text; give a YAML file")
    except yaml.MarkedYAMLError as error:
        report(*_syntax(error))
    except RecursionError:
        report(0, "", "nested too deeply; a configuration has two levels")
    return None


def _syntax(error: yaml.MarkedYAMLError) -> tuple[int, str, str]:
    """Turn the parser's message of many lines into (line, "", one line)."""
    line = error.problem_mark.line + 1 if error.problem_mark else 0
    problem = error.problem or "cannot be read"
    if r"'\t'" in problem:
        problem = "a tab; indent with spaces"
    elif "single document" in (error.context or ""):
        problem = "a second document starts here; one file holds one configuration"
    elif error.context:
        problem = f"{error.context}: {problem}"
    return line, "", f"not valid YAML: {problem}"


def _value(node: Node, key: str, report: Report) -> Value:
    line = node.start_mark.line + 1
    guess = node.tag.removeprefix(_STANDARD)
    if guess == node.tag or guess.startswith("python"):
        report(line, key, f"tag {node.tag!r} is not allowed; write the plain value")
    if isinstance(node, MappingNode):
        return _mapping(node, key, report)
    if isinstance(node, SequenceNode):
        return Sequence(items=tuple(_value(item, key, report) for item in node.value), line=line)
    assert isinstance(node, ScalarNode)
    return Scalar(text=node.value, guess=guess, quoted=node.style is not None, line=line)


def _mapping(node: MappingNode, prefix: str, report: Report) -> Mapping:
    entries: dict[str, Value] = {}
    for key_node, value_node in node.value:
        line = key_node.start_mark.line + 1
        if not isinstance(key_node, ScalarNode):
            report(line, prefix, "a key must be a word")
            continue
        key = f"{prefix}.{key_node.value}" if prefix else key_node.value
        if key_node.value in entries:
            first = entries[key_node.value].line
            report(line, key, f"the key is given twice (also on line {first}); keep one of them")
            continue
        entries[key_node.value] = _value(value_node, key, report)
    return Mapping(entries=entries, line=node.start_mark.line + 1)
