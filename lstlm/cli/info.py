"""``lstlm info``: what a run, a corpus or a file of vectors is, how large, how good, and how it was made."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from lstlm.cli.common import json_option, print_json, print_table
from lstlm.cli.loading import source_argument
from lstlm.errors import DataError, LstlmError
from lstlm.sealed import read_document

EPILOGUE = """\b
Example:
  lstlm info runs/demo
  lstlm info data/demo --json
  lstlm info GoogleNews-vectors-negative300.bin.gz
"""
SHOWN_WORDS = 10


@click.command("info", epilog=EPILOGUE)
@source_argument("path", metavar="PATH")
@json_option
def command(path: Path, as_json: bool) -> None:
    """Say what PATH is: a run, a checkpoint, a prepared corpus or a file of word vectors.

    Reads what describes it, not the numbers: a moment, however large it is.
    """
    try:
        facts = describe(path)
        told = [(name, value) for name, value in facts.items() if value != {}]
        shown = [(name.removesuffix("_s").replace("_", " "), _text(name, value)) for name, value in told]
        print_json(facts) if as_json else print_table(shown)
    except LstlmError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise DataError(f"{path}: its files make no sense ({type(error).__name__}: {error})") from error


def describe(path: Path) -> dict[str, Any]:
    """Return the facts about a path, `kind` first."""
    if not path.exists():
        raise DataError(f"{path}: no such run, corpus or file")
    if not path.is_dir():
        return _vectors(path)
    if (path / "config.yaml").is_file():
        return _run(path)
    if (path / "manifest.json").is_file():
        return _corpus(path)
    raise DataError(f"{path}: a folder with neither config.yaml (a run) nor manifest.json (a corpus)")


def _run(path: Path) -> dict[str, Any]:
    from lstlm.config import load_config
    from lstlm.training.run.folders import run_of

    folder, config = run_of(path), load_config(path / "config.yaml")
    status, made = _read(folder / "status.json"), _read(folder / "environment.json")
    data, model, output = config.data, config.model, config.output
    if folder != path:
        progress = {"kind": "checkpoint", "path": str(path), "step": _read(path / "manifest.json").get("step")}
    else:
        scores = status.get("evaluation") or {}
        progress = {
            "kind": "run",
            "path": str(path),
            "state": status.get("state"),
            "step": status.get("step"),
            "words_seen": status.get("words"),
            "elapsed_s": status.get("elapsed_s"),
            "scores": {key.removeprefix("eval/"): value for key, value in scores.items()},
        }
    return {
        **progress,
        "corpus": data.dir,
        "vocabulary": _count_lines(folder / "vocab.tsv"),
        "context": {"kind": data.context_kind, "words": data.context},
        "model": {"embedding": model.embedding, "hidden": list(model.hidden), "combine": model.combine},
        "output": {"kind": output.kind, "loss": output.loss if output.kind in ("factored", "naive") else "softmax"},
        "checkpoints": sorted(entry.name for entry in (folder / "checkpoints").glob("step-*")),
        "bytes": sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()),
        "started": _date(status.get("started")),
        "made_by": {
            "lstlm": made.get("lstlm"),
            "torch": made.get("packages", {}).get("torch"),
            "threads": made.get("threads"),
            "device": made.get("device"),
            "command": " ".join(map(str, made.get("command", []))),
        },
    }


def _corpus(path: Path) -> dict[str, Any]:
    from lstlm.data import Corpus

    corpus = Corpus.open(path, verify=False)
    manifest = corpus.manifest
    return {
        "kind": "corpus",
        "path": str(path),
        "vocabulary": len(corpus.vocabulary),
        "types": manifest["vocabulary"]["types"],
        "splits": {
            name: {key: part[key] for key in ("words", "sentences", "oov_rate")}
            for name, part in manifest["splits"].items()
        },
        "frequent_words": corpus.vocabulary.words[3 : 3 + SHOWN_WORDS],
        "source": manifest["source"]["name"],
        "files": manifest["source"]["files"],
        "settings": manifest["settings"],
        "bytes": sum(file.stat().st_size for file in path.rglob("*") if file.is_file()),
    }


def _vectors(path: Path) -> dict[str, Any]:
    from lstlm.vectors.npy import is_npy, read_npy
    from lstlm.vectors.readers import peek

    count: int | None
    if is_npy(path):
        words, matrix, _ = read_npy(path, None, None)
        form, count, dim, first = "npy", len(words), int(matrix.shape[1]), words[:SHOWN_WORDS]
    else:
        layout, first = peek(path, SHOWN_WORDS)
        form, count, dim = layout.kind, layout.count or _count_lines(path), layout.dim
    return {
        "kind": "vectors",
        "path": str(path),
        "format": {"text": "word2vec or GloVe text", "binary": "word2vec binary"}.get(form, form),
        "words": count,
        "length": dim,
        "first_words": first,
        "bytes": path.stat().st_size,
    }


def _read(path: Path) -> dict[str, Any]:
    """Return a JSON object; nothing where the file is absent, as it is before a run has begun."""
    try:
        return read_document(path)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read ({error})") from None


def _count_lines(path: Path) -> int | None:
    from lstlm.vectors.readers import CHUNK, open_bytes

    if not path.is_file():
        return None
    with open_bytes(path) as stream:
        return sum(chunk.count(b"\n") for chunk in iter(lambda: stream.read(CHUNK), b""))


def _date(seconds: float | None) -> str | None:
    return None if seconds is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def _text(name: str, value: Any) -> str:
    """Return a fact for the eye."""
    from lstlm.training.log.console import bytes_text, clock_text

    if name == "bytes":
        return bytes_text(value)
    if name == "elapsed_s":
        return clock_text(value)
    if name.endswith("_words"):
        return " ".join(value)
    return ("; " if name == "splits" else ", ").join(_plain(name, value))


def _plain(name: str, value: Any) -> Iterator[str]:
    if name == "splits":
        for split, part in value.items():
            counts = f"{part['words']:,} words, {part['sentences']:,} sentences"
            yield f"{split} {counts}, {part['oov_rate']:.2%} unknown"
    elif name == "files":
        yield from (f"{file['name']} ({file['bytes']:,} bytes)" for file in value)
    elif isinstance(value, dict):
        for key, inner in value.items():
            if inner is not None:
                yield f"{key.replace('_', ' ')} {_number(inner)}"
    elif isinstance(value, list):
        yield from map(str, value)
    else:
        yield _number(value)


def _number(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "?"}[value]
    return f"{value:,d}" if isinstance(value, int) else f"{value:.4g}" if isinstance(value, float) else str(value)
