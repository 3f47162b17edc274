"""The Markdown table of a document, whichever benchmark it is of."""

from __future__ import annotations

from importlib import import_module

from lstlm.bench.records import Document
from lstlm.errors import ConfigError

WITH_TABLE = ("output", "model", "learning", "data", "distributed", "scale")


def markdown(document: Document) -> str:
    """Return the table of a document's records: `lstlm.bench.<kind>.markdown` of them."""
    kind = document["benchmark"]
    if kind not in WITH_TABLE:
        raise ConfigError(f"records of benchmark {kind!r}: there is no table for them")
    return str(import_module(f"lstlm.bench.{kind}").markdown(document["records"]))
