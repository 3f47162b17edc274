"""The loop: step, log, evaluate, save, and what to do when numbers go wrong."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

from lstlm.config import Config, dump_config
from lstlm.errors import NumericsError
from lstlm.spherical.shrink import LearningRateTooLarge
from lstlm.training.log.runlog import RunLog
from lstlm.training.loop.diagnostics import Diagnostics
from lstlm.training.loop.learner import Learner, StepResult
from lstlm.training.loop.progress import Progress
from lstlm.training.loop.schedule import Budget, decay_factor, warmup_factor
from lstlm.training.loop.validate import Interrupted, Validator
from lstlm.training.run.background import CheckpointWriter
from lstlm.training.run.checkpoint import Checkpoint, newest_valid, step_folders, understood
from lstlm.training.run.folders import CHECKPOINTS


class Trainer:
    """Trains `learner` within `budget`; `facts` are the constant entries of every checkpoint's manifest."""

    def __init__(
        self, learner: Learner, validator: Validator, budget: Budget, log: RunLog, root: Path, facts: dict[str, Any]
    ) -> None:
        self.learner, self.validator, self.budget, self.log = learner, validator, budget, log
        self.root = root / CHECKPOINTS
        self.config: Config = learner.config
        self.progress = Progress()
        self.figures: dict[str, float] = {}  # of the last evaluation
        self.words_per_second = 0.0
        self.now: Callable[[], float] = perf_counter  # what counts as time
        self.aside_counts = True  # whether evaluations and checkpoints use up the time of the budget
        self._facts = facts
        self._diagnose = Diagnostics()
        self._writer = CheckpointWriter(self.root, facts, self.config.train.keep_checkpoints)
        self._unsaved = True
        self._saved_elapsed = 0.0  # what the last checkpoint says
        self._started = self.now()
        self._interval = (self.now(), 0.0, 0, 0)  # when it began; seconds aside, words and steps at that time

    def run(self, stopped: Callable[[], bool]) -> None:
        """Train until the budget is spent, patience ends, or `stopped` says so; then save. The loop."""
        self._started = self.now() - self.progress.elapsed
        self._begin_interval()
        with self._writer:
            while True:
                self._do_what_is_due(stopped)
                if stopped() or self.finished():
                    break
                self._take_step()
            if not stopped():
                self._wind_up(stopped)
            self._note_finished(self._writer.wait())
            # A budget that ran out while the last checkpoint was written must be found spent by whoever resumes.
            used, saved = self._used(self.elapsed()), self._used(self._saved_elapsed)
            if self._unsaved or self.budget.spent(0, used) > self.budget.spent(0, saved):
                self._save()
                self._note_finished(self._writer.wait())

    def finished(self) -> bool:
        """Say whether there is nothing left to do."""
        patience = self.config.train.patience
        worn_out = patience is not None and self.progress.stale >= patience
        return worn_out or self.budget.spent(self.progress.step, self._used(self.elapsed()))

    def elapsed(self) -> float:
        """Return the seconds of training, over all processes of the run."""
        self.progress.elapsed = self.now() - self._started
        return self.progress.elapsed

    def _used(self, elapsed: float) -> float:
        """Return how many of the elapsed seconds count for the budget."""
        return elapsed if self.aside_counts else elapsed - self.progress.aside

    def _do_what_is_due(self, stopped: Callable[[], bool]) -> None:
        """Log, evaluate and save as the step number asks. A resumed run begins here, with what was left out."""
        step, train = self.progress.step, self.config.train
        self._note_finished(self._writer.poll())
        if self.progress.loss_steps and step % train.log_every == 0:
            self._log()
        improved = step > self.progress.evaluated_step and step % train.eval_every == 0 and self._evaluate(stopped)
        if self._unsaved and (improved or step % train.checkpoint_every == 0):
            self._save()

    def _wind_up(self, stopped: Callable[[], bool]) -> None:
        """Log and evaluate once more at the end."""
        if self.progress.loss_steps:
            self._log()
        if self.progress.step > self.progress.evaluated_step:
            self._evaluate(stopped)

    def _lr_scale(self) -> float:
        optim, progress = self.config.optim, self.progress
        share = self.budget.progress(progress.step, self._used(progress.elapsed))
        scale = progress.lr_factor * warmup_factor(progress.step, optim.warmup_steps)
        return scale * decay_factor(optim.schedule, share)

    def _take_step(self) -> None:
        scale = self._lr_scale()
        measured = (self.progress.step + 1) % self.config.train.log_every == 0
        try:
            step: StepResult | None = self.learner.step(scale, measured=measured)
        except NumericsError as error:
            if not self.learner.has_rates:
                raise
            step = self._try_restored(error, scale)
        if step is None:
            return
        self.progress.step += 1
        self.progress.words += step.examples
        self.progress.note_loss(step.loss)
        self._unsaved = True
        self.log.console.advance()

    def _try_restored(self, error: NumericsError, scale: float) -> StepResult | None:
        """Try the batch once more with the factored state restored; else roll back and return None."""
        try:
            # restoring reads the whole vocabulary and does not make a learning rate smaller
            if not isinstance(error, LearningRateTooLarge) and self.learner.restore_output():
                step = self.learner.step(scale)
                text = f"step {self.progress.step}: {error}; restored the factored state and went on"
                self.log.event(self.progress.step, "restore", text)
                return step
        except NumericsError as again:
            error = again
        self._roll_back(error)
        return None

    def _roll_back(self, error: NumericsError) -> None:
        """Return to the newest good checkpoint and halve the learning rates; give up after train.max_rollbacks."""
        failed, limit = self.progress, self.config.train.max_rollbacks
        optim, output_lr = self.config.optim, self.learner.optimisers.output_lr
        if failed.rollbacks >= limit:
            raise NumericsError(
                f"step {failed.step}: {error}; gave up after {failed.rollbacks} roll-backs with the rates at "
                f"×{failed.lr_factor:g}; lower optim.output_lr ({output_lr:g}), optim.hidden_lr "
                f"({optim.hidden_lr:g}) and optim.embedding_lr ({optim.embedding_lr:g}), or set optim.warmup_steps"
            )
        checkpoint, skipped = self._newest()
        if checkpoint is None:
            raise NumericsError(f"step {failed.step}: {error}; no checkpoint to roll back to: {'; '.join(skipped)}")
        self.load(checkpoint)
        self.progress.rollbacks = failed.rollbacks + 1
        self.progress.lr_factor = failed.lr_factor / 2
        self.progress.elapsed = failed.elapsed
        self._started = self.now() - failed.elapsed
        self.log.rewind(checkpoint.step)
        where = f"back to step {checkpoint.step} with the rates at ×{self.progress.lr_factor:g}"
        text = f"step {failed.step}: {error}; {where} ({self.progress.rollbacks} of {limit})"
        self.log.event(checkpoint.step, "rollback", text)
        self._save()  # over the checkpoint just read: whoever is killed from now on must not resume with the old rates
        self._note_finished(self._writer.wait())

    def load(self, checkpoint: Checkpoint) -> None:
        """Return to a checkpoint: tensors, position in the data and counters."""
        with understood(checkpoint):
            counters = checkpoint.json("counters.json")
            self.learner.load(checkpoint, counters["examples"])
            self.progress = Progress.from_dict(counters["progress"])
            self.figures = dict(counters["figures"])
            if self.progress.step != checkpoint.step:
                raise ValueError(f"counters of step {self.progress.step}")
        self._unsaved, self._saved_elapsed = False, self.progress.elapsed
        self._begin_interval()

    def _save(self) -> None:
        """Save a checkpoint; the seconds that are logged and set aside are those for which training stands still."""
        began = self.now()
        self._saved_elapsed = self.elapsed()
        counters = {
            "progress": self.progress.to_dict(),
            "examples": self.learner.examples.state(),
            "figures": self.figures,
        }
        contents: dict[str, Any] = {"config.yaml": dump_config(self.config), "counters.json": json.dumps(counters)}
        self._write({**contents, **self.learner.tensors()})
        self._unsaved = False
        seconds = self.now() - began
        self.log.scalars(self.progress.step, {"time/checkpoint_s": seconds})
        self.progress.aside += seconds
        self._report_status()

    def _newest(self) -> tuple[Checkpoint | None, list[str]]:
        """Return the newest checkpoint that verifies, and what was skipped."""
        self._note_finished(self._writer.wait())
        return newest_valid(step_folders(self.root))

    def _write(self, contents: dict[str, Any]) -> None:
        """Make a checkpoint of the files `contents`; its end is in the background."""
        self._note_finished(self._writer.wait())
        self._writer.save(self.progress.step, contents, best=self._is_best())

    def _is_best(self) -> bool:
        """Say whether the last evaluation was made at this step and is the best so far."""
        return self.progress.best_step == self.progress.step and self.progress.best_loss is not None

    def _note_finished(self, seconds: float | None) -> None:
        """Log how long a checkpoint took in the background, once it is done."""
        if seconds is not None:
            self.log.scalars(self.progress.step, {"time/checkpoint_finished_s": seconds})

    def _evaluate(self, stopped: Callable[[], bool]) -> bool:
        """Evaluate, log, and say whether this is the best so far; a signal gives it up and leaves it due."""
        began = self.now()
        try:
            figures = self.validator(self.learner.network, stopped)
        except Interrupted:
            return False
        best = self.progress.note_evaluation(figures.get("eval/loss", math.nan))
        self._unsaved = True
        self.figures = figures
        seconds = self.now() - began
        facts = {"eval/words": self.progress.words, "time/eval_s": seconds}
        self.log.evaluation(self.progress.step, {**figures, **facts}, best=best)
        self.progress.aside += seconds
        return best

    def _begin_interval(self) -> None:
        self.learner.clock.milliseconds()
        self._interval = (self.now(), self.progress.aside, self.progress.words, self.progress.step)

    def _log(self) -> None:
        """Log the interval: mean loss, rates, milliseconds a phase, and the state of the output layer."""
        thorough = self.progress.step % self.config.train.eval_every == 0 or self.finished()
        began, aside, words, first = self._interval
        seconds = self.now() - began - (self.progress.aside - aside)
        steps = max(self.progress.step - first, 1)
        self.words_per_second = (self.progress.words - words) / max(seconds, 1e-9)
        phases = self.learner.clock.milliseconds()
        elapsed = self.elapsed()
        values = {
            "loss/train": self.progress.close_interval(),
            "progress/epoch": self.progress.step / self.learner.examples.batches_per_epoch,
            "progress/words": self.progress.words,
            "progress/elapsed_s": elapsed,
            "progress/cpu_s": process_time(),  # of this process: what is left of the clock on a machine that others use
            "progress/train_s": elapsed - self.progress.aside + self.learner.seconds_before,
            "optim/lr_scale": self._lr_scale(),
            "throughput/words_per_s": self.words_per_second,
            **{f"time/{phase}": mean for phase, mean in phases.items()},
            "time/trainer": max(1e3 * seconds / steps - sum(phases.values()), 0.0),
            **self._diagnose(self.learner.network.output, full=thorough),
        }
        if self.learner.grad_norm is not None:
            values["lst/grad_norm"] = self.learner.grad_norm
        self.log.train(self.progress.step, values, elapsed)
        self._report_status()
        self._begin_interval()

    def _report_status(self) -> None:
        self.log.status("running", self.report())

    def report(self) -> dict[str, Any]:
        """Return where the run stands, for status.json and the summary."""
        progress = self.progress
        return {
            "step": progress.step,
            "max_steps": self.budget.steps,
            "epoch": progress.step / self.learner.examples.batches_per_epoch,
            "words": progress.words,
            "elapsed_s": round(progress.elapsed, 3),
            "words_per_s": round(self.words_per_second, 1),
            "loss": progress.last_loss,
            "evaluation": self.figures,
            "best_step": progress.best_step,
            "best_loss": progress.best_loss,
            "rollbacks": progress.rollbacks,
        }
