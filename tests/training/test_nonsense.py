"""Runs whose files are whole but senseless, or vanish: one line, the right exit code, nothing half believed."""

import copy
import hashlib
import json
import math
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from lstlm.sealed import is_sealed, seal
from lstlm.training.loop.learner import Learner
from tests.training.harness import Cli, fingerprint, status

STEP = "step-00000010"


def reseal(folder: Path, name: str, data: bytes) -> None:
    """Replace a file of a checkpoint, and the manifest's record of it."""
    (folder / name).write_bytes(data)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["files"][name] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    (folder / "manifest.json").write_text(seal(manifest))


def places(document: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield where something is in nested dictionaries and lists."""
    keys = document if isinstance(document, dict) else range(len(document)) if isinstance(document, list) else ()
    for key, value in ((key, document[key]) for key in keys):
        yield (*path, key)
        yield from places(value, (*path, key))


def changed(document: Any, place: tuple[Any, ...], value: Any) -> Any:
    """Return a copy with something else, or nothing (`...`), in a place."""
    document = copy.deepcopy(document)
    parent = document
    for key in place[:-1]:
        parent = parent[key]
    if value is ...:
        del parent[place[-1]]
    else:
        parent[place[-1]] = value
    return document


def change_manifest(folder: Path, chance: random.Random) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    place = chance.choice(list(places(manifest)))
    (folder / "manifest.json").write_text(seal(changed(manifest, place, chance.choice(JSON))))


def change_counters(folder: Path, chance: random.Random) -> None:
    counters = json.loads((folder / "counters.json").read_text())
    place = chance.choice(list(places(counters)))
    reseal(folder, "counters.json", json.dumps(changed(counters, place, chance.choice(JSON))).encode())


def change_tensors(folder: Path, chance: random.Random) -> None:
    name = chance.choice(["network.pt", "training.pt"])
    tensors = torch.load(folder / name, weights_only=True)
    tensors = dict(tensors)
    place = chance.choice(list(places(tensors)))
    odd: list[Any] = [..., None, 1, "x", [], torch.zeros(0), torch.ones(3, 3), torch.zeros(2, dtype=torch.int8)]
    torch.save(changed(tensors, place, chance.choice(odd)), folder.parent / "changed")
    reseal(folder, name, (folder.parent / "changed").read_bytes())
    (folder.parent / "changed").unlink()


def change_config(folder: Path, chance: random.Random) -> None:
    lines = (folder / "config.yaml").read_text().splitlines()
    lines[chance.randrange(len(lines))] = chance.choice(["", "x: y", "train: 3", "  batch_size: -1", "{", "a: [b"])
    reseal(folder, "config.yaml", "\n".join(lines).encode())


JSON: list[Any] = [..., None, -1, 0, 10**30, 1.5, "x", "", [], {}, True, [[1]], {"a": {}}, float("nan")]
CHANGES: list[Callable[[Path, random.Random], None]] = [change_manifest, change_counters, change_tensors, change_config]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {"folder": tmp_path_factory.mktemp("trained")}


@pytest.fixture
def run(lstlm: Cli, trained: dict[str, Path], tmp_path: Path) -> Path:
    """A run of ten steps, trained once and copied for every test."""
    whole = trained["folder"] / "run"
    if not whole.exists():
        lstlm.ok(whole, output__kind="factored", train__max_steps=10)
    return Path(shutil.copytree(whole, tmp_path / "run", symlinks=True))


@pytest.mark.parametrize("change", CHANGES)
def test_sealed_nonsense_is_refused_or_harmless(
    lstlm: Cli, run: Path, tmp_path: Path, change: Callable[[Path, random.Random], None]
) -> None:
    """Seeded; every outcome is a line and exit code 3 (2 for other settings), or a run that ends as it would have."""
    chance, codes = random.Random(change.__name__), []
    lstlm.ok(run, "--resume", "auto", output__kind="factored", train__max_steps=12)
    whole = fingerprint(run, 12)
    shutil.rmtree(run / "checkpoints" / "step-00000012")
    for number in range(25):
        copied = Path(shutil.copytree(run, tmp_path / f"{number}", symlinks=True))
        change(copied / "checkpoints" / STEP, chance)
        checkpoint = str(copied / "checkpoints" / STEP)
        used = lstlm.run("nn", str(copied), "w1") if number % 2 else None
        outcome = lstlm(copied, "--resume", checkpoint, output__kind="factored", train__max_steps=12)
        for found in (used, outcome):
            assert found is None or (found.code in (0, 2, 3) and "unexpected" not in found.err), found
            codes.append(0 if found is None else found.code)
        if outcome.code == 0:
            ended = fingerprint(copied, 12)
            assert (ended["network"], ended["training"]) == (whole["network"], whole["training"]), number
        shutil.rmtree(copied)
    assert 3 in codes


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("step", -1), ("step", 11), ("step", 10.0), ("words", "many"), ("words", 2**63)],
        *[
            ("elapsed", float("nan")),
            ("elapsed", -1.0),
            ("aside", -1),
            ("lr_factor", None),
            ("lr_factor", -1),
            ("lr_factor", 0.0),
            ("lr_factor", 2**63),
        ],
    ],
)
def test_counters_that_make_no_sense_are_refused(lstlm: Cli, run: Path, name: str, value: object) -> None:
    folder = run / "checkpoints" / STEP
    counters = json.loads((folder / "counters.json").read_text())
    counters["progress"][name] = value
    reseal(folder, "counters.json", json.dumps(counters).encode())
    outcome = lstlm(run, "--resume", "auto", output__kind="factored", train__max_steps=20)
    assert outcome.code == 3 and f"{STEP}: not damaged, but what it says makes no sense here" in outcome.err


def minus(x: torch.Tensor) -> torch.Tensor:
    return x * 0 - 1


def nothing(x: torch.Tensor) -> torch.Tensor:
    return x * 0


def nan(x: torch.Tensor) -> torch.Tensor:
    return x * math.nan


def infinite(x: torch.Tensor) -> torch.Tensor:
    return torch.full_like(x, math.inf)


def rounded(x: torch.Tensor) -> torch.Tensor:
    return x.to(torch.int16)


def backwards(x: torch.Tensor) -> torch.Tensor:
    return x.flip(0)


def huge(x: torch.Tensor) -> torch.Tensor:
    return x * 0 + (1 << 62)


def gone(x: object) -> object:
    return ...


KINDS: dict[str, dict[str, str]] = {
    "factored": {},
    "shortlist": {"output__shortlist": "20", "output__middle": "40", "output__loss": "spherical"},
    "softmax": {"optim__output": "adagrad", "optim__hidden": "adam"},
    "sampled": {"optim__hidden": "sgd"},
    "hierarchical": {},
    "adaptive": {"optim__output": "adagrad"},
}
NONSENSE: list[tuple[str, str, tuple[Any, ...], Callable[[Any], Any]]] = [
    ("factored", "network.pt", ("embedding.weight",), nan),
    ("factored", "network.pt", ("hidden.0.bias",), rounded),
    ("factored", "network.pt", ("output.state.exact",), infinite),
    ("factored", "network.pt", ("output.state._extra_state",), minus),
    ("factored", "network.pt", ("output.state._extra_state",), huge),
    ("factored", "network.pt", ("output.stabiliser._extra_state",), minus),
    ("factored", "training.pt", ("optimisers", "squares"), minus),
    ("factored", "training.pt", ("optimisers", "squares"), rounded),
    ("factored", "training.pt", ("optimisers", "hidden", "state", 0, "sum"), infinite),
    ("factored", "training.pt", ("optimisers", "hidden", "state", 0, "sum"), minus),
    ("shortlist", "network.pt", ("output.rank",), minus),
    ("shortlist", "network.pt", ("output.word_of_rank",), nothing),
    ("shortlist", "network.pt", ("output.head.scale",), nothing),
    ("shortlist", "network.pt", ("output.middle.bounds",), backwards),
    ("shortlist", "network.pt", ("output.middle.bounds",), nothing),
    ("shortlist", "network.pt", ("output.middle.bounds",), huge),
    ("shortlist", "network.pt", ("output.middle.rows.scale",), minus),
    ("softmax", "network.pt", ("output.rows.scale",), minus),
    ("softmax", "network.pt", ("output.rows.scale",), infinite),
    ("softmax", "network.pt", ("output.rows.squares",), minus),
    ("softmax", "training.pt", ("optimisers", "hidden", "state", 1), gone),
    ("softmax", "training.pt", ("optimisers", "hidden", "state", 0, "step"), infinite),
    ("softmax", "training.pt", ("optimisers", "hidden", "state", 1, "step"), nothing),
    ("softmax", "training.pt", ("optimisers", "hidden", "state", 0, "exp_avg_sq"), minus),
    ("sampled", "training.pt", ("optimisers", "hidden", "state", 1), gone),
    ("sampled", "network.pt", ("output.word_of_rank",), huge),
    ("sampled", "network.pt", ("output.log_miss",), nothing),
    ("sampled", "network.pt", ("output.draws",), minus),
    ("hierarchical", "network.pt", ("output.order",), minus),
    ("hierarchical", "network.pt", ("output.slot",), huge),
    ("hierarchical", "network.pt", ("output.start",), nothing),
    ("adaptive", "network.pt", ("output.squares_0",), minus),
    ("adaptive", "network.pt", ("output.rank",), huge),
]


@pytest.mark.parametrize(("kind", "name", "place", "harm"), NONSENSE)
def test_tensors_that_make_no_sense_are_refused(
    lstlm: Cli,
    trained: dict[str, Path],
    tmp_path: Path,
    kind: str,
    name: str,
    place: tuple[Any, ...],
    harm: Callable[[Any], Any],
) -> None:
    whole, settings = trained["folder"] / kind, {"output__kind": kind, **KINDS[kind]}
    if not whole.exists():
        lstlm.ok(whole, **settings, train__max_steps=10)
    run = Path(shutil.copytree(whole, tmp_path / "run", symlinks=True))
    folder = run / "checkpoints" / STEP
    tensors = value = dict(torch.load(folder / name, weights_only=True))
    for key in place:
        value = value[key]
    torch.save(changed(tensors, place, harm(value)), tmp_path / "changed")
    reseal(folder, name, (tmp_path / "changed").read_bytes())
    outcomes = [lstlm(run, "--resume", "auto", **settings, train__max_steps=12)]
    outcomes += [lstlm.run("nn", str(run), "w1")] * (name == "network.pt")
    for outcome in outcomes:
        assert outcome.code == 3 and "unexpected" not in outcome.err, outcome
        assert outcome.err.strip().splitlines()[-1].startswith("lstlm: error: ")


@pytest.mark.parametrize("step", [-1, 2**63, 10.0, True])
def test_a_manifest_of_a_senseless_step_is_refused(lstlm: Cli, run: Path, step: object) -> None:
    manifest = run / "checkpoints" / STEP / "manifest.json"
    manifest.write_text(seal({**json.loads(manifest.read_text()), "step": step}))
    outcome = lstlm(run, "--resume", str(manifest.parent), output__kind="factored", train__max_steps=20)
    assert outcome.code == 3 and "makes no sense here" in outcome.err


@pytest.mark.parametrize("value", [True, 1.5, "3", None, -1])
def test_a_position_that_makes_no_sense_is_refused(lstlm: Cli, run: Path, value: object) -> None:
    folder = run / "checkpoints" / STEP
    counters = json.loads((folder / "counters.json").read_text())
    counters["examples"]["offset"] = value
    reseal(folder, "counters.json", json.dumps(counters).encode())
    outcome = lstlm(run, "--resume", "auto", output__kind="factored", train__max_steps=20)
    assert outcome.code == 3 and "the saved data position" in outcome.err


def test_a_document_too_deep_to_be_written_has_no_seal() -> None:
    document: dict[str, Any] = {}
    for _ in range(5000):
        document = {"a": document}
    assert not is_sealed(document, b"")


def test_a_file_outside_the_checkpoint_is_refused(lstlm: Cli, run: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("x")
    manifest = run / "checkpoints" / STEP / "manifest.json"
    changed_one = json.loads(manifest.read_text())
    changed_one["files"]["../../../secret"] = {"bytes": 1, "sha256": hashlib.sha256(b"x").hexdigest()}
    manifest.write_text(seal(changed_one))
    outcome = lstlm.run("nn", str(run), "w1")
    assert outcome.code == 3 and "a file called '../../../secret'" in outcome.err


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("harm", [damage, Path.unlink, lambda path: path.write_text("")])
def test_the_vocabulary_of_a_run_is_mended_from_the_corpus(
    lstlm: Cli, run: Path, corpus: Path, tmp_path: Path, harm: Callable[[Path], object]
) -> None:
    harm(run / "vocab.tsv")
    lstlm.ok(run, "--resume", "auto", output__kind="factored", train__max_steps=20)
    assert (run / "vocab.tsv").read_bytes() == (corpus / "vocab.tsv").read_bytes()
    outcome = lstlm.run("export", str(run), "--format", "word2vec", "--out", str(tmp_path / "vectors.txt"))
    assert outcome.code == 0, outcome.err


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # TensorBoard's
def test_a_run_folder_that_is_removed_is_not_made_again(
    lstlm: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = Learner.step

    def remove(self: Learner, *arguments: Any, **options: Any) -> object:
        if self.examples.state()["batch"] == 15:
            (tmp_path / "run").rename(tmp_path / "elsewhere")  # at once, whatever the writer of checkpoints is at
        return step(self, *arguments, **options)

    monkeypatch.setattr(Learner, "step", remove)
    outcome = lstlm(tmp_path / "run")
    assert outcome.code == 1 and not (tmp_path / "run").exists()
    last = outcome.err.strip().splitlines()[-1]
    assert "No such file or directory" in last and "if the run folder was removed" in last


def test_a_run_folder_that_is_half_removed_is_no_run_that_finishes(
    lstlm: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `rm -r` leaves it that comes upon a checkpoint in the making: not empty when it is to go."""
    step, run = Learner.step, tmp_path / "run"

    def remove(self: Learner, *arguments: Any, **options: Any) -> object:
        if self.examples.state()["batch"] == 15:
            for path in run.iterdir():
                if path.name != "checkpoints":
                    path.unlink()
        return step(self, *arguments, **options)

    monkeypatch.setattr(Learner, "step", remove)
    outcome = lstlm(run)
    assert outcome.code == 1 and not (run / "status.json").exists()
    last = outcome.err.strip().splitlines()[-1]
    assert "config.yaml: No such file or directory" in last and "if the run folder was removed" in last
    monkeypatch.undo()
    lstlm.ok(run, "--resume", "auto")
    assert status(run)["state"] == "finished" and (run / "config.yaml").exists()


def nested(path: Path) -> None:
    path.write_text("[" * 100_000)


@pytest.mark.parametrize("harm", [os.mkfifo, lambda path: path.symlink_to("/dev/zero"), nested])
@pytest.mark.parametrize("name", ["status.json", "environment.json", "corpus.json", "vocab.tsv", "metrics.jsonl"])
def test_files_of_a_run_that_have_no_end_are_not_waited_for(
    lstlm: Cli, run: Path, name: str, harm: Callable[[Path], object]
) -> None:
    (run / name).unlink()
    harm(run / name)
    for command in (["info", str(run)], ["nn", str(run), "w1"]):
        outcome = lstlm.run(*command)
        assert outcome.code in (0, 3) and outcome.err.count("\n") == (outcome.code == 3), outcome.err
    outcome = lstlm(run, "--resume", "auto", output__kind="factored", train__max_steps=12)
    assert outcome.code == 2 if harm is os.mkfifo else outcome.code == 0, outcome.err


def test_a_folder_that_cannot_be_written_is_a_wrong_argument(lstlm: Cli) -> None:
    outcome = lstlm("/proc/sys/run")
    assert outcome.code == 2 and "--run /proc/sys/run: cannot be written (" in outcome.err


def test_a_run_that_is_whole_stays_as_it_was(lstlm: Cli, run: Path) -> None:
    """The tests above would also pass if every checkpoint were refused."""
    lstlm.ok(run, "--resume", "auto", output__kind="factored", train__max_steps=20)
    assert status(run)["step"] == 20
