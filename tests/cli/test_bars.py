"""Progress bars: one a phase, on a terminal only."""

import io
from typing import Any

import pytest

from lstlm.cli.bars import Bars


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("stream", [Terminal, io.StringIO])
def test_a_bar_for_each_phase_where_someone_looks(stream: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", shown := stream())
    with Bars({"score": (" words", "scoring"), "rank": (" words", "ranking")}, {"score": 20}) as bars:
        bars("score", 10, None)
        bars("score", 10, None)
        bars("rank", 4, 8)
    text = shown.getvalue()
    assert ("scoring" in text, "ranking" in text, "8.00" in text) == (stream is Terminal,) * 3
