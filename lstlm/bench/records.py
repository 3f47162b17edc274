"""The document of a benchmark: records and the environment they were made in, as JSON and as Markdown tables."""

import errno
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from importlib import import_module
from pathlib import Path
from typing import Any

from lstlm import environment
from lstlm.errors import ConfigError, DataError, LstlmError
from lstlm.sealed import read_document

Record = dict[str, Any]
Document = dict[str, Any]
KINDS = ("output", "model", "learning", "data", "distributed", "scale")


def make_document(kind: str, records: Iterable[Record], **more: Any) -> Document:
    """Return {"benchmark", "records", …, "environment"}; the environment names date and command.

    Numbers are rounded here, once, to six digits, for a clock gives no more: a table printed now and one drawn from the
    file are the same.
    """
    made = {"date": datetime.now().astimezone().isoformat(timespec="seconds"), "command": ["lstlm", *sys.argv[1:]]}
    records = json.loads(json.dumps([*records]), parse_float=lambda text: float(f"{float(text):.6g}"))
    return {"benchmark": kind, "records": records, **more, "environment": {**environment.describe(), **made}}


def dump(document: Document) -> str:
    """Return the document as JSON, one record a line, so that a file can be read and compared by line."""
    parts = []
    for key, value in document.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            lines = ",\n".join("    " + _json(item) for item in value)
            parts.append(f"  {json.dumps(key)}: [\n{lines}\n  ]")
        else:
            parts.append(f"  {json.dumps(key)}: {_json(value)}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def write(document: Document, path: Path) -> None:
    """Write the document as JSON."""
    with _writing(path):
        path.write_text(dump(document), encoding="utf-8")


def check_writable(path: Path, flag: str = "--json") -> None:
    """Raise what `write` would raise, and leave what is there as it is."""
    new = not path.exists()
    with _writing(path, flag):
        path.open("a").close()
        if new:
            path.unlink()


@contextmanager
def _writing(path: Path, flag: str = "--json") -> Iterator[None]:
    """A full disk is a failure, as everywhere; a path that cannot be written to is a wrong value of `flag`."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        kind = LstlmError if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO) else ConfigError
        raise kind(f"{flag} {path}: cannot be written: {error.strerror or error}") from None


def read(paths: Sequence[Path]) -> Document:
    """Return one document with the records of all files; the environment is that of the first."""
    documents = [_read(path) for path in paths]
    kinds = {document["benchmark"] for document in documents}
    if len(kinds) > 1:
        raise DataError(f"{paths[0]} …: records of different benchmarks ({', '.join(sorted(kinds))}); draw them apart")
    merged = dict(documents[0])
    merged["records"] = [record for document in documents for record in document["records"]]
    return merged


def _read(path: Path) -> Document:
    try:
        document = read_document(path)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise DataError(f"{path}: cannot be read as records ({reason}); `lstlm bench … --json` writes them") from None
    if not isinstance(document.get("records"), list):
        raise DataError(f'{path}: no "records"; not a document that `lstlm bench … --json` wrote')
    if document.get("benchmark") not in KINDS:
        raise DataError(f"{path}: benchmark {document.get('benchmark')!r} is not one of {', '.join(KINDS)}")
    return document


def markdown(document: Document) -> str:
    """Return the tables of a document: `lstlm.bench.<kind>.markdown` of its records."""
    return str(import_module(f"lstlm.bench.{document['benchmark']}").markdown(document["records"]))


def mean_ms(record: Record) -> float:
    """Return the amortised step: the mean, stabilisation included. Both sides of every speed-up are this."""
    return float(record["step_ms_mean"] if "step_ms_mean" in record else record["step_ms"])


Column = tuple[str, str | Callable[[Record], Any]]  # a title, and the key of a record or what to make of the record


def table(records: Sequence[Record], columns: Sequence[Column]) -> str:
    """Return a Markdown table, padded so that it reads well unrendered too; numbers to the right.

    Columns that say nothing of any record are left out.
    """
    columns = [c for c in columns if not records or any(value_of(record, c) is not None for record in records)]
    rows = [[cell(value_of(record, column)) for column in columns] for record in records]
    titles = [title for title, _ in columns]
    widths = [max(len(row[i]) for row in [titles, *rows]) for i in range(len(columns))]
    right = [all(_numeric(row[i]) for row in rows) and bool(rows) for i in range(len(columns))]

    def line(cells: Sequence[str]) -> str:
        padded = [c.rjust(w) if r else c.ljust(w) for c, w, r in zip(cells, widths, right, strict=True)]
        return "| " + " | ".join(padded) + " |"

    rule = ["-" * (w - 1) + ":" if r else "-" * w for w, r in zip(widths, right, strict=True)]
    return "\n".join([line(titles), line(rule), *map(line, rows)])


def value_of(record: Record, column: Column) -> Any:
    """Return what a column shows of a record."""
    _, source = column
    return record[source] if isinstance(source, str) else source(record)


def cell(value: Any) -> str:
    """Return a value as text: three significant digits for a time, thousands separated, – for nothing."""
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _numeric(text: str) -> bool:
    return text == "–" or text.replace(",", "").replace(".", "").replace("-", "").replace("e", "").isdigit()
