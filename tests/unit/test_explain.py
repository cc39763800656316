"""``hadar explain``: the reasons are those of the journal, in words."""

import json

import pytest
from typer.testing import CliRunner

from hadar_cli.cli.main import app
from hadar_cli.core import events as e
from hadar_cli.core.reasons import Absence, Loss
from hadar_cli.errors import InputError
from hadar_cli.runs.requests import Inbox, PauseJobs
from hadar_cli.runs.store import RunFacts, RunStore, find_run
from tests.support.runs import FileJournal
from tests.support.worlds import make_mix, make_nodes

STORY = (
    e.HeadStarted(0.0, 1),
    e.CopyStarted(0.0, "x", 0, 1, "a", 1, 0, ((0, 5),)),
    e.CopyLost(3.0, "x", "it exited with code 1: no such file", reason=Loss.EXITED),
    e.PairAvoided(3.0, 0, "a", "it failed there 4 times in a row"),
    e.CopyStarted(4.0, "y", 1, 2, "b", 1, 0, ((0, 5),)),
    e.DeviceLost(5.0, "c", "no route to host", Absence.GONE),
    e.JobsPaused(6.0, (2,), "1"),
    e.PriorityChanged(6.0, (1,), 4, "2"),
    e.DeviceWanted(7.0, "a", ("run x of eve",)),
    e.DeviceWanted(8.0, "b", ("run night of ada",)),
    e.DeviceWanted(9.0, "a", ()),
)


@pytest.fixture
def run(tmp_path):
    nodes = make_nodes({"a": 1.0, "b": 0.5, "c": 0.2})
    store = RunStore.create(tmp_path, RunFacts("r", make_mix([100, 50, 30]), nodes, "", "0"))
    journal = FileJournal(store.journal_path)
    for event in STORY:
        journal.append(event)
    journal.close()
    return store


def explained(store, *arguments):
    folder = str(store.directory.parent)
    result = CliRunner().invoke(app, ["explain", "r", *arguments, "--runs-dir", folder, "--json"])
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    return {one["name"]: " ".join(one["why"]) for one in (*told["jobs"], *told["devices"])}, told


def test_who_shares_a_device_is_told(run):
    why, _ = explained(run)
    assert why["b"].endswith("shared by turns with run night of ada")
    assert "eve" not in why["a"]  # that run is over


def test_jobs_and_devices_are_explained(run):
    why, told = explained(run)
    assert "nobody drives the run" in why["job-0"]
    assert "not given to a: it failed there 4 times" in why["job-0"]
    assert "a copy on a was lost" in why["job-0"] and "no such file" in why["job-0"]
    assert "waits at 0 of 50 steps: nobody" in why["job-1"] and "priority 4" in why["job-1"]
    assert "hadar continue r job-2" in why["job-2"]
    assert why["c"] == "not used: no route to host"
    assert "its copy of job-1 ends by itself" in why["b"] and why["a"].startswith("idle")
    assert any("job-1" in line for line in told["next_round"])
    assert not any("job-2" in line or line.startswith("c") for line in told["next_round"])


def test_a_copy_that_was_called_back_is_not_lost(run):
    journal = FileJournal(run.journal_path)
    journal.append(e.JobsPaused(10.0, (1,), "3"))
    journal.append(e.CopyLost(11.0, "y", "released", reason=Loss.TERMINATED))
    journal.append(e.JobsContinued(12.0, (1,), "4"))
    journal.close()
    why, _ = explained(run)
    assert "was lost" not in why["job-1"] and "was lost" in why["job-0"]


def test_one_job_alone(run):
    why, told = explained(run, "job-2")
    assert list(why) == ["job-2"] and not told["devices"] and not told["next_round"]


def said(store, *arguments):
    folder = str(store.directory.parent)
    return CliRunner().invoke(app, [*arguments, "--runs-dir", folder]).output


def test_a_run_that_goes_on_tells_who_trains_where(run):
    with run.locked():
        why, _ = explained(run)
        assert "goes on: round 0" in said(run, "explain")  # the newest run
    assert "trains on b" in why["job-1"] and why["b"].startswith("trains job-1")


def test_a_stopped_run_tells_of_requests_that_wait(run):
    Inbox(run).put(PauseJobs(("job-1",)))
    assert "it takes up 1 request" in said(run, "status", "r")
    told = said(run, "explain", "r")
    assert "stands still, nobody drives it: hadar resume r; it will take up 1 request" in told


def test_a_run_that_is_over_tells_no_plans(run):
    journal = FileJournal(run.journal_path)
    journal.append(e.JobsCancelled(10.0, (0, 1, 2), "3"))
    journal.append(e.RunFinished(11.0))
    journal.close()
    _, told = explained(run)
    assert not told["devices"] and not told["next_round"]
    assert "run r is over: hadar report r" in said(run, "explain", "r")


def test_a_job_given_for_a_run_is_known_as_one(run):
    with pytest.raises(InputError) as told:
        find_run(run.directory.parent, "job-1")
    assert told.value.fix == "it is a job of run 'r': name the run first"
