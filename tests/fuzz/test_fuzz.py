"""Damaged files of every format: read with sense, or refused with one line; no traceback, no hang, no gigabytes.

LSTLM_FUZZ=2000 scripts/test tests/fuzz        # so many mutations of each format, instead of the usual 60
"""

import os
import random
import resource
import signal
from contextlib import suppress
from pathlib import Path
from types import FrameType

import pytest

from lstlm.errors import LstlmError
from tests.fuzz.formats import FORMATS, Accepted
from tests.fuzz.mutate import mutate
from tests.helpers import PATIENCE_S

MUTATIONS = int(os.environ.get("LSTLM_FUZZ", "60"))
MOST_GROWTH_KIB = 1 << 20


def hang(number: int, frame: FrameType | None) -> None:
    raise TimeoutError("a hang")


@pytest.mark.parametrize("name", FORMATS)
def test_damaged_files_are_understood_or_refused(name: str, tmp_path: Path) -> None:
    form, chance = FORMATS[name], random.Random(name)
    path = form.make(tmp_path)
    whole = path.read_bytes()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    signal.signal(signal.SIGALRM, hang)
    lines: list[str] = []
    try:
        for number in range(MUTATIONS):
            bad = mutate(whole, chance)
            if bad == whole:
                continue
            path.write_bytes(bad)
            signal.alarm(int(PATIENCE_S))
            try:
                form.read(path)
            except LstlmError as error:
                lines.append(str(error))
            except BaseException as error:
                raise AssertionError(f"mutation {number}: {type(error).__name__}: {error}; see {path}") from error
    finally:
        signal.alarm(0)
    assert len(lines) > MUTATIONS // 10  # the damage is real
    assert name == "config.yaml" or not any("\n" in line for line in lines)  # a config may have several problems
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MOST_GROWTH_KIB


@pytest.mark.parametrize("name", FORMATS)
def test_sound_files_are_read(name: str, tmp_path: Path) -> None:
    """Or refusing everything would do."""
    form = FORMATS[name]
    with suppress(Accepted):  # by a reader that must refuse all that was damaged
        form.read(form.make(tmp_path))
