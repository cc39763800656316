"""The head's lease on a node: on its disk, and in memory for when that takes nothing."""

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
    assert leftovers._is_leased(run)
    leftovers.remove(leftovers.Place(Path(run).parents[1], "node", "r"))
    assert not list(memory.iterdir())
