"""The frame of the command line: speed of --help, help for all, one line an error, exit codes, pipes."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from lstlm import __version__
from lstlm.cli import COMMANDS, cli, common
from lstlm.cli.outcome import NO_THREAD, OUT_OF_MEMORY
from lstlm.errors import CheckpointError, ConfigError, DataError, NumericsError
from tests.helpers import PATIENCE_S

LSTLM = [sys.executable, "-m", "lstlm"]


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, list(arguments))


def walk(command: click.Command, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yield a command and all that is below it, each with the words that call it."""
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None
            yield from walk(child, (*path, name))


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> list[BaseException]:
    """Make `lstlm env` raise the exception that the test puts into the list."""
    raised: list[BaseException] = []

    def fail() -> None:
        raise raised[0]

    monkeypatch.setattr("lstlm.environment.describe", fail)
    return raised


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["config", "--help"], ["trian"], ["train", "--help"]])
def test_help_does_not_import_torch(arguments: list[str]) -> None:
    code = (
        "import sys\nfrom lstlm.cli import cli\n"
        f"try: cli.main({arguments!r})\nexcept SystemExit: pass\n"
        "heavy = {'torch', 'numpy', 'tensorboard', 'tqdm'} & set(sys.modules)\n"
        "assert not heavy, f'imported: {heavy}'"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_import_lstlm_is_lazy_and_complete() -> None:
    code = "import sys, lstlm; assert 'torch' not in sys.modules; assert 'SphericalOutput' in dir(lstlm)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
    import lstlm

    for name in lstlm.__all__:
        assert getattr(lstlm, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'Sferical'"):
        _ = lstlm.Sferical


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_and_an_example(name: str) -> None:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    for path, part in walk(command, (name,)):
        assert part.help, f"lstlm {' '.join(path)} has no help"
        result = run(*path, "--help")
        assert result.exit_code == 0, result.stderr
        example = result.stdout.partition("Example")[2]
        assert f"lstlm {' '.join(path)}" in example, f"lstlm {' '.join(path)} --help shows no example of itself"
        for option in part.params:
            if isinstance(option, click.Option) and not option.hidden:
                assert option.help, f"lstlm {' '.join(path)}: {option.opts[0]} is not explained"


@pytest.mark.parametrize("group", [(), ("eval",), ("bench",), ("config",)])
def test_the_line_about_a_command_is_whole(group: tuple[str, ...]) -> None:
    lines = run(*group, "--help").stdout.partition("Commands:")[2].partition("Example")[0].split("\n")
    assert len(lines) > 4 and not any(line.endswith("...") for line in lines)


def test_the_table_is_the_folder() -> None:
    folder = Path(common.__file__).parent
    modules = {path.stem for path in folder.glob("*.py") if "\ndef command(" in path.read_text(encoding="utf-8")}
    assert modules == set(COMMANDS)


def test_version_and_no_arguments() -> None:
    assert run("--version").stdout == f"lstlm {__version__}\n"
    assert run().exit_code == 0
    assert run().stdout == run("--help").stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["trian"], "unknown command 'trian'; did you mean 'train'? (see 'lstlm --help')"),
        (["zebra"], f"unknown command 'zebra'; known: {', '.join(COMMANDS)} (see 'lstlm --help')"),
        (["--zebra"], "No such option '--zebra'. (see 'lstlm --help')"),
        (["env", "--jsn"], "No such option '--jsn'. Did you mean '--json'? (see 'lstlm env --help')"),
        (["config", "shwo"], "No such command 'shwo'. Did you mean 'show'? (see 'lstlm config --help')"),
        (["env", "extra"], "Got unexpected extra argument (extra) (see 'lstlm env --help')"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_2(arguments: list[str], message: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.replace("'. (see", "' (see") == f"lstlm: error: {message}\n".replace("'. (see", "' (see")


def test_a_group_without_a_command_shows_its_help_on_stderr() -> None:
    result = run("config")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "Usage: lstlm config" in result.stderr


@pytest.mark.parametrize(
    ("error", "line", "code"),
    [
        (ConfigError("train.lr: 0 is not above 0"), "train.lr: 0 is not above 0", 2),
        (DataError("corpus: damaged"), "corpus: damaged", 3),
        (CheckpointError("step-3: damaged"), "step-3: damaged", 3),
        (NumericsError("step 7: diverged"), "step 7: diverged", 4),
        (ValueError("a\n b"), "unexpected ValueError: a b; run again with --debug for details", 1),
        (MemoryError(), OUT_OF_MEMORY, 1),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: 9 bytes"), OUT_OF_MEMORY, 1),
        (RuntimeError("std::bad_alloc"), OUT_OF_MEMORY, 1),
        (OSError(12, "Cannot allocate memory", "x/y"), OUT_OF_MEMORY, 1),
        (RuntimeError("can't start new thread"), NO_THREAD, 1),
        (OSError(28, "No space left", "x/y"), "x/y: No space left; run again with --debug for details", 1),
        (BrokenPipeError(32, "Broken pipe"), "Broken pipe; run again with --debug for details", 1),
        (KeyboardInterrupt(), "interrupted", 130),
        (SystemExit(143), None, 143),
        (SystemExit("no"), "no", 1),
        (SystemExit(None), None, 0),
        (click.exceptions.Exit(4), None, 4),
    ],
)
def test_every_outcome_has_its_line_and_code(
    failing: list[BaseException], error: BaseException, line: str | None, code: int
) -> None:
    failing.append(error)
    result = run("env")
    assert result.exit_code == code
    assert result.stdout == ""
    assert result.stderr == ("" if line is None else f"lstlm: error: {line}\n")


def test_out_of_memory_is_said_where_saying_it_takes_some(
    failing: list[BaseException], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def echo(*_: object, **__: object) -> None:
        raise MemoryError

    failing.append(MemoryError())
    monkeypatch.setattr(click, "echo", echo)
    with pytest.raises(SystemExit) as leave:
        cli.main(["env"])
    assert leave.value.code == 1 and capfd.readouterr().err == f"lstlm: error: {OUT_OF_MEMORY}\n"


def test_an_error_of_many_problems_is_one_line_each(failing: list[BaseException]) -> None:
    failing.append(ConfigError("a: 1\nb: 2"))
    assert run("env").stderr == "lstlm: error: a: 1\nlstlm: error: b: 2\n"


@pytest.mark.parametrize("arguments", [["--debug", "env"], ["env", "--debug"]])
def test_debug_shows_the_traceback_wherever_it_stands(failing: list[BaseException], arguments: list[str]) -> None:
    failing.append(ValueError("deep"))
    result = run(*arguments)
    assert result.exit_code == 1
    assert "Traceback (most recent call last)" in result.stderr
    assert result.stderr.endswith("lstlm: error: unexpected ValueError: deep\n")


@pytest.mark.parametrize(
    ("arguments", "seen"),
    [
        (["env"], ["info", "warning", "said"]),
        (["-v", "env"], ["debug", "info", "warning", "said"]),
        (["env", "-v"], ["debug", "info", "warning", "said"]),
        (["--quiet", "env"], ["warning"]),
        (["env", "--quiet"], ["warning"]),
    ],
)
def test_verbosity(monkeypatch: pytest.MonkeyPatch, arguments: list[str], seen: list[str]) -> None:
    import logging

    def talk() -> None:
        logger = logging.getLogger("lstlm.somewhere")
        for level in ("debug", "info", "warning"):
            getattr(logger, level)(level)
        common.say("said")
        raise SystemExit(0)

    monkeypatch.setattr("lstlm.environment.describe", talk)
    assert run(*arguments).stderr.split() == seen


def test_json_is_never_nan() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        common.print_json({"loss": float("nan")})


def test_head_closes_the_pipe_without_a_word() -> None:
    # `sh` reads one line and leaves; the writer then has far more to say than a pipe holds.
    files = " ".join(["configs/tiny.yaml"] * 5000)
    command = f"'{sys.executable}' -m lstlm config validate {files} | head -1"
    root = Path(__file__).parents[2]
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, cwd=root)
    assert done.stdout == "configs/tiny.yaml: valid\n"
    assert done.stderr == ""


def test_a_reader_that_left_before_the_first_word_is_no_failure() -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run([*LSTLM, "config", "show"], stdout=write, stderr=subprocess.PIPE, text=True)
    os.close(write)
    assert (done.returncode, done.stderr) == (0, "")


def test_closed_stdout_gives_no_traceback() -> None:
    done = subprocess.run(["sh", "-c", f"'{sys.executable}' -m lstlm config show >&-"], capture_output=True, text=True)
    assert "Traceback" not in done.stderr
    assert done.returncode in (0, 1)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
def test_a_full_disk_behind_stdout_is_reported() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run([*LSTLM, "config", "show"], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1
    what = "the standard output cannot be written: No space left on device"
    assert done.stderr == f"lstlm: error: {what}; give it another place\n"


SLEEPER = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever runs the tests may ignore it
import lstlm.environment
from lstlm.cli import cli
def describe():
    print("ready", file=sys.stderr, flush=True)
    try:
        time.sleep(600)
    finally:
        print("cleaned", file=sys.stderr, flush=True)
lstlm.environment.describe = describe
cli.main(["env"])
"""


@pytest.mark.parametrize(
    ("number", "code", "last"),
    [(signal.SIGINT, 130, "lstlm: error: interrupted\n"), (signal.SIGTERM, 143, "cleaned\n")],
)
def test_signals_unwind_and_set_the_exit_code(number: signal.Signals, code: int, last: str) -> None:
    process = subprocess.Popen([sys.executable, "-c", SLEEPER], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert process.stderr.readline() == "ready\n"
    time.sleep(0.05)  # let it enter sleep(); either way the outcome is the same
    process.send_signal(number)
    _, rest = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == code
    assert rest.startswith("cleaned\n")
    assert rest.endswith(last)


IMPORTER = """
import os, signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever runs the tests may ignore it
sys.path.insert(0, sys.argv[1])
import lstlm.environment
from lstlm.cli import cli
def describe():
    import signalled
    time.sleep(600)
lstlm.environment.describe = describe
cli.main(["env"])
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_during_an_import_waits_for_its_end(number: signal.Signals, code: int, tmp_path: Path) -> None:
    module = f"import os\nos.kill(os.getpid(), {int(number)})\nprint('imported', flush=True)\n"
    (tmp_path / "signalled.py").write_text(module)
    done = subprocess.run(
        [sys.executable, "-c", IMPORTER, tmp_path], capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert (done.returncode, done.stdout) == (code, "imported\n")


def test_shell_completion_knows_the_commands() -> None:
    environment = {**os.environ, "_LSTLM_COMPLETE": "bash_complete", "COMP_WORDS": "lstlm ex", "COMP_CWORD": "1"}
    done = subprocess.run(LSTLM, env=environment, capture_output=True, text=True)
    assert done.stdout.split() == ["plain,export"]


FAILING = """
import atexit, sys
from pathlib import Path
import torch
import lstlm.environment
from lstlm.cli import cli
from lstlm.distributed import RankLost, Ranks
atexit.register(print, "the interpreter ended")
def threads():
    return [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
def describe():
    ranks = Ranks.through_file(Path(sys.argv[1]) / "store", 0, 1, torch.device("cpu"), 60.0)
    print("said before")
    if sys.argv[2] == "closed":
        torch.optim.Adagrad([torch.zeros(1, requires_grad=True)])
        ranks.close()
        print(*(name for name in threads() if name.startswith(("gloo", "pt_gloo"))))
    raise RankLost("the others are gone")
lstlm.environment.describe = describe
cli.main(["env"])
"""


@pytest.mark.parametrize(("group", "out"), [("open", ""), ("closed", "\nthe interpreter ended\n")])
def test_a_failure_among_ranks_has_our_exit_code(group: str, out: str, tmp_path: Path) -> None:
    """The threads of a group that nobody closed must not live to see the interpreter end: they abort.

    Those of a closed one have ended, also where an optimiser was made meanwhile, which imports what would keep it.
    """
    command = [sys.executable, "-c", FAILING, str(tmp_path), group]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert (done.returncode, done.stdout) == (1, f"said before\n{out}")
    assert done.stderr == "lstlm: error: the others are gone\n"
