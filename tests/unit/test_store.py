"""The journal and the checkpoints keep what they were given, or say so."""

import fcntl
import hashlib
import os
import threading
import zlib
from unittest.mock import patch

import pytest

from hadar_cli.core import events
from hadar_cli.core.reasons import Absence, Loss, Unfit
from hadar_cli.errors import InputError, RunLockedError, StorageError
from hadar_cli.runs.store import (
    FileJournal,
    RunFacts,
    RunStore,
    find_run,
    is_driven,
    is_taken,
    mend_journal,
    read_journal,
)
from tests.support.worlds import make_mix, make_nodes

SAMPLE: list[events.Event] = [
    events.HeadStarted(0.0, 1, {"hadar": "x"}),
    events.RoundPlanned(0.1, 1, ((0, "t4", 50),)),
    events.CopyStarted(0.2, "a", 0, 5, "t4", 1, 0, ((0, 30), (40, 60)), 1.5),
    events.CopyFinished(
        9.0, "a", 30, ((0, 30),), 2.0, 6.5, 0.1, "deadline", "ab" * 32, 0.7, {"accuracy": 0.1}
    ),
    events.CopyLost(9.5, "b", "ümlaut\nand line", "log", reason=Loss.DEADLINE),
    events.WeightsMerged(
        9.9,
        0,
        1,
        "cd" * 32,
        ("a",),
        (("b", "NaN"),),
        0.01,
        123,
        refused_for={"b": Unfit.NOT_FINITE},
    ),
    events.DeviceLost(10.0, "t4", "gone", Absence.GONE),
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


def test_a_journal_from_before_reasons_were_recorded_still_loads(store):
    lines = [
        b'["CopyLost",{"t":1.0,"attempt":"a","why":"released","log":"","node_fault":true}]',
        b'["DeviceLost",{"t":2.0,"device":"t4","why":"gone"}]',
        b'["WeightsMerged",{"t":3.0,"job":0,"generation":1,"weights":"w","accepted":["a"],'
        b'"refused":[["b","NaN"]],"seconds":0.1,"bytes":9}]',
    ]
    written = b"".join(b"%08x %b\n" % (zlib.crc32(line), line) for line in lines)
    store.journal_path.write_bytes(written)
    assert read_journal(store.journal_path) == [
        events.CopyLost(1.0, "a", "released", node_fault=True, reason=Loss.UNKNOWN),
        events.DeviceLost(2.0, "t4", "gone", Absence.UNKNOWN),
        events.WeightsMerged(3.0, 0, 1, "w", ("a",), (("b", "NaN"),), 0.1, 9),
    ]


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
    arriving = store.arriving_path("node", "/their/file")
    arriving.write_bytes(b"half of it")
    store.collect_garbage([paths[0]], arriving=True)
    assert arriving.exists(), "a fetch goes on from it"
    store.collect_garbage([paths[0]], arriving=False)
    assert not arriving.exists()
    assert store.object_path(paths[0]).exists()
    assert not store.object_path(paths[1]).exists()


def test_a_second_head_is_refused(store):
    with store.locked(), pytest.raises(RunLockedError), RunStore(store.directory).locked():
        pass
    with store.locked():
        assert True


def test_a_reader_beside_a_head_that_starts_does_not_keep_it_out(store):
    """`hadar report` looks whether somebody drives the run; so does one of an older version."""
    with store.locked():
        pass
    looks, may_leave = threading.Event(), threading.Event()

    def look() -> None:
        with (store.directory / "lock").open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH)
            looks.set()
            may_leave.wait(0.3)

    reader = threading.Thread(target=look)
    reader.start()
    assert looks.wait(10)
    with store.locked():
        assert store.holder() == os.getpid()
    reader.join()


def test_who_looks_whether_a_run_is_driven_holds_no_lock(store):
    assert not is_driven(store)
    with store.locked():
        assert is_driven(store)
    assert not is_driven(store)
    with patch("fcntl.flock", side_effect=AssertionError("a reader locks")):
        assert not is_driven(store)


def test_a_run_whose_head_was_killed_is_not_driven(store):
    (store.directory / "lock").write_text("[1, 1]")
    assert not is_driven(store)


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
