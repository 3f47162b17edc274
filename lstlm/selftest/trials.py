"""The kinds of faults. Each yields one verdict a fault, for ever: None where nothing was lost, else what was."""

import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from lstlm.data import Corpus
from lstlm.errors import CheckpointError, DataError
from lstlm.selftest.bench import Workbench, after_events, fingerprint
from lstlm.training.run.checkpoint import open_checkpoint, step_folders
from lstlm.training.run.folders import CHECKPOINTS

Verdicts = Iterator[str | None]
Trial = Callable[[Workbench], Verdicts]


def _compare(run: Path, whole: Path) -> str | None:
    found = fingerprint(run)
    if isinstance(found, str):
        return f"{run.name}: {found}"
    shutil.rmtree(run)
    return None if found == fingerprint(whole) else f"{run.name}: other weights than without the fault"


def _dying(at: int) -> Callable[[], object]:
    """Let a process kill itself after so many events."""
    return lambda: after_events(at, lambda: os.kill(os.getpid(), signal.SIGKILL))


def kill(bench: Workbench) -> Verdicts:
    """SIGKILL in a step, a write, a rename …; up to four times a run, which then ends with the same bits."""
    whole = bench.undisturbed()
    while True:
        run = bench.new("killed")
        for left in reversed(range(bench.chance.randint(1, 4))):
            code = bench.train(run, _dying(bench.some_event()))
            if code not in (0, -signal.SIGKILL):
                yield f"{run.name}: exit code {code} where it should have been killed"
                break
            if left:
                yield None
                continue
            code = bench.train(run)
            yield f"{run.name}: exit code {code} when resumed" if code else _compare(run, whole)


def stop(bench: Workbench) -> Verdicts:
    """SIGTERM, SIGINT or SIGHUP at any place: the step is finished and saved, and resumed with the same bits."""
    whole = bench.undisturbed()
    while True:
        run, number = bench.new("stopped"), bench.chance.choice([signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
        at = bench.some_event(first=30)  # before, its own handlers are not yet there

        def tell(number: int = number, at: int = at) -> None:
            signal.signal(signal.SIGHUP, signal.SIG_DFL)  # whoever started this may ignore it
            after_events(at, lambda: os.kill(os.getpid(), number))

        code = bench.train(run, tell)
        if code not in (0, 128 + number):
            yield f"{run.name}: exit code {code} after {number.name}"
        else:
            code = bench.train(run) if code else 0
            yield f"{run.name}: exit code {code} when resumed" if code else _compare(run, whole)


def _harm(bench: Workbench, path: Path) -> str:
    """Damage a file, which must be another one afterwards; return how."""
    data, chance = path.read_bytes(), bench.chance
    while True:
        place, how = chance.randrange(len(data) or 1), chance.choice(["flip", "cut", "zero", "append", "remove"])
        if how == "remove":
            path.unlink()
            return how
        bad = bytearray(data)
        if how == "flip" and data:
            bad[place] ^= 1 << chance.randrange(8)
        elif how == "cut":
            del bad[place:]
        elif how == "zero":
            bad[place : place + 512] = bytes(len(bad[place : place + 512]))
        elif how == "append":
            bad += chance.randbytes(chance.randint(1, 600))
        if bytes(bad) != data:
            path.write_bytes(bad)
            return f"{how} at {place}"


def damage_checkpoint(bench: Workbench) -> Verdicts:
    """A file of a checkpoint is flipped, cut, zeroed, lengthened or removed: never opened; sometimes resumed past."""
    whole, number = bench.undisturbed(), 0
    while True:
        number += 1
        run = Path(shutil.copytree(whole, bench.new("damaged"), symlinks=True))
        newest = step_folders(run / CHECKPOINTS)[0]
        victim = bench.chance.choice(sorted(newest.iterdir()))
        how = _harm(bench, victim)
        try:
            open_checkpoint(newest)
            yield f"{run.name}: opened, although {victim.name}: {how}"
            continue
        except CheckpointError:
            pass
        if number % 25:
            shutil.rmtree(run)
            yield None
        else:
            code = bench.train(run)
            yield f"{run.name}: exit code {code} past a damaged checkpoint" if code else _compare(run, whole)


def damage_corpus(bench: Workbench) -> Verdicts:
    """A file of the corpus is damaged: never opened."""
    while True:
        corpus = Path(shutil.copytree(bench.corpus, bench.new("corpus")))
        victim = bench.chance.choice(sorted(corpus.iterdir()))
        how = _harm(bench, victim)
        try:
            Corpus.open(corpus)
            yield f"{corpus.name}: opened, although {victim.name}: {how}"
        except DataError:
            shutil.rmtree(corpus)
            yield None


def full_disk(bench: Workbench) -> Verdicts:
    """No room any more: a small tmpfs where this user may mount one, else a limit on the size of files."""
    whole = bench.undisturbed()
    sizes = [path.stat().st_size for path in step_folders(whole / CHECKPOINTS)[0].iterdir()]
    while True:
        run, part = bench.new("full"), bench.chance.random()
        disk = _mounted(bench.new("disk"), int(3 * sum(sizes) * part)) if bench.chance.random() < 0.5 else None
        try:
            yield _fill(bench, (disk or bench.folder) / run.name, whole, None if disk else int(max(sizes) * part))
        finally:
            if disk is not None:
                subprocess.run(["umount", disk], check=False)


def _fill(bench: Workbench, run: Path, whole: Path, limit: int | None) -> str | None:
    at = bench.some_event()

    def shrink() -> None:
        if limit is not None:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # the log may be longer
            after_events(at, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)))

    code = bench.train(run, shrink)
    if code not in (0, 1):
        return f"{run.name}: exit code {code} on a full disk"
    for folder in step_folders(run / CHECKPOINTS):
        try:
            open_checkpoint(folder)
        except CheckpointError as error:
            return f"{run.name}: a full disk left a damaged checkpoint: {error}"
    if limit is None:
        subprocess.run(["mount", "-o", "remount,size=64m", run.parent], check=True)
    code = bench.train(run)
    return f"{run.name}: exit code {code} when there was room again" if code else _compare(run, whole)


