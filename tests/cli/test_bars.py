"""Progress bars: one a phase, on a terminal only."""

import io
import subprocess
import sys
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


def test_no_thread_of_a_bar_outlives_it() -> None:
    """One that ends beside the interpreter can crash the process after all is said and done."""
    code = (
        "import threading\n"
        "from lstlm.cli.bars import Bars\n"
        "with Bars({'score': (' words', 'scoring')}) as bars:\n"
        "    bars('score', 10, 20)\n"
        "assert threading.enumerate() == [threading.main_thread()], threading.enumerate()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
