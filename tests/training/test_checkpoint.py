"""Checkpoints are whole or absent, and a damaged one is told by name."""

import errno
import json
import os
import pickle
import zipfile
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from lstlm.errors import CheckpointError, LstlmError
from lstlm.files import HashingWriter
from lstlm.sealed import seal
from lstlm.spherical import SphericalOutput, make_loss
from lstlm.training.run import checkpoint as module
from lstlm.training.run.checkpoint import (
    Checkpoint,
    newest_valid,
    open_checkpoint,
    prune,
    save_checkpoint,
    step_folders,
    tidy,
)
from lstlm.training.run.shards import load_network

FACTS = {"config_sha256": "c", "vocabulary_sha256": "v"}


def save(root: Path, step: int = 1) -> Path:
    tensors = {"V": torch.arange(5000.0) + step, "nested": {"counts": [1, 2.5, None]}}
    return save_checkpoint(root, step, {"network.pt": tensors, "counters.json": '{"a": 1}'}, FACTS)


def test_round_trip_is_exact(tmp_path: Path) -> None:
    folder = save(tmp_path, 7)
    opened = open_checkpoint(folder)
    assert opened.step == 7 and opened.manifest["vocabulary_sha256"] == "v"
    loaded = opened.tensors("network.pt")
    assert torch.equal(loaded["V"], torch.arange(5000.0) + 7) and loaded["nested"] == {"counts": [1, 2.5, None]}
    assert opened.json("counters.json") == {"a": 1}
    assert os.readlink(tmp_path / "last") == folder.name
    assert sorted(p.name for p in tmp_path.iterdir()) == ["last", folder.name]


@pytest.mark.parametrize("program", [b"Na.", b"N\x85R.", b"q\x01.", b"(u."])  # ask for what is not on the stack
def test_a_pickle_that_makes_no_sense_is_one_line(tmp_path: Path, program: bytes) -> None:
    path = tmp_path / "network.pt"
    torch.save({"V": torch.ones(3)}, path)
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in parts.items():
            archive.writestr(name, b"\x80\x02" + program if name.endswith("data.pkl") else data)
    with pytest.raises(CheckpointError, match=r"network.pt: refused, not a plain file of tensors \([^\n]*\)$"):
        Checkpoint(tmp_path, {"step": 1}).tensors("network.pt")


def test_a_flipped_byte_anywhere_is_found(tmp_path: Path) -> None:
    folder = save(tmp_path)
    for path in sorted(folder.iterdir()):
        good = path.read_bytes()
        for position in {0, len(good) // 3, len(good) // 2, len(good) - 1}:
            bad = bytearray(good)
            bad[position] ^= 0x04
            path.write_bytes(bad)
            with pytest.raises(CheckpointError, match=path.name):
                open_checkpoint(folder)
        path.write_bytes(good)
    open_checkpoint(folder)


@pytest.mark.parametrize("name", ["network.pt", "counters.json", "manifest.json"])
def test_truncated_and_missing_files_are_found(tmp_path: Path, name: str) -> None:
    path = save(tmp_path) / name
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(CheckpointError, match=name):
        open_checkpoint(path.parent)
    path.unlink()
    with pytest.raises(CheckpointError, match=name):
        open_checkpoint(path.parent)


def test_another_format_is_refused(tmp_path: Path) -> None:
    path = save(tmp_path) / "manifest.json"
    manifest = json.loads(path.read_text())
    path.write_text(seal({**manifest, "format": 99}))
    with pytest.raises(CheckpointError, match=f"format 99, this version reads {module.FORMAT}"):
        open_checkpoint(path.parent)


class Exploit:
    """A pickle that would run a command when loaded."""

    def __init__(self, witness: Path) -> None:
        self.witness = witness

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.witness}",)


@pytest.mark.parametrize("form", ["plain pickle", "torch archive"])
def test_a_malicious_pickle_is_refused(tmp_path: Path, form: str) -> None:
    """Even with a manifest whose hashes are right: the loader itself must not run code."""
    witness = tmp_path / "witness"
    evil = tmp_path / "evil.pt"
    if form == "plain pickle":
        evil.write_bytes(pickle.dumps(Exploit(witness)))
    else:
        torch.save({"x": Exploit(witness)}, evil)
    checkpoint = Checkpoint(tmp_path, {"step": 1})
    with pytest.raises(CheckpointError, match="evil.pt: refused"):
        checkpoint.tensors("evil.pt")
    assert not witness.exists()


def test_newest_valid_skips_and_says_why(tmp_path: Path) -> None:
    for step in (1, 2, 3, 10):
        save(tmp_path, step)
    (tmp_path / "step-00000010" / "network.pt").unlink()
    with open(tmp_path / "step-00000003" / "network.pt", "ab") as stream:
        stream.write(b"x")
    found, skipped = newest_valid(step_folders(tmp_path))
    assert found is not None and found.step == 2
    assert [line.split("/")[-2] for line in skipped] == ["step-00000010", "step-00000003"]
    assert "missing" in skipped[0] and "truncated or replaced" in skipped[1]


