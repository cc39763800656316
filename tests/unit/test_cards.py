"""A worker's card: what it is shown, and the lock that keeps everyone else off it."""

from __future__ import annotations

import os
import stat

import pytest

from hadar_cli.config.inventory import read_nodes
from hadar_cli.core.model import Job, Launch
from hadar_cli.core.steps import StepSet
from hadar_cli.engine.ports import CopyOrder
from hadar_cli.node.contract import Card
from hadar_cli.node.gpus.cards import CardLock, environment, threads, visible
from hadar_cli.nodes.orders import order_request


@pytest.mark.parametrize(
    ("index", "uuid", "inherited", "shown"),
    [
        (1, None, {}, {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "1"}),
        (0, "MIG-1", {}, {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "MIG-1"}),
        (1, None, {"CUDA_VISIBLE_DEVICES": "5, 7"}, {"CUDA_VISIBLE_DEVICES": "7"}),
        (0, None, {"CUDA_VISIBLE_DEVICES": "GPU-a"}, {"CUDA_VISIBLE_DEVICES": "GPU-a"}),
        (0, None, {"HIP_VISIBLE_DEVICES": "3"}, {"HIP_VISIBLE_DEVICES": "3"}),
    ],
)
def test_what_the_node_shows_is_chosen_from_and_never_widened(index, uuid, inherited, shown):
    assert visible(index, uuid, inherited) == shown


def test_a_card_beyond_what_the_node_shows_is_refused():
    with pytest.raises(ValueError, match="CUDA_VISIBLE_DEVICES=5 shows no GPU number 1"):
        visible(1, None, {"CUDA_VISIBLE_DEVICES": "5"})


@pytest.mark.parametrize("shown", ["", "-1", "NoDevFiles"])
def test_a_batch_system_that_has_given_no_card_is_not_helped_to_another_s(shown):
    with pytest.raises(ValueError, match="shows no GPU number 0 there: ask for it"):
        visible(0, None, {"CUDA_VISIBLE_DEVICES": shown})
    assert visible(0, "GPU-a", {"CUDA_VISIBLE_DEVICES": shown})["CUDA_VISIBLE_DEVICES"] == "GPU-a"


def test_workers_share_the_cores():
    cores = len(os.sched_getaffinity(0))
    assert threads(1) == str(cores)
    assert threads(cores) == "1"
    assert threads(10 * cores) == "1"


def test_a_worker_sees_its_card_and_takes_its_part_of_the_cores_unless_told_otherwise():
    env, shown = environment(Card(2, "GPU-b", sharers=1000), {"HOME": "/h"})
    assert shown == env["CUDA_VISIBLE_DEVICES"] == "GPU-b"
    assert (env["OMP_NUM_THREADS"], env["HOME"]) == ("1", "/h")
    env, shown = environment(
        Card(1, None, 1000), {"OMP_NUM_THREADS": "7", "CUDA_VISIBLE_DEVICES": "4,5"}
    )
    assert (env["OMP_NUM_THREADS"], shown) == ("7", "5")


def test_an_order_says_which_card_of_the_inventory_it_is_for_and_how_many_share_the_cores(tmp_path):
    cards = ('{ model = "T4" }', '{ model = "T4", index = 5 }', '{ model = "T4", uuid = "MIG-7" }')
    table = f'[[node]]\nname = "lab"\nhost = "lab"\ngpus = [{", ".join(cards)}]\n'
    (tmp_path / "nodes.toml").write_text(table)
    [node] = read_nodes(tmp_path / "nodes.toml")
    launch, steps = Launch(script="train.py"), StepSet.of([(0, 1)])
    job = Job(0, "job", 1000, 8, launch=launch)
    asked = []
    for device in node.devices:
        order = CopyOrder("a", job, device.name, steps, 60.0, None, 1, 1, 1, 0, 1, 1)
        start = order_request(order, "w", node, launch, "").start
        assert start
        asked.append(start.card)
    assert asked == [Card(0, None, 3), Card(5, None, 3), Card(2, "MIG-7", 3)]


def test_a_card_has_one_holder_and_the_others_read_who(tmp_path):
    one, other = CardLock("GPU-a", tmp_path), CardLock("GPU-a", tmp_path)
    assert one.take({"run": "first"})
    assert not other.take({"run": "second"})
    assert other.note()["run"] == "first"
    assert CardLock("GPU-b", tmp_path).take({})
    one.give_back()
    assert other.take({"run": "second"})
    assert one.note()["run"] == "second"


def test_every_user_of_the_machine_may_lock_it_whatever_the_umask(tmp_path):
    before = os.umask(0o077)
    try:
        assert CardLock("GPU-a", tmp_path).take({})
    finally:
        os.umask(before)
    [path] = tmp_path.iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o666


def test_a_lock_that_was_given_back_between_is_not_taken_for_the_new_one(tmp_path):
    holder, late = CardLock("GPU-a", tmp_path), CardLock("GPU-a", tmp_path)
    assert holder.take({})
    descriptor = late._open()  # the old file, which is about to go
    holder.give_back()
    assert CardLock("GPU-a", tmp_path).take({})
    late._open = lambda: descriptor  # type: ignore[method-assign]
    assert not late.take({})


def test_a_link_in_its_place_is_not_followed(tmp_path):
    (tmp_path / "hadar-GPU-a.lock").symlink_to(tmp_path / "victim")
    with pytest.raises(OSError, match="symbolic links"):
        CardLock("GPU-a", tmp_path).take({})
    assert not (tmp_path / "victim").exists()


def test_the_lock_lasts_until_the_last_process_of_the_worker_is_gone(tmp_path):
    holder = CardLock("GPU-a", tmp_path)
    assert holder.take({})
    reader, writer = os.pipe()
    if (pid := os.fork()) == 0:  # the worker, which inherits it
        os.read(reader, 1)
        os._exit(0)
    os.close(holder._descriptor)  # its supervisor is killed
    assert not CardLock("GPU-a", tmp_path).take({})
    os.write(writer, b".")
    os.waitpid(pid, 0)
    assert CardLock("GPU-a", tmp_path).take({})
