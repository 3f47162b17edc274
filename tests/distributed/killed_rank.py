"""`lstlm` as a rank of torchrun; the one with rank 1 kills itself, the first time, before its fifteenth step."""

import os
import signal
from typing import Any

from lstlm.cli import main
from lstlm.training.loop.ranked import RankLearner

LAST = 14


def die_before_a_step() -> None:
    step = RankLearner.step

    def killed(self: RankLearner, *arguments: Any, **options: Any) -> Any:
        if self.examples.state()["batch"] == LAST:
            os.kill(os.getpid(), signal.SIGKILL)
        return step(self, *arguments, **options)

    RankLearner.step = killed  # type: ignore[method-assign]


if __name__ == "__main__":
    if (os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]) == ("1", "0"):
        die_before_a_step()
    main()
