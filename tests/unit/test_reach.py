"""Which devices can form a gang, and what is said where too few can."""

import numpy as np
import pytest

from hadar_cli.config.inventory import read_nodes
from hadar_cli.core.estimates.reach import keep_together
from hadar_cli.core.estimates.suitability import require_room
from hadar_cli.core.model import Gpu, Job, Node
from hadar_cli.errors import InputError

T4 = Gpu("T4", 65.0, 16.0)
NODES = (
    Node("a", "a", gpus=(T4, T4)),
    Node("b", "b", gpus=(T4,), network="lab"),
    Node("c", "c", gpus=(T4, T4), network="lab"),
    Node("here", "local"),
    Node("too", "local"),
)
DEVICES = [device for node in NODES for device in node.devices]


def groups(*jobs: Job) -> list[set[str]]:
    able = np.ones((len(jobs), len(DEVICES)), dtype=np.bool_)
    kept = keep_together(jobs, DEVICES, able)
    return [{d.name for d, may in zip(DEVICES, row, strict=True) if may} for row in kept.tolist()]


def job(gpus: int, elastic: bool = False) -> Job:
    return Job(0, "wide", 100, 8, gpus=gpus, elastic=elastic)


def test_a_gang_keeps_to_one_machine_or_one_network():
    assert groups(job(3)) == [{"b", "c:0", "c:1"}]
    assert all(found in ({"a:0", "a:1"}, {"here", "too"}) for found in groups(job(3), job(2))[1:])


def test_gangs_are_divided_among_the_groups_that_hold_them():
    assert len({frozenset(found) for found in groups(job(2), job(2), job(2))}) == 3


def test_one_device_may_be_any():
    assert groups(job(3), job(1))[1] == {device.name for device in DEVICES}


def test_a_gang_for_which_too_few_reach_each_other_is_refused_with_the_fix():
    with pytest.raises(InputError, match="at most 3 of them can reach each other") as refused:
        require_room([job(4)], DEVICES, "mix.yaml", gangs=True)
    assert "network" in str(refused.value.fix) and "alone" not in str(refused.value.fix)
    slip = (Node("x", "x", network="lab"), Node("y", "y", network="lap"))
    with pytest.raises(InputError) as refused:
        apart = [device for node in slip for device in node.devices]
        require_room([job(2)], apart, "mix.yaml", gangs=True)
    assert "(x is alone in network lab, y is alone in network lap)" in str(refused.value.fix)
    with pytest.raises(InputError, match="9 devices at once, and there are 7 for it"):
        require_room([job(9)], DEVICES, "mix.yaml", gangs=True)
    require_room([job(9, elastic=True)], DEVICES, "mix.yaml", gangs=True)
    require_room([job(9)], DEVICES, "mix.yaml")  # which is forked


def test_a_local_node_of_a_network_needs_an_address(tmp_path):
    inventory = tmp_path / "nodes.toml"
    inventory.write_text('[[node]]\nname = "a"\nhost = "local"\nnetwork = "lab"\n')
    with pytest.raises(InputError, match="address") as refused:
        read_nodes(inventory)
    assert "address" in str(refused.value.fix)
