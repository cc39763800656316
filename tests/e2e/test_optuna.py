"""A sweep whose points the real Optuna suggests: asked and told by exact steps, over a stop."""

from __future__ import annotations

import sys

import pytest

from hadar_cli import api, search
from hadar_cli.config import sweeps
from hadar_cli.core import events
from hadar_cli.core.job_state import JobState
from hadar_cli.core.model import Search
from hadar_cli.errors import InputError
from hadar_cli.runs.store import find_run, read_journal
from hadar_cli.suggestions import suggest
from tests.e2e.test_kill import TRAIN

NODES = [{"name": name, "host": "local"} for name in ("one", "two")]
SPACE = {
    "env.RATE": ("log", (0.0001, 0.5)),
    "width": ("int", (1.0, 8.0)),
    "act": ("choice", ("a", "b")),
}
SEARCH = Search(SPACE, "mse", trials=12, at_once=4, seed=3)


def fields(**more: object) -> dict[str, object]:
    sample = {"env.RATE": {"log": [0.0001, 0.5]}, "width": {"int": [1, 8]}}
    job = {"script": "train.py", "name": "fit", "steps": 40, "batch_size": 8, "args": ["--x", "1"]}
    swept = {"sample": sample, "trials": 4, "optuna": {"metric": "mse", "at_once": 2}}
    return {"slot_s": 3, "seed": 7, "jobs": [{**job, **swept, **more}]}


@pytest.fixture
def folder(tmp_path):
    script = TRAIN.replace("1e-2", 'float(os.environ["RATE"])')
    (tmp_path / "train.py").write_text(script.replace("import time", "import os, time"))
    return tmp_path


def test_trials_are_asked_for_once_and_told_what_they_came_to(folder):
    mix, runs = api.mix(fields(), folder=folder), folder / "runs"
    assert [job.name for job in mix.jobs] == ["fit-1", "fit-2"]
    run = api.run(mix, api.nodes(NODES), name="sweep", runs_dir=runs)
    for event in run:
        if isinstance(event, events.JobsAdded):
            break  # the head leaves as soon as the next two are in the journal
    report = api.resume("sweep", runs_dir=runs).wait()
    assert [row["steps_done"] for row in report.jobs] == [40] * 4
    assert [row["name"] for row in report.trials] == ["fit-1", "fit-2", "fit-3", "fit-4"]
    journal = read_journal(find_run(runs, "sweep").journal_path)
    assert [e.request for e in journal if isinstance(e, events.JobsAdded)] == ["optuna-fit-2"]
    # What was added is what Optuna answers to what the journal says, whoever asks it again.
    first = find_run(runs, "sweep").facts.mix.jobs[0]
    told = [(_point(row), row["value"]) for row in report.trials]
    assert suggest(first.trial.search, False, told[:2]) == [point for point, _ in told[2:]]
    best = min(report.trials, key=lambda row: row["value"])
    assert report.best == {"fit": best["name"]}


def _point(row: dict[str, object]) -> dict[str, object]:
    return {name: row[name] for name in ("env.RATE", "width")}


def test_the_same_question_has_the_same_answer_within_the_ranges():
    told: list[tuple[dict[str, object], float | None]] = []
    while len(told) < SEARCH.trials:
        points = suggest(SEARCH, False, told)
        assert points == suggest(SEARCH, False, told)
        for point in points:
            assert 0.0001 <= point["env.RATE"] <= 0.5 and 1 <= point["width"] <= 8
            is_bad = point["act"] == "b"
            told.append((point, None if is_bad else abs(point["env.RATE"] - 0.01)))
    assert len({str(point) for point, _ in told}) > 8  # they are not all alike


def test_a_trial_is_made_of_its_base_and_back(folder):
    (one, _) = api.mix(fields(), folder=folder).jobs
    base = sweeps.base_of(one)
    assert (base.name, base.launch.args, base.trial) == ("fit", ("--x", "1"), None)
    assert "RATE" not in base.launch.env and one.fork == 1


def test_no_more_is_asked_for_where_nothing_can_be_learned(folder):
    trials = [JobState(job) for job in api.mix(fields(), folder=folder).jobs]
    wanted = trials[0].job.trial.search
    trials[0].quality, trials[1].quality = {"loss": 1.0}, None
    assert search._hopeless(wanted, trials) == "none of the 2 reports 'mse', only loss"
    trials[1].quality = {"mse": 2.0}
    assert search._hopeless(wanted, trials) == ""
    trials[1].is_cancelled = True
    assert search._hopeless(wanted, trials)


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ({"promote": {"metric": "mse"}}, r"optuna: cannot stand beside 'promote'"),
        ({"grid": {"lr": [1, 2]}}, r"optuna: cannot stand beside 'grid'"),
        ({"optuna": {"metric": "zing"}}, r"whether more of 'zing' is better is not known"),
        ({"optuna": {}}, r"'metric' is missing"),
        ({"optuna": {"metric": "mse", "at_once": 0}}, r"at_once: is out of range"),
    ],
)
def test_what_does_not_go_together_is_refused(folder, more, problem):
    with pytest.raises(InputError, match=problem):
        api.mix(fields(**more), folder=folder)


def test_without_optuna_the_way_to_get_it_is_told(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(InputError, match="Optuna is not installed here") as refused:
        api.mix(fields(), folder=folder)
    assert "hadar[optuna]" in refused.value.fix
