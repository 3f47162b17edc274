"""Hashes of files, and JSON documents that carry one of themselves: a change of a single bit is found on reading."""

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SEAL = "manifest_sha256"
MOST_BYTES = 1 << 26


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file, as hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fault_of(path: Path, record: Mapping[str, Any], *, hashed: bool = True) -> str | None:
    """Return how a file differs from its `bytes` and `sha256` in a manifest, None where it does not."""
    if not path.is_file():
        return "missing"
    if (size := path.stat().st_size) != record["bytes"]:
        return f"{size} bytes where the manifest says {record['bytes']}: truncated or replaced"
    if hashed and sha256_of(path) != record["sha256"]:
        return "damaged: its SHA-256 is not the manifest's"
    return None


def seal(document: Mapping[str, Any]) -> str:
    """Return the one text of a document: sorted keys, and a hash of all other entries."""
    body = {key: document[key] for key in document if key != SEAL}
    digest = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
    return json.dumps({**body, SEAL: digest}, indent=1, sort_keys=True) + "\n"


def read_small(path: Path) -> bytes:
    """Return a file's content; ValueError where it is large, or none: a pipe or a device may have no end."""
    if path.exists() and not path.is_file():
        raise ValueError("not a file")
    with path.open("rb") as stream:
        data = stream.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise ValueError(f"larger than {MOST_BYTES >> 20} MiB")
    return data


def read_document(source: Path | bytes) -> dict[str, Any]:
    """Return a document without a look at its seal; ValueError where there is no JSON object."""
    try:
        document = json.loads((source if isinstance(source, bytes) else read_small(source)).decode())
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(document, dict):
        raise ValueError(f"expected an object, found {type(document).__name__}")
    return document


def read_sealed(path: Path) -> tuple[dict[str, Any], bool]:
    """Return a document, and whether it is as `seal` wrote it; ValueError where there is no JSON object."""
    data = read_small(path)
    document = read_document(data)
    return document, is_sealed(document, data)


def is_sealed(document: Mapping[str, Any], data: bytes) -> bool:
    """Say whether `data` is the one text of the document that was read from it."""
    try:
        return seal(document).encode() == data
    except RecursionError:  # writing goes a little deeper than reading
        return False


def finite_or_none(value: Any) -> Any:
    """Return `value` with non-finite floats as None and tuples as lists, all the way down: JSON has neither."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite_or_none(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite_or_none(item) for item in value]
    return value
