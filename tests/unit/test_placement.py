"""Placement: stay, share few nodes, never one device twice."""

import pytest

from hadar_cli.core.model import Device, Gpu
from hadar_cli.core.policies.gangs.cluster_devices import ClusterDevices
from hadar_cli.core.policies.gangs.placement import place

SITE = ClusterDevices.uniform(["fast", "slow"], [8, 6], [4, 4])


def nodes(devices):
    return {name.rpartition(":")[0] for name in devices}


def test_a_uniform_site_has_whole_nodes_and_a_rest():
    sizes = [(group.node, len(group.devices)) for group in SITE.groups]
    assert sizes == [("fast-0", 4), ("fast-1", 4), ("slow-0", 4), ("slow-1", 2)]


def test_a_cluster_groups_devices_by_kind_and_node():
    v100, k80 = Gpu("V100", 100, 16), Gpu("K80", 10, 12)
    members = [Device("n:0", "n", 0, v100), Device("n:1", "n", 1, k80), Device("m", "m", 0, v100)]
    devices = ClusterDevices.of(members)
    assert devices.kinds == ("K80", "V100")
    assert devices.counts["n:0", "n:1", "m"] == (1, 2)
    assert devices == ClusterDevices.of(list(members))


def test_gangs_share_a_node():
    places = place(SITE, {}, {1: (2, 0), 2: (4, 0), 3: (2, 0)})
    assert all(len(nodes(places[job])) == 1 for job in places)
    assert not SITE.is_spread(places[2])


def test_best_fit_leaves_large_holes_whole():
    places = place(SITE, {}, {1: (1, 0)})
    places = place(SITE, places, {1: (1, 0), 2: (1, 0), 3: (4, 0)})
    assert nodes(places[1]) == nodes(places[2]) != nodes(places[3])


def test_who_keeps_its_kinds_keeps_its_devices():
    before = place(SITE, {}, {1: (2, 0), 2: (2, 1), 3: (0, 2)})
    after = place(SITE, before, {2: (2, 1), 3: (0, 2), 4: (4, 0)})
    assert after[2] == before[2] and after[3] == before[3]


def test_a_gang_makes_smaller_jobs_give_way_rather_than_spread():
    before = {1: ("fast-0:0",), 2: ("fast-1:0",)}
    after = place(SITE, before, {1: (1, 0), 2: (1, 0), 3: (4, 0)})
    assert len(nodes(after[3])) == 1
    assert (after[1] == before[1]) != (after[2] == before[2])  # only one of them had to move


def test_a_gang_spreads_where_equals_sit():
    before = {1: ("slow-0:0", "slow-0:1", "slow-0:2")}
    after = place(SITE, before, {1: (0, 3), 2: (0, 3)})
    assert after[1] == before[1]
    assert SITE.is_spread(after[2])


def test_nobody_gives_way_to_a_narrower_gang():
    devices = ClusterDevices.uniform(["fast"], [12], [4])
    wide = ("fast-0:0", "fast-0:1", "fast-0:2", "fast-0:3", "fast-1:0")
    before = {1: wide, 2: ("fast-2:0",)}
    after = place(devices, before, {1: (5,), 2: (1,), 3: (4,)})
    assert after[1] == wide
    assert nodes(after[3]) == {"fast-2"} and nodes(after[2]) == {"fast-1"}


def test_a_gang_wider_than_a_node_takes_as_few_as_it_needs():
    places = place(SITE, {}, {1: (8, 0)})
    assert not SITE.is_spread(places[1])
    assert SITE.is_spread(("fast-0:0", "slow-0:0"))  # two kinds are never together


def test_overbooking_is_refused():
    with pytest.raises(ValueError, match="overbooked"):
        place(SITE, {}, {1: (8, 0), 2: (1, 0)})


def test_devices_that_are_gone_are_not_kept():
    places = place(SITE, {1: ("lost-0:0",)}, {1: (1, 0)})
    assert places[1][0] in SITE.home


def test_nobody_moves_a_pinned_job():
    before = {1: ("fast-0:0",), 2: ("fast-1:0",)}
    after = place(SITE, before, {1: (1, 0), 2: (1, 0), 3: (4, 0)}, pinned=before)
    assert after[1] == before[1] and after[2] == before[2]
    assert SITE.is_spread(after[3])
