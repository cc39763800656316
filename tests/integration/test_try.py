"""``hadar try`` on a sound script, and on one for every fault that it names."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hadar_cli.trial.findings import Patience
from hadar_cli.trial.trial import Trial, launch_of
from hadar_cli.trial.words import Check, Status
from tests.integration.test_venv import make_wheel

BROKEN = Path(__file__).parents[1] / "support" / "broken"
PATIENCE = Patience(start_s=90.0, deadline_s=1.0, grace_s=8.0)

# script: the check that it fails, and a part of what it is told
FAULTS = {
    "crashes": ("starts and hands in", "crashed"),
    "no_result": ("starts and hands in", "without leaving a result"),
    "no_checkpoint": ("starts and hands in", "left no checkpoint"),
    "overclaims": ("starts and hands in", "more steps than it was given"),
    "no_steps": ("starts and hands in", "without having done a step"),
    "diverges": ("leaves weights that can be merged", "NaN"),
    "grows": ("leaves weights that can be merged", "do not match"),
    "pickles": ("leaves weights that can be merged", "no safetensors file"),
    "late": ("stops at its deadline", "past its deadline"),
    "deaf": ("leaves when told to", "ignores SIGTERM"),
    "dies": ("leaves when told to", "SIGTERM ends it"),
    "forgets_weights": ("restores its weights", "does not start from the checkpoint"),
    "forgets_momentum": ("restores its optimizer", "starts without it"),
    "same_data": ("trains on its own data", "the same data"),
    "restarts_schedule": ("follows its learning-rate schedule", "starts anew"),
    "forgets_average": (
        "starts and hands in",
        "average holds weights of the shapes of the model's",
    ),
    "asks_within": ("goes on after a merge", "weights change between a forward pass and its"),
    "layer_by_layer": ("trains all that it has", "what a later one trains is never"),
    "own_scheduler": ("starts and hands in", "StepLR moves the learning rate and was not given"),
    "evaluates_steps": ("runs to its end", "100000 steps an epoch and another of 8"),
    "updates_after_the_loop": ("can be followed", "outside of the loop over t.loader"),
    "other_vocabulary": ("trains as by hand", "vocabulary.bin (it is left out by .gitignore)"),
    "own_epochs": ("has its epochs from t.epochs", "only when all is trained"),
    "miscounts": ("counts the job's updates", "another number of updates"),
    "bypasses": ("updates by its optimizer", "without its optimizer"),
    "never_updates": ("updates by its optimizer", "no update happened"),
    "other_under_hadar": ("trains as by hand", "another batch than by hand"),
    "fails_at_the_end": ("runs to its end", "fails after its loop"),
    "never_ends": ("runs to its end", "does not end by itself"),
    "always_saves": ("runs to its end", "asked for its final evaluation"),
}
WARNINGS = {
    "begins_anywhere": ("begins with the same weights", "different weights"),
    "idle": ("learns", "do not change"),
    "unseeded": ("trains as by hand", "not seeded"),
    "counts_by_itself": ("keeps nothing of its own", "best, stopper.bad, stopper.best"),
    "rate_ends": ("restores its optimizer", "its learning rate is 0 there"),
    "schedule_ends": ("stops at its deadline", "beyond the script's own 32 steps"),
    "shuffles_globally": ("trains as by hand", "Shuffled draws from global random numbers"),
}
SOUND = {
    "sound": 14,
    "ema_amp": 16,
    "by_position": 16,
    "keeps_its_state": 16,
}  # script: how many things are looked at


def put_on_trial(script: Path) -> list[Check]:
    return Trial(launch_of(script), lambda check: None, 4, PATIENCE).run()


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> dict[str, list[Check]]:
    """All at once: a trial is mostly waiting. In a folder of their own, which is their project."""
    folder = Path(shutil.copytree(BROKEN, tmp_path_factory.mktemp("try") / "broken"))
    (folder / ".gitignore").write_text("*.bin\n")
    (folder / "words.bin").write_bytes(b"not for git")
    (folder / "vocabulary.bin").write_bytes(bytes(range(20)))
    (folder / "notes.txt").write_text("the user's own")
    before = contents(folder)
    scripts = [folder / f"{name}.py" for name in {**dict.fromkeys(SOUND), **FAULTS, **WARNINGS}]
    with ThreadPoolExecutor(4) as pool:
        tried = pool.map(put_on_trial, scripts)
        found = {script.stem: checks for script, checks in zip(scripts, tried, strict=True)}
    assert contents(folder) == before, "a trial leaves the user's folder as it was"
    return found


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def checks(found: list[Check], status: Status) -> list[Check]:
    return [check for check in found if check.status is status]


@pytest.mark.parametrize(("script", "count"), SOUND.items())
def test_a_sound_script_passes_everything(found, script, count):
    assert [check for check in found[script] if check.status is not Status.PASSED] == []
    assert len(found[script]) == count


@pytest.mark.parametrize("script", FAULTS)
def test_each_fault_is_named_with_its_fix_and_nothing_else_is(found, script):
    name, words = FAULTS[script]
    faults = checks(found[script], Status.FAILED)
    assert [fault.name for fault in faults] == [name], faults
    assert words in faults[0].what
    assert faults[0].fix


@pytest.mark.parametrize("script", WARNINGS)
def test_what_may_be_meant_is_a_warning(found, script):
    name, words = WARNINGS[script]
    assert checks(found[script], Status.FAILED) == []
    assert any(c.name == name and words in c.what for c in checks(found[script], Status.WARNED))


def test_a_file_that_was_read_and_would_not_travel_is_named(found):
    told = checks(found["other_under_hadar"], Status.WARNED)
    (check,) = (check for check in told if check.name == "reads what travels")
    assert "words.bin (it is left out by .gitignore)" in check.what
    assert ".hadarignore" in check.fix


def test_a_script_that_never_stops_is_told_so():
    """Not beside the others: it takes all the time that it is given."""
    hasty = Patience(start_s=3.0, grace_s=2.0)
    told = Trial(launch_of(BROKEN / "stuck.py"), lambda check: None, 4, hasty).run()
    (fault,) = checks(told, Status.FAILED)
    assert fault.name == "starts and hands in"
    assert "neither did its steps nor stopped at its deadline" in fault.what
    assert "HADAR_SECONDS_LEFT" in fault.fix


def test_a_crash_shows_the_end_of_the_log(found):
    (fault,) = checks(found["crashes"], Status.FAILED)
    assert "there is no data set here" in fault.fix


def test_the_command_tells_what_to_mend_and_fails(tmp_path):
    command = [sys.executable, "-m", "hadar_cli.cli.main", "try"]
    told = subprocess.run(
        [*command, str(BROKEN / "no_result.py")], capture_output=True, text=True, cwd=tmp_path
    )
    assert told.returncode == 2
    assert "✗ starts and hands in" in told.stdout
    assert told.stdout.splitlines()[-1] == "no_result.py is not ready: one thing to mend"

    script = tmp_path / "says.py"
    script.write_text("import sys; sys.exit(' '.join(sys.argv[1:]))")
    told = subprocess.run(
        [*command, "--json", "says.py", "--", "--lr", "3"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert told.returncode == 2
    answer = json.loads(told.stdout)
    assert answer["ok"] is False
    assert "--lr 3" in answer["checks"][0]["fix"]


def test_a_script_that_is_not_there_is_refused(tmp_path):
    command = [sys.executable, "-m", "hadar_cli.cli.main", "try", "trian.py"]
    (tmp_path / "train.py").touch()
    told = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert told.returncode == 2
    assert "train.py" in told.stderr


MODULE = """
import os
import sys
from pathlib import Path

