"""``Config`` to YAML that loads back to an equal object."""

import json
import re
import textwrap
from dataclasses import asdict, fields
from typing import Any

from lstlm.config.schema import Config

# Strings that need no quotes: they start with a letter or a slash and are no word that YAML 1.1 guesses at.
_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9_./-]*")
_GUESSED = frozenset({"null", "true", "false", "yes", "no", "on", "off", "y", "n"})


def to_dict(config: Config) -> dict[str, dict[str, Any]]:
    """Return plain dicts, lists and scalars, as YAML and JSON have them."""
    return {
        name: {key: list(value) if isinstance(value, tuple) else value for key, value in entries.items()}
        for name, entries in asdict(config).items()
    }


def dump_config(config: Config, *, explain: bool = False) -> str:
    """Return the whole configuration as YAML; ``explain`` puts each key's meaning above it."""
    values = to_dict(config)
    lines: list[str] = []
    for section in fields(config):
        lines.append(f"{section.name}:" + (f"  # {getattr(config, section.name).__doc__}" if explain else ""))
        for field in fields(getattr(config, section.name)):
            if explain:
                lines += textwrap.wrap(field.metadata["doc"], 96, initial_indent="  # ", subsequent_indent="  # ")
            lines.append(f"  {field.name}: {_scalar(values[section.name][field.name])}")
    return "\n".join(lines) + "\n"


def _scalar(value: Any) -> str:
    """Write one value; JSON's scalars and flow lists are YAML's too, except that YAML 1.1 wants 1.0e-05 for 1e-05."""
    if isinstance(value, list):
        return "[" + ", ".join(_scalar(item) for item in value) + "]"
    if isinstance(value, float):
        text = repr(value)
        return text if "." in text or "e" not in text else text.replace("e", ".0e")
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _GUESSED:
        return value
    return json.dumps(value, ensure_ascii=False)
