"""What a run is doing, read from its journal."""

import os
import time

import pytest
from typer.testing import CliRunner

from hadar_cli.cli.main import app
from hadar_cli.cli.runs.status import read_status
from hadar_cli.core import events
from hadar_cli.core.model import Job, Mix, Node
from hadar_cli.errors import InputError, StorageError
from hadar_cli.report.live.follower import JournalFollower
from hadar_cli.report.live.live_state import LiveState
from hadar_cli.runs.store import FileJournal, RunFacts, RunStore

JOBS = (Job(0, "weather", 100, 8), Job(1, "language", 200, 8))
NODES = (Node("fast", "local"), Node("slow", "local"), Node("far", "local"))
UNDER_WAY = [
    events.HeadStarted(0.0, 1),
    events.RoundPlanned(1.0, 1, ()),
    events.CopyStarted(1.0, "a", 0, 2, "fast", 1, 0, ((0, 30),)),
    events.CopyFinished(9.0, "a", 30, ((0, 30),), 1, 6, 0.1, "steps", "ab" * 32),
    events.WeightsMerged(9.5, 0, 1, "cd" * 32, ("a",)),
    events.RoundPlanned(10.0, 2, ()),
    events.CopyStarted(10.0, "b", 1, 3, "fast", 2, 0, ((0, 50), (60, 80))),
    events.CopyStarted(11.0, "c", 0, 2, "slow", 2, 1, (), purpose="evaluate"),
    events.DeviceLost(12.0, "far", "its agent ended"),
]


@pytest.fixture
def run(tmp_path):
    store = RunStore.create(tmp_path, RunFacts("r1", Mix("m", JOBS), NODES, "2026-01-01", "0"))

    def after(happened):
        journal = FileJournal(store.journal_path)
        for event in happened:
            journal.append(event)
        journal.close()
        return store

    return after


def test_jobs_and_devices_are_shown_as_they_stand(run):
    now = read_status(run(UNDER_WAY))
    assert (now.round, now.state, now.pid) == (2, "unfinished", None)
    weather, language = now.jobs
    assert (weather.steps_done, weather.steps_in_hand, weather.generation) == (30, 0, 1)
    assert (language.steps_done, language.steps_in_hand) == (0, 70)
    fast, slow, far = now.devices
    assert (fast.doing, fast.job, fast.steps, fast.since_s) == ("train", "language", 70, 2.0)
    assert (slow.doing, slow.job) == ("evaluate", "weather")
    assert (far.doing, far.why) == ("lost", "its agent ended")


def test_a_run_that_someone_drives_is_running_and_its_clock_goes_on(run):
    store = run(UNDER_WAY)
    os.utime(store.journal_path, (0, 0))
    with store.locked():
        now = read_status(store)
    assert (now.state, now.pid) == ("running", os.getpid())
    assert now.elapsed_s > 1e6


@pytest.mark.parametrize(
    ("last", "state"),
    [(events.RunStopped(13.0, "interrupted"), "stopped"), (events.RunFinished(13.0), "finished")],
)
def test_an_ended_run_says_how(run, last, state):
    assert read_status(run([*UNDER_WAY, last])).state == state


def test_a_run_that_has_not_begun_has_a_status_too(run):
    now = read_status(run([]))
    assert (now.round, now.elapsed_s, now.devices[0].doing) == (0, 0.0, "idle")


def test_contradicting_records_are_a_storage_error(run):
    with pytest.raises(StorageError, match="contradict"):
        read_status(run([events.CopyLost(1.0, "nobody", "why")]))


# -- looking at it -------------------------------------------------------------------------------


def look_at(store, *options):
    command = [str(store.directory), *options]
    return CliRunner(env={"COLUMNS": "120"}).invoke(app, ["status", *command])


def test_one_look_shows_devices_jobs_and_the_log(run):
    shown = look_at(run(UNDER_WAY)).output
    assert "m with hadare · run r1 · unfinished" in shown
    assert "30/100" in shown and "0/200" in shown
    assert "far lost; the others take its work (its agent ended)" in shown
    assert "hadar resume r1" in shown


def test_a_run_that_someone_drives_shows_what_is_probably_done(run):
    """Nobody reports to a follower: the measured rate of 5 steps a second fills the gap."""
    store = run([*UNDER_WAY[:6], events.CopyStarted(10.0, "b", 0, 2, "fast", 2, 1, ((30, 80),))])
    os.utime(store.journal_path, (time.time() - 4,) * 2)
    with store.locked():
        seen = JournalFollower(store)
        live_state = LiveState(seen.facts, seen.state, seen.rates, seen.now, guesses=True)
        seen.look(live_state.happened)
        fast = live_state.device_rows()[0]
    assert seen.standing == "running"
    assert (fast.doing, fast.job, fast.rate) == ("training", "weather", 5.0)
    assert 50 > fast.steps >= 20


def test_a_follower_sees_added_jobs_before_a_head_is_put_together_for_them(run):
    store = run(UNDER_WAY)
    seen = JournalFollower(store)
    live_state = LiveState(seen.facts, seen.state, seen.rates, seen.now, guesses=True)
    seen.look(live_state.happened)
    run([events.JobsAdded(13.0, (Job(9, "late", 40, 16),), "asked")])
    seen.look(live_state.happened)
    assert [job.name for job in live_state.job_rows(live_state.left())][-1] == "late"


def test_a_follower_hears_every_event_once(run):
    store, heard = run(UNDER_WAY[:4]), []
    seen = JournalFollower(store)
    seen.look(heard.append)
    seen.look(heard.append)
    assert heard == UNDER_WAY[:4]
    run(UNDER_WAY[4:])
    seen.look(heard.append)
    assert heard == UNDER_WAY


def test_watching_a_run_that_has_ended_tells_it_and_leaves(run):
    watched = look_at(run([*UNDER_WAY, events.RunFinished(13.0)]), "--watch")
    assert watched.exit_code == 0
    assert "far lost" in watched.output and "run r1 is finished" in watched.output


def test_json_and_watch_do_not_go_together(run):
    assert isinstance(look_at(run(UNDER_WAY), "--watch", "--json").exception, InputError)


@pytest.mark.parametrize("last", [events.RunStopped(13.0, "interrupted"), UNDER_WAY[-1]])
def test_the_way_on_is_to_resume(run, last):
    shown = look_at(run([*UNDER_WAY[:-1], last])).output
    assert "continue with: hadar resume r1" in shown
