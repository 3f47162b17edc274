"""Fetches one large file: continues where it stopped, checks the size, and shows up under its name only when whole."""

import http.client
import os
import shutil
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from lstlm.bar import Bar
from lstlm.errors import DataError

CHUNK = 1 << 20
TIMEOUT_SECONDS = 60


def download_file(address: str, target: Path, *, expected_bytes: int | None = None, quiet: bool | None = None) -> None:
    """Download `address` to `target` by way of `target.part`, which a second call continues.

    The size must be the one the server announces, and `expected_bytes` if given. `quiet=None` shows progress on a
    terminal.
    """
    part = target.with_name(target.name + ".part")
    have = part.stat().st_size if part.exists() else 0
    if expected_bytes is not None:
        if have > expected_bytes:
            part.unlink()
            have = 0
        _check_space(target, expected_bytes - have)
    if expected_bytes is None or have < expected_bytes:
        _fetch(address, part, have, quiet)
    size = part.stat().st_size
    if expected_bytes is not None and size != expected_bytes:
        remedy = "run again to continue" if size < expected_bytes else f"delete {part} and run again"
        raise DataError(f"{address}: {size} bytes arrived where {expected_bytes} were expected; {remedy}")
    part.rename(target)


def _check_space(target: Path, needed: int) -> None:
    free = shutil.disk_usage(target.parent).free
    if needed > free:
        raise DataError(
            f"{target}: needs {needed} more bytes, the disk has {free} free; make room or choose another disk"
        )


class _StaySecure(urllib.request.HTTPRedirectHandler):
    """Follows a server that sends us elsewhere, but never from https to what anybody on the way can change."""

    def redirect_request(
        self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        if req.full_url.startswith("https:") and not newurl.startswith("https:"):
            raise urllib.error.URLError(f"the server sends us to {newurl!r}, which is not https")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def open_address(request: urllib.request.Request | str, timeout: float) -> Any:
    """Open an address; one that begins with https stays so."""
    return urllib.request.build_opener(_StaySecure).open(request, timeout=timeout)


def _fetch(address: str, part: Path, have: int, quiet: bool | None) -> None:
    """Append to `part` what is missing; a server that ignores the range starts it anew."""
    request = urllib.request.Request(address, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        with open_address(request, TIMEOUT_SECONDS) as answer:
            resumed = answer.status == 206
            have = have if resumed else 0
            length = answer.headers.get("Content-Length")
            total = have + int(length) if length else None
            with part.open("ab" if resumed else "wb") as file:
                _copy(answer, file, have, total, quiet)
                os.fsync(file.fileno())
    except urllib.error.HTTPError as error:
        if error.code == 416 and have:  # nothing is left to fetch; the size check decides
            return
        raise DataError(f"{address}: the server answered {error.code} {error.reason}; try again later") from None
    except (urllib.error.URLError, TimeoutError, ConnectionError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise DataError(f"{address}: cannot be fetched ({reason}); run again to continue, or use --archive") from None
    if total is not None and part.stat().st_size != total:
        raise DataError(f"{address}: broke off after {part.stat().st_size} of {total} bytes; run again to continue")


def _copy(answer: Any, file: Any, have: int, total: int | None, quiet: bool | None) -> None:
    with Bar(total=total, initial=have, unit="B", unit_scale=True, desc="downloading", disable=quiet) as bar:
        while data := answer.read(CHUNK):
            file.write(data)
            bar.update(len(data))
