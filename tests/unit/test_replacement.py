"""Other machines for a stopped run: what is forgotten with those that are gone."""

from dataclasses import replace

import pytest

from hadar_cli.core import events
from hadar_cli.core.reasons import Loss
from hadar_cli.core.state import RunState
from hadar_cli.errors import RunLockedError
from hadar_cli.runs.replacement import replace_nodes
from hadar_cli.runs.store import FileJournal, RunFacts, RunStore, read_journal
from tests.support.worlds import make_mix, make_nodes

BEFORE = make_nodes({"a": 1.0, "b": 0.5, "c": 0.2})


@pytest.fixture
def store(tmp_path):
    return RunStore.create(tmp_path, RunFacts("r", make_mix([100]), BEFORE, "", "0"))


def folded(store: RunStore) -> RunState:
    state = RunState(store.facts.mix.jobs)
    for event in read_journal(store.journal_path):
        state.apply(event)
    state.validate()
    return state


def journal(store: RunStore, *happened: events.Event) -> None:
    written = FileJournal(store.journal_path)
    for event in happened:
        written.append(event)
    written.close()


def test_devices_are_added_removed_and_changed(store):
    b = replace(BEFORE[1], gpus=(replace(BEFORE[1].gpus[0], vram_gb=48),))
    after = (BEFORE[0], b, *make_nodes({"d": 1.0}))
    replaced = replace_nodes(store, after)
    assert replaced == events.NodesReplaced(0.0, ("d",), ("c",), ("b",))
    assert store.facts.nodes == after
    assert read_journal(store.journal_path) == [replaced]
    assert replaced.text == "added d; removed c; changed b"
    assert replace_nodes(store, after) is None  # the same again
    assert read_journal(store.journal_path) == [replaced]


def test_another_way_to_the_same_machine_forgets_nothing(store):
    after = tuple(replace(node, price_per_hour=1.0, hours="9-17") for node in BEFORE)
    replaced = replace_nodes(store, after)
    assert replaced is not None and not replaced.gone
    assert store.facts.nodes == after


def test_what_was_known_of_a_device_goes_with_it_and_its_copies_are_lost(store):
    journal(
        store,
        events.HeadStarted(0.0, 1),
        *(
            events.CopyStarted(1.0, device, 0, 1, device, 1, 0, ((first, first + 10),))
            for device, first in (("a", 0), ("b", 10), ("c", 20))
        ),
        events.CopyLost(2.0, "b", "out of memory", reason=Loss.OUT_OF_MEMORY),
        events.PairAvoided(2.0, 0, "a", "too small", Loss.OUT_OF_MEMORY),
        events.PairAvoided(2.0, 0, "c", "too small", Loss.OUT_OF_MEMORY),
    )
    assert folded(store).jobs[0].pieces == {"b": 2}
    replace_nodes(store, (BEFORE[0], replace(BEFORE[1], host="elsewhere")))
    state = folded(store)
    job = state.jobs[0]
    assert job.pieces == {}
    assert list(state.avoided) == [(0, "a")]
    assert list(job.active) == ["a"]
    assert job.free.ranges == ((10, 100),)


def test_a_run_that_is_driven_keeps_its_machines(store):
    with store.locked(), pytest.raises(RunLockedError):
        replace_nodes(RunStore(store.directory), BEFORE[:1])
    assert store.facts.nodes == BEFORE
    assert read_journal(store.journal_path) == []


def test_a_torn_record_before_the_change_does_not_spoil_it(store):
    journal(store, events.HeadStarted(0.0, 1))
    with store.journal_path.open("ab") as file:
        file.write(b'deadbeef ["CopyLo')
    replaced = replace_nodes(store, BEFORE[:1])
    assert read_journal(store.journal_path) == [events.HeadStarted(0.0, 1), replaced]