def test_prune_keeps_the_newest_and_the_best(tmp_path: Path) -> None:
    for step in range(1, 7):
        save(tmp_path, step)
    os.symlink("step-00000002", tmp_path / "best")
    prune(tmp_path, 2)
    assert [p.name for p in step_folders(tmp_path)] == ["step-00000006", "step-00000005", "step-00000002"]


class FullDisk(HashingWriter):
    """A disk with room for one kilobyte more."""

    def write(self, data: bytes | memoryview) -> int:
        if self.size + len(data) > 1024:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().write(data)


def test_a_full_disk_leaves_the_last_good_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, 1)
    with monkeypatch.context() as patch:
        patch.setattr(module, "HashingWriter", FullDisk)
        with pytest.raises(LstlmError) as caught:
            save(tmp_path, 2)
        with pytest.raises(LstlmError, match="No space left"):
            save(tmp_path, 1)  # the same step again: the older one must come back
    message = str(caught.value)
    assert "No space left on device; the last good checkpoint is step-00000001; make room" in message
    assert "\n" not in message
    assert sorted(p.name for p in tmp_path.iterdir()) == ["last", "step-00000001"]
    assert open_checkpoint(tmp_path / "last").step == 1


def test_dev_full_is_reported(tmp_path: Path) -> None:
    """The kernel's own full disk: a file of the checkpoint that goes to /dev/full."""
    save(tmp_path, 1)
    real = os.open, Path.mkdir

    def mkdir(self: Path, *args: Any, **kwargs: Any) -> None:
        real[1](self, *args, **kwargs)
        if self.name.startswith(".writing-"):
            os.symlink("/dev/full", self / "network.pt")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "mkdir", mkdir)
        with pytest.raises(LstlmError, match=r"No space left on device; the last good checkpoint is step-00000001"):
            save(tmp_path, 2)
    assert open_checkpoint(tmp_path / "last").step == 1


def test_last_may_move_on_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, 1)

    def checked(path: Path, record: dict[str, Any]) -> str | None:
        monkeypatch.undo()
        save(tmp_path, 2)
        return module.fault_of(path, record)

    monkeypatch.setattr(module, "fault_of", checked)
    assert open_checkpoint(tmp_path / "last").step == 1
    assert open_checkpoint(tmp_path / "last").step == 2


def test_a_run_folder_that_is_gone_is_not_made_again(tmp_path: Path) -> None:
    with pytest.raises(LstlmError, match="if the run folder was removed or renamed"):
        save(tmp_path / "gone" / "checkpoints")
    assert not (tmp_path / "gone").exists()


def test_tidy_after_a_kill(tmp_path: Path) -> None:
    """Killed while writing or linking, and killed between moving the old folder aside and the new one in."""
    folder = save(tmp_path, 4)
    (tmp_path / ".writing-00000005-1").mkdir()
    (tmp_path / ".last.1.tmp").symlink_to("step-00000005")
    os.rename(folder, tmp_path / f".displaced-{folder.name}")
    tidy(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["last", folder.name]
    assert open_checkpoint(folder).step == 4


def test_tensors_are_written_without_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is made from slices of the tensor's own memory: the writer sees its address range."""
    tensor = torch.zeros(1 << 20)
    seen: list[int] = []

    class Watching(HashingWriter):
        def write(self, data: bytes | memoryview) -> int:
            view = torch.frombuffer(data, dtype=torch.uint8) if len(data) else None
            if view is not None and len(view) == tensor.numel() * 4:
                seen.append(view.data_ptr())
            return super().write(data)

    monkeypatch.setattr(module, "HashingWriter", Watching)
    with pytest.warns(UserWarning, match="not writable|non-writable"):
        save_checkpoint(tmp_path, 1, {"network.pt": {"V": tensor}}, FACTS)
    assert seen == [tensor.data_ptr()]


def test_tensors_that_do_not_fit_are_a_checkpoint_error(tmp_path: Path) -> None:
    class Saved:
        folder = tmp_path / "step-1"
        manifest: ClassVar[dict[str, int]] = {"world": 1}

        def tensors(self, name: str) -> dict[str, torch.Tensor]:
            return {"weight": torch.zeros(2, 2), "bias": torch.zeros(2)}

    with pytest.raises(CheckpointError, match=r"step-1: written by another version"):
        load_network(torch.nn.Linear(3, 2), Saved())


def test_a_history_of_another_shape_is_a_checkpoint_error_at_any_number_of_ranks(tmp_path: Path) -> None:
    layer = torch.nn.ModuleDict({"output": SphericalOutput(4, 30, make_loss("z"), stabilise="lazy")})
    saved = {key: x[:, :3] if key.endswith("history.X") else x for key, x in layer.state_dict().items()}

    class Saved:
        folder = tmp_path / "step-1"
        manifest: ClassVar[dict[str, int]] = {"world": 1}

        def tensors(self, name: str) -> dict[str, torch.Tensor]:
            return dict(saved)

    for world in (1, 2):
        with pytest.raises(CheckpointError, match=r"step-1: written by another version, does not fit: .*size mismatch"):
            load_network(layer, Saved(), 0, world)
