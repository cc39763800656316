"""The command line's own small decisions; whole commands are tested end to end."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from hadar_cli.api import _run_id
from hadar_cli.cli import main as command_line
from hadar_cli.cli.examples import EXAMPLES
from hadar_cli.cli.machines.profile import error_factor
from hadar_cli.cli.options import preset_note, read_inventory, require_file
from hadar_cli.cli.policy_options import parse_policy
from hadar_cli.core.model import (
    Device,
    Gpu,
    Job,
    Launch,
    Mix,
    Node,
    PolicyChoice,
    are_accelerators,
)
from hadar_cli.errors import HadarError, InputError, RunLockedError, StorageError
from hadar_cli.runs.store import RunFacts, RunStore, is_finished

GPU = Device("a", "a", 0, Gpu("T4", 65, 16))
STAND_IN = Device("b", "b", 0, Gpu("T4", 65, 16), emulated_speed=0.2)
CPU = Device("c", "c", 0, None)


def test_policy_option_carries_typed_fields() -> None:
    assert parse_policy("hadare") == PolicyChoice("hadare")
    choice = parse_policy("hadare:stickiness=0.1,headroom=2,other=true,word=x")
    assert choice.fields == {"stickiness": 0.1, "headroom": 2, "other": True, "word": "x"}
    with pytest.raises(InputError, match="field=value"):
        parse_policy("hadare:stickiness")


def test_run_ids_are_unique_and_safe(tmp_path: Path) -> None:
    assert _run_id(tmp_path, None, "m5-1116-0342") == "m5-1116-0342"
    (tmp_path / "m5-1116-0342").mkdir()
    (tmp_path / "m5-1116-0342-2").mkdir()
    assert _run_id(tmp_path, None, "m5-1116-0342") == "m5-1116-0342-3"
    assert _run_id(tmp_path, "mine", "m5") == "mine"
    (tmp_path / "m5-1116-0342" / "run.json").touch()
    for name in ("m5-1116-0342", "../up", "", "-x", "a/b"):
        with pytest.raises(InputError):
            _run_id(tmp_path, name, "m5")


def test_a_missing_file_gets_the_nearest_one(tmp_path: Path) -> None:
    (tmp_path / "m5.yaml").touch()
    (tmp_path / "m5.toml").touch()
    with pytest.raises(InputError) as caught:
        require_file(tmp_path / "m6.yaml")
    assert caught.value.fix == f"did you mean {tmp_path / 'm5.yaml'}?"
    with pytest.raises(InputError) as caught:
        require_file(tmp_path / "nowhere" / "m6.yaml")
    assert caught.value.fix == "check the path"


def test_disabled_nodes_take_no_part(tmp_path: Path) -> None:
    path = tmp_path / "nodes.toml"
    path.write_text(
        '[defaults]\nhost = "local"\n[[node]]\nname = "a"\n[[node]]\nname = "b"\nenabled = false\n'
    )
    assert [node.name for node in read_inventory(path)] == ["a"]


def test_presets_follow_the_devices() -> None:
    assert are_accelerators([GPU])
    assert not are_accelerators([GPU, STAND_IN])
    assert not are_accelerators([GPU, CPU])
    tiny = Mix("m", (Job(0, "j", 1, 1, launch=Launch(workload="weather", preset="tiny")),))
    script = Mix("m", (Job(0, "j", 1, 1, launch=Launch(script="x.py")),))
    assert "tiny" in str(preset_note(tiny, [CPU]))
    assert preset_note(tiny, [GPU]) is None
    assert preset_note(script, [CPU]) is None


def test_error_factor_counts_both_ways() -> None:
    assert error_factor(2.0, 6.0) == error_factor(6.0, 2.0) == 3.0
    assert error_factor(2.0, None) is None


def test_a_run_without_an_end_is_unfinished(tmp_path: Path) -> None:
    facts = RunFacts("r", Mix("m", (Job(0, "j", 1, 1),)), (), "now", "0")
    assert not is_finished(RunStore.create(tmp_path, facts))


# -- errors become messages and exit codes -------------------------------------------------------


def fail(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> tuple[object, str]:
    """What the command line makes of an error that a command raises."""

    def app(prog_name: str) -> None:
        raise error

    monkeypatch.setattr(command_line, "app", app)
    with pytest.raises(SystemExit) as left:
        command_line.main()
    return left.value.code, capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (
            InputError("is wrong", file="m.yaml", line=3, field="jobs[0]", fix="mend it"),
            2,
            "error: m.yaml:3: jobs[0]: is wrong\nfix: mend it\n",
        ),
        (RunLockedError("taken"), 5, "error: taken\n"),
        (StorageError("full"), 6, "error: full\n"),
        (HadarError("odd"), 1, "error: odd\n"),
        (InputError("two\nlines \x1b[31m[bold]"), 2, "error: two\n     lines [bold]\n"),
    ],
)
def test_an_error_is_one_message_and_its_exit_code(
    error: HadarError,
    code: int,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert fail(error, monkeypatch, capsys) == (code, message)


def test_a_bug_shows_its_traceback_only_when_asked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, message = fail(ZeroDivisionError("oh"), monkeypatch, capsys)
    assert code == 1
    assert "unexpected ZeroDivisionError: oh" in message and "--debug" in message
    assert "Traceback" not in message
    monkeypatch.setattr(command_line, "_shows_tracebacks", False)  # and so again afterwards
    command_line.hadar(debug=True)
    assert "Traceback" in fail(ZeroDivisionError("oh"), monkeypatch, capsys)[1]


def test_the_command_line_starts_without_heavy_imports() -> None:
    code = (
        "import sys, hadar_cli.cli.main;"
        "print(*{'torch', 'highspy', 'numpy', 'yaml', 'msgspec'} & set(sys.modules))"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (answer.returncode, answer.stdout.strip()) == (0, ""), answer.stderr


# -- help and completion -------------------------------------------------------------------------


def commands() -> Iterator[str]:
    """Every command that has no commands of its own."""
    root = typer.main.get_command(command_line.app)
    for name, command in root.commands.items():  # type: ignore[attr-defined]
        for inner in getattr(command, "commands", {}):
            yield f"{name} {inner}"
        if not hasattr(command, "commands"):
            yield name


def test_every_command_has_examples_and_every_example_a_command() -> None:
    assert {*commands()} == EXAMPLES.keys() - {""}


@pytest.mark.parametrize(
    "line", [line for examples in EXAMPLES.values() for line in examples], ids=str
)
def test_examples_are_lines_that_hadar_understands(line: str) -> None:
    """--help comes first, but options that do not exist are refused all the same."""
    words = shlex.split(line.partition("|")[0].partition("2>")[0])[1:]
    end = words.index("--") if "--" in words else len(words)
    result = CliRunner().invoke(command_line.app, [*words[:end], "--help"])
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize("command", ["", *commands()])
def test_help_fits_80_columns_and_calls_no_switch_a_bool(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    result = CliRunner().invoke(command_line.app, [*command.split(), "--help"])
    assert result.exit_code == 0
    assert max(len(line.rstrip()) for line in result.output.splitlines()) <= 80
    assert "<bool>" not in result.output
    assert f"hadar {command}".strip() in result.output.rpartition("Example")[2]


def test_hadar_alone_shows_the_help() -> None:
    assert "Usage: " in CliRunner().invoke(command_line.app, []).output


def complete(line: str, cwd: Path) -> list[str]:
    """What bash would be offered at the end of this line."""
    env = os.environ | {
        "_HADAR_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(line.split(" ")) - 1),
    }
    command = [sys.executable, "-c", "from hadar_cli.cli.main import main; main()"]
    answer = subprocess.run(command, env=env, cwd=cwd, capture_output=True, text=True)
    return answer.stdout.split()


def test_the_shell_completes_runs_policies_nodes_and_jobs(tmp_path: Path) -> None:
    jobs, nodes = (Job(0, "weather", 1, 1),), (Node("fermi", "local"),)
    for name in ("first", "second"):
        facts = RunFacts(name, Mix("m", jobs), nodes, "now", "0")
        RunStore.create(tmp_path / "runs", facts)
    (tmp_path / "nodes.toml").write_text('[[node]]\nname = "curie"\nhost = "local"\n')
    assert complete("hadar sta", tmp_path) == ["status"]
    assert complete("hadar status fi", tmp_path) == ["first"]
    assert {*complete("hadar resume ", tmp_path)} == {"first", "second"}
    assert complete("hadar status --runs-dir elsewhere ", tmp_path) == []
    assert complete("hadar run m.yaml --policy tir", tmp_path) == ["tiresias"]
    assert complete("hadar nodes trust ", tmp_path) == ["curie"]
    assert complete("hadar logs ", tmp_path) == ["weather"]
    assert complete("hadar logs weather --node f", tmp_path) == ["fermi"]


# -- what travels --------------------------------------------------------------------------------


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository whose .gitignore names its data, as nanoGPT's does; the current directory."""
    for name in (".git/HEAD", "train.py", "meta.pkl", "data/train.bin"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(bytes(2000))
    (tmp_path / ".gitignore").write_text("*.bin\nmeta.pkl\n")
    (tmp_path / "mix.yaml").write_text("jobs: [{script: train.py, steps: 5}]")
    (tmp_path / "nodes.toml").write_text('[[node]]\nname = "me"\nhost = "local"\n')
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_dry_run_tells_what_travels_and_what_an_ignore_file_keeps_behind(
    repository: Path,
) -> None:
    answer = CliRunner().invoke(command_line.app, ["run", "mix.yaml", "--dry-run"])
    assert answer.exit_code == 0, answer.output
    said = " ".join(answer.output.split())
    assert f"project folder {repository} (by its .git): 4 files" in said
    assert "left out, .gitignore: 2 files, 4.0 kB: data/train.bin 2.0 kB, meta.pkl 2.0 kB" in said


def test_a_project_of_gigabytes_is_refused_before_anything_is_made(repository: Path) -> None:
    (repository / "weights.pt").touch()
    os.truncate(repository / "weights.pt", 2 << 30)
    answer = CliRunner().invoke(command_line.app, ["run", "mix.yaml"])
    error = answer.exception
    assert isinstance(error, InputError)
    assert "2.1 GB" in str(error) and "weights.pt" in str(error)
    assert not (repository / "runs").exists()


CARDS = """
[[node]]
name = "large"
host = "local"
emulate = {speed = 0.5}
gpus = [{ model = "RTX 3090" }]
[[node]]
name = "small"
host = "local"
emulate = {speed = 0.1}
gpus = [{ model = "T400" }]
"""


@pytest.mark.parametrize(("needs_gb", "code"), [(8, 0), (99, 2)])
def test_a_dry_run_tells_which_cards_are_too_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, needs_gb: int, code: int
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nodes.toml").write_text(CARDS)
    (tmp_path / "mix.yaml").write_text(
        f"jobs:\n  - {{workload: weather, epochs: 1, min_vram_gb: {needs_gb}}}\n"
    )
    answer = CliRunner().invoke(command_line.app, ["run", "mix.yaml", "--dry-run"])
    if code == 0:
        assert answer.exit_code == 0, answer.output
        assert "weather is not given to small: under 8 GB." in answer.output
    else:
        assert isinstance(answer.exception, InputError)
        assert "job 'weather' needs 99 GB, and no device has as much" in str(answer.exception)