import torch

import hadar_test_package
from package.names import SAMPLES
from hadar_cli import training

inside, outside = os.environ["HADAR_DATA"].split(os.pathsep)
assert Path(inside, "a.txt").read_text() == Path("data/a.txt").read_text() == "inside"
assert Path(outside).read_text() == Path("words.txt").read_text() == "outside"
assert os.environ["COLOUR"] == "blue"
assert hadar_test_package.VERSION == 1.5 and "venvs" in sys.prefix
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
with training(model, optimizer, epochs=3) as t:
    for x in t.loader(torch.randn(SAMPLES, 4), batch_size=8):
        t.step((model(x) - x.sum(1, keepdim=True)).pow(2).mean())
"""


def test_a_job_of_a_mix_is_tried_with_its_data_and_packages_and_as_a_module(tmp_path):
    project = tmp_path / "project"
    (project / "package").mkdir(parents=True)
    (project / "package" / "__init__.py").touch()
    (project / "package" / "names.py").write_text("SAMPLES = 64\n")
    (project / "package" / "train.py").write_text(MODULE)
    (project / "data").mkdir()
    (project / "data" / "a.txt").write_text("inside")
    (project / "pyproject.toml").touch()
    (tmp_path / "words.txt").write_text("outside")
    make_wheel(tmp_path / "wheels", "1.5")
    packages = f"--no-index\n--find-links {tmp_path / 'wheels'}\nhadar-test-package\n"
    (project / "packages.txt").write_text(packages)
    (project / "mix.yaml").write_text(
        "jobs: [{module: package.train, steps: 24, data: [data, ../words.txt], "
        "env: {COLOUR: blue}, venv: packages.txt}]"
    )
    words = ["try", "mix.yaml", "--json", "--steps", "4", "--patience", "120"]
    answer = subprocess.run(
        [sys.executable, "-m", "hadar_cli.cli.main", *words],
        cwd=project,
        env={**os.environ, "HOME": str(tmp_path)},  # where this computer keeps environments
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    told = {check["name"]: check for check in json.loads(answer.stdout)["checks"]}
    assert "are the same in 4 updates" in told["trains as by hand"]["what"]
    assert told["reads what travels"]["status"] == "passed"


def test_which_job_of_a_mix_must_be_clear(tmp_path):
    (tmp_path / "a.py").touch()
    mix = tmp_path / "mix.yaml"
    mix.write_text(
        "jobs: [{script: a.py, steps: 1}, {script: a.py, name: b, steps: 1}, {workload: LM}]"
    )

    def told(*words: str) -> str:
        command = [sys.executable, "-m", "hadar_cli.cli.main", "try", str(mix), *words]
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
        assert answer.returncode == 2
        return " ".join(answer.stderr.split())

    assert "has a, b fix: name one with --job: a, b" in told()
    assert "job 'c' is not there" in told("--job", "c")
    assert "arguments are in its mix" in told("--job", "a", "--", "--lr", "1")
