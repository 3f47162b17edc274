"""The counters of a run: what a checkpoint must hold besides tensors for a resumed run to be the same run."""

import math
from dataclasses import asdict, dataclass, fields
from typing import Any

from lstlm.protocol.saved import MOST_COUNT


@dataclass
class Progress:
    """Counters, all of them plain numbers; JSON keeps a float64 to the last bit."""

    step: int = 0
    words: int = 0
    elapsed: float = 0.0  # seconds in the loop, evaluations and checkpoints included, over all processes of the run
    aside: float = 0.0  # seconds of it in evaluations and checkpoints
    lr_factor: float = 1.0  # halved by every roll-back
    rollbacks: int = 0
    loss_sum: float = 0.0  # of the unfinished log interval
    loss_steps: int = 0
    last_loss: float | None = None  # mean of the last whole interval
    evaluated_step: int = 0  # 0: never
    best_step: int = 0
    best_loss: float | None = None
    stale: int = 0  # evaluations since the best one

    def note_loss(self, loss: float) -> None:
        """Add one step's loss to the interval."""
        self.loss_sum += loss
        self.loss_steps += 1

    def close_interval(self) -> float:
        """Return the mean loss of the interval and begin the next."""
        self.last_loss = self.loss_sum / max(self.loss_steps, 1)
        self.loss_sum, self.loss_steps = 0.0, 0
        return self.last_loss

    def note_evaluation(self, loss: float) -> bool:
        """Record a validation loss; say whether it is the best so far. One that is not finite never is."""
        self.evaluated_step = self.step
        # `not <=`: a best loss that an older version saved as nan gives way to any number
        if math.isfinite(loss) and (self.best_loss is None or not self.best_loss <= loss):
            self.best_loss, self.best_step, self.stale = loss, self.step, 0
            return True
        self.stale += 1
        return False

    def to_dict(self) -> dict[str, Any]:
        """Return all counters by name."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Progress":
        """Read counters; a name that this version does not know is left out. ValueError where one makes no sense."""
        known = {field.name: field for field in fields(cls)}
        for name, field in known.items():
            value = values.get(name, field.default)
            if field.type is int and (type(value) is not int or not 0 <= value <= MOST_COUNT):
                raise ValueError(f"{name} is {value!r}, not a count")
            if field.type is float and (type(value) not in (int, float) or not math.isfinite(value)):
                raise ValueError(f"{name} is {value!r}, not a number")
            if field.type not in (int, float) and type(value) not in (int, float, type(None)):
                raise ValueError(f"{name} is {value!r}, not a number or null")
        if not 0 < values.get("lr_factor", 1.0) <= 1 or min(values.get(name, 0.0) for name in ("elapsed", "aside")) < 0:
            raise ValueError("lr_factor is outside (0, 1], or a time below 0")
        return cls(**{name: value for name, value in values.items() if name in known})
