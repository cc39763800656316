"""The journal and the checkpoints keep what they were given, or say so."""

import hashlib
import os

import pytest

from hadar_cli.adapters.store import (
    FileJournal,
    RunFacts,
    RunStore,
    find_run,
    is_taken,
    mend_journal,
    read_journal,
)
from hadar_cli.core import events
from hadar_cli.errors import InputError, RunLockedError, StorageError
from tests.support.worlds import make_mix, make_nodes

SAMPLE: list[events.Event] = [
    events.HeadStarted(0.0, 1, {"hadar": "x"}),
    events.RoundPlanned(0.1, 1, ((0, "t4", 50),)),
    events.CopyStarted(0.2, "a", 0, 5, "t4", 1, 0, ((0, 30), (40, 60)), 1.5),
    events.CopyFinished(
        9.0, "a", 30, ((0, 30),), 2.0, 6.5, 0.1, "deadline", "ab" * 32, 0.7, {"accuracy": 0.1}
    ),
    events.CopyLost(9.5, "b", "ümlaut\nand line", "log"),
    events.WeightsMerged(9.9, 0, 1, "cd" * 32, ("a",), (("b", "NaN"),), 0.01, 123),
    events.DeviceLost(10.0, "t4", "gone"),
    events.RunStopped(11.0, "interrupted"),
    events.RunFinished(12.0),
]


@pytest.fixture
def store(tmp_path):
    facts = RunFacts("r1", make_mix([100]), make_nodes(), "2026-01-01", "0")
    return RunStore.create(tmp_path / "runs", facts)


def test_facts_come_back_as_they_were(store):
    facts = store.facts
    assert facts.mix == make_mix([100])
    assert facts.nodes == make_nodes()


def test_every_event_survives_the_journal(store):
    journal = FileJournal(store.journal_path)
    for event in SAMPLE:
        journal.append(event)
    assert read_journal(store.journal_path) == SAMPLE


def test_a_journal_cut_at_any_byte_keeps_its_whole_lines(store):
    journal = FileJournal(store.journal_path)
    for event in SAMPLE:
        journal.append(event)
    data = store.journal_path.read_bytes()
    for cut in range(len(data)):
        store.journal_path.write_bytes(data[:cut])
        kept = mend_journal(store.journal_path)
        assert kept == SAMPLE[: data[:cut].count(b"\n")]
        FileJournal(store.journal_path).append(SAMPLE[0])
        assert read_journal(store.journal_path) == [*kept, SAMPLE[0]]


def test_damage_in_the_middle_is_not_passed_over(store):
    journal = FileJournal(store.journal_path)
    for event in SAMPLE:
        journal.append(event)
    data = bytearray(store.journal_path.read_bytes())
    data[data.index(b"deadline")] ^= 1
    store.journal_path.write_bytes(data)
    with pytest.raises(StorageError, match=r"journal\.jsonl:4: damaged record"):
        read_journal(store.journal_path)


def test_objects_are_named_by_their_content(store, tmp_path):
    source = tmp_path / "attempt" / "weights"
    source.parent.mkdir()
    source.write_bytes(b"x" * 3_000_000)
    digest = store.take_in(source)
    assert digest == hashlib.sha256(b"x" * 3_000_000).hexdigest()
    store.verify(digest)
    store.object_path(digest).write_bytes(b"x" * 2_999_999 + b"y")
    with pytest.raises(StorageError, match="not what was committed"):
        store.verify(digest)


def test_what_a_resumed_head_leaves_is_private(store):
    before = os.umask(0o000)
    try:
        with store.locked():
            FileJournal(store.journal_path).close()
        assert store.journal_path.stat().st_mode & 0o077 == 0
    finally:
        os.umask(before)


def test_a_link_is_not_followed(store, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("key")
    link = tmp_path / "weights"
    link.symlink_to(secret)
    with pytest.raises(ValueError, match="no plain file"):
        store.take_in(link)


def test_garbage_is_collected_and_the_rest_kept(store, tmp_path):
    paths = []
    for name in ("a", "b"):
        source = tmp_path / name
        source.write_text(name)
        paths.append(store.take_in(source))
    store.collect_garbage([paths[0]])
    assert store.object_path(paths[0]).exists()
    assert not store.object_path(paths[1]).exists()


def test_a_second_head_is_refused(store):
    with store.locked(), pytest.raises(RunLockedError), RunStore(store.directory).locked():
        pass
    with store.locked():
        assert True


def test_runs_are_private(store):
    assert os.stat(store.directory).st_mode & 0o077 == 0
    assert os.stat(store.directory / "run.json").st_mode & 0o077 == 0


def test_an_unknown_run_suggests_the_nearest(store, tmp_path):
    with pytest.raises(InputError, match="did you mean 'r1'"):
        find_run(tmp_path / "runs", "r11")
    assert find_run(tmp_path / "runs", None).directory == store.directory


def test_the_lock_names_the_head_that_holds_it(store):
    assert store.holder() is None
    with store.locked():
        assert RunStore(store.directory).holder() == os.getpid()
        with pytest.raises(RunLockedError), RunStore(store.directory).locked():
            pass
        assert store.holder() == os.getpid()  # the one that was refused has not erased it
    assert store.holder() is None
    (store.directory / "lock").write_text(f"[{os.getpid()}, 1]")  # a pid used again
    assert store.holder() is None


@pytest.mark.parametrize("last", ["objects", "models", "run.json.part"])
def test_a_run_whose_head_died_while_making_it_may_be_made_again(tmp_path, last):
    directory = tmp_path / "runs" / "r1"
    made = ["objects", "models", "run.json.part"]
    for name in made[: made.index(last) + 1]:
        (directory / name).mkdir(parents=True)
    assert not is_taken(directory)
    if last == "run.json.part":
        (directory / last).rmdir()
        (directory / last).write_text("{")
    facts = RunFacts("r1", make_mix([100]), make_nodes(), "2026-01-01", "0")
    assert RunStore.create(tmp_path / "runs", facts).facts == facts
    assert is_taken(directory)


def test_a_folder_of_something_else_is_no_place_for_a_run(tmp_path):
    (tmp_path / "thesis.tex").touch()
    assert is_taken(tmp_path)
    assert not is_taken(tmp_path / "new")
