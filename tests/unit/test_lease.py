"""The head's lease on a node: on its disk, and in memory for when that takes nothing."""

import os
import time
from pathlib import Path

import pytest

from hadar_cli.node import lease
from hadar_cli.node.agent import leftovers
from hadar_cli.node.lease import Lease


@pytest.fixture
def memory(tmp_path, monkeypatch):
    monkeypatch.setattr(lease, "MEMORY", tmp_path / "memory")
    lease.MEMORY.mkdir()
    return lease.MEMORY


@pytest.fixture
def run(tmp_path):
    directory = tmp_path / "runs" / "r" / "node"
    directory.mkdir(parents=True)
    return directory


def test_the_newer_one_of_disk_and_memory_holds(memory, run):
    held = Lease(run / "lease")
    assert held.renewed_at() == 0.0
    held.renew()
    by_disk = Lease(run / "lease").renewed_at()
    assert by_disk == pytest.approx(time.monotonic(), abs=5.0)
    held.renew_in_memory()
    assert Lease(run / "lease").renewed_at() >= by_disk
    (run / "lease").write_text("1.0")
    assert Lease(run / "lease").renewed_at() >= by_disk - 1e-3


def test_what_a_logout_takes_out_of_memory_still_holds_for_who_has_seen_it(memory, run):
    held = Lease(run / "lease")
    held.renew_in_memory()
    seen = held.renewed_at()
    held.forget()
    assert not list(memory.iterdir())
    assert (held.renewed_at(), Lease(run / "lease").renewed_at()) == (seen, 0.0)


def test_without_memory_to_share_the_disk_has_to_do(memory, run):
    memory.rmdir()
    held = Lease(run / "lease")
    held.renew_in_memory()
    assert held.renewed_at() == 0.0
    held.renew()
    assert held.renewed_at() > 0.0


def test_a_link_in_its_place_is_neither_read_nor_written(memory, run, tmp_path):
    held = Lease(run / "lease")
    held.renew_in_memory()
    [file] = memory.iterdir()
    file.unlink()
    (tmp_path / "other").write_text("9" * 15)
    file.symlink_to(tmp_path / "other")
    held.renew_in_memory()
    assert (tmp_path / "other").read_text() == "9" * 15
    assert Lease(run / "lease").renewed_at() == 0.0


def test_cleaning_leaves_nothing_in_memory_and_knows_who_is_at_work_by_it(memory, run):
    Lease(run / "lease").renew_in_memory()
    assert Lease(run / "lease").is_fresh(20.0)
    leftovers.remove(leftovers.Place(Path(run).parents[1], "node", "r"))
    assert not list(memory.iterdir())


def written_elsewhere(run, age_s=0.0):
    """As another machine, which has been up for years, renewed it."""
    (run / "lease").write_text("7 99999999.0")
    then = time.time() - age_s
    os.utime(run / "lease", (then, then))


def test_what_another_machine_with_the_same_disk_wrote_renews_nothing_here(memory, run):
    written_elsewhere(run)
    assert Lease(run / "lease").renewed_at() == 0.0
    assert not Lease(run / "lease").is_fresh(20.0)


def test_by_the_disk_s_own_time_a_head_at_work_on_another_machine_is_seen(memory, run):
    held = Lease(run / "lease")
    assert not held.is_fresh_elsewhere(20.0)
    held.renew()
    assert not held.is_fresh_elsewhere(20.0)
    written_elsewhere(run)
    assert held.is_fresh_elsewhere(20.0)
    written_elsewhere(run, age_s=25.0)
    assert not held.is_fresh_elsewhere(20.0)
    assert [file.name for file in run.iterdir()] == ["lease"]


def test_a_head_that_left_in_order_leaves_no_lease(memory, run):
    held = Lease(run / "lease")
    held.renew()
    held.renew_in_memory()
    held.end()
    assert not list(run.iterdir()) and not list(memory.iterdir())


def test_a_login_node_sees_whose_runs_are_at_work_before_it_removes_what_they_share(memory, run):
    base, workdir = run.parents[1], run.parents[2]
    another = base / "other" / "another-node"
    another.mkdir(parents=True)
    written_elsewhere(another)
    assert leftovers.driven(leftovers.Place(base, "node")) == [], "its own files may go"
    assert leftovers.driven(leftovers.Place(base, "node", workdir=workdir)) == ["other"]
    written_elsewhere(run)
    assert leftovers.driven(leftovers.Place(base, "node", "r")) == ["r"]


def test_another_directory_s_run_of_the_same_name_is_not_the_one_that_is_held(memory, run):
    (run / "fence.json").write_text('{"run": "theirs", "epoch": 1, "session": "s"}')
    written_elsewhere(run)
    place = leftovers.Place(run.parents[1], "node", "r")
    assert leftovers.driven(place, ["mine"]) == ["r"]
    assert leftovers.driven(place, ["theirs"]) == []