def _mounted(folder: Path, size: int) -> Path | None:
    """Return a file system of so many bytes, or None where this user may not mount one."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={max(size >> 10, 64)}k", "tmpfs", str(folder)]
    try:
        done = subprocess.run(command, capture_output=True, check=False)
    except FileNotFoundError:
        return None
    return folder if done.returncode == 0 else None


def lost_console(bench: Workbench) -> Verdicts:
    """Nobody reads stderr any more: a pipe without reader, a full device, a closed stream. Training goes on."""
    whole = bench.undisturbed()

    def pipe() -> None:
        reader, writer = os.pipe()
        os.dup2(writer, 2)
        os.close(reader)

    def full() -> None:
        os.dup2(os.open("/dev/full", os.O_WRONLY), 2)

    def closed() -> None:
        sys.stderr = None  # what Python makes of 2>&-

    while True:
        run, lose = bench.new("silent"), bench.chance.choice([pipe, full, closed])
        code = bench.train(run, lose, quiet=False)
        yield f"{run.name}: exit code {code} without a console ({lose.__name__})" if code else _compare(run, whole)


def killed_rank(bench: Workbench) -> Verdicts:
    """One of two ranks dies: the other leaves with exit code 1, and both go on to the same bits."""
    whole = bench.undisturbed(ranks=2)
    while True:
        run = bench.new("ranks")
        first, second = bench.train_ranks(run, _dying(bench.some_event(ranks=2)))
        if (first, second) not in ((1, -signal.SIGKILL), (0, 0)):
            yield f"{run.name}: exit codes {first} and {second} when the second rank was killed"
            continue
        codes = bench.train_ranks(run)
        yield f"{run.name}: exit codes {codes} when resumed" if any(codes) else _compare(run, whole)


TRIALS: dict[str, tuple[Trial, int]] = {
    "checkpoint damaged": (damage_checkpoint, 40),
    "corpus damaged": (damage_corpus, 20),
    "process killed": (kill, 20),
    "signal": (stop, 8),
    "console lost": (lost_console, 4),
    "disk full": (full_disk, 4),
    "rank killed": (killed_rank, 4),
}
"""Kind → trial, and how many of a hundred faults are of this kind."""
