"""``hadar try`` on a sound script, and on one for every fault that it names."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hadar_cli.adapters.trial import Patience, Trial
from hadar_cli.adapters.trial_words import Check, Status

BROKEN = Path(__file__).parents[1] / "support" / "broken"
PATIENCE = Patience(start_s=90.0, deadline_s=1.0, grace_s=3.0, leave_s=3.0)

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
    "own_scheduler": ("follows its learning-rate schedule", "starts anew"),
}
WARNINGS = {
    "begins_anywhere": ("begins with the same weights", "different weights"),
    "idle": ("learns", "do not change"),
}


def put_on_trial(name: str) -> list[Check]:
    return Trial(BROKEN / f"{name}.py", (), lambda check: None, 4, PATIENCE).run()


@pytest.fixture(scope="module")
def found() -> dict[str, list[Check]]:
    """All at once: a trial is mostly waiting."""
    names = ["sound", *FAULTS, *WARNINGS]
    with ThreadPoolExecutor(6) as pool:
        return dict(zip(names, pool.map(put_on_trial, names), strict=True))


def checks(found: list[Check], status: Status) -> list[Check]:
    return [check for check in found if check.status is status]


def test_a_sound_script_passes_everything(found):
    assert [check.name for check in found["sound"] if check.status is not Status.PASSED] == []
    assert len(found["sound"]) == 12


@pytest.mark.parametrize("script", FAULTS)
def test_each_fault_is_named_with_its_fix_and_nothing_else_is(found, script):
    name, words = FAULTS[script]
    (fault,) = checks(found[script], Status.FAILED)
    assert fault.name == name
    assert words in fault.what
    assert fault.fix


@pytest.mark.parametrize("script", WARNINGS)
def test_what_may_be_meant_is_a_warning(found, script):
    name, words = WARNINGS[script]
    assert checks(found[script], Status.FAILED) == []
    assert any(c.name == name and words in c.what for c in checks(found[script], Status.WARNED))


def test_a_script_that_never_stops_is_told_so():
    """Not beside the others: it takes all the time that it is given."""
    hasty = Patience(start_s=3.0, grace_s=2.0)
    told = Trial(BROKEN / "stuck.py", (), lambda check: None, 4, hasty).run()
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
