"""Whether nodes of one network reach each other, by real calls between real processes."""

from __future__ import annotations

import socket
from dataclasses import replace

from hadar_cli.core.model import Node
from hadar_cli.node import reach
from hadar_cli.node.network import LOOPBACK, free_port
from hadar_cli.visits.links import Link, measure_links, part_networks


def node(name: str, address: str = LOOPBACK, network: str | None = "lab") -> Node:
    return Node(name, "local", network=network, address=address)


def test_every_node_calls_every_other_one_of_its_network(tmp_path):
    nodes = [node("a"), node("b"), node("away", "192.0.2.7"), node("apart", network=None)]
    links = {(link.start, link.end): link for link in measure_links(nodes, tmp_path, 60.0)}
    assert set(links) == {(a, b) for a in ("a", "b", "away") for b in ("a", "b", "away") if a != b}
    assert all(links[pair].bytes_per_s > 0 for pair in (("a", "b"), ("b", "a"), ("away", "a")))
    assert "cannot listen at 192.0.2.7" in links["a", "away"].why
    assert [one.network for one in part_networks(nodes, list(links.values()))] == [
        *("lab: a, b", "lab: a, b", "lab: away", None)
    ]


def test_whoever_answers_without_the_secret_is_not_who_was_called():
    port = reach.receive_callers(LOOPBACK, "x" * 64)
    assert reach.call(LOOPBACK, port, "x" * 64)["problem"] is None
    assert reach.call(LOOPBACK, port, "y" * 64)["problem"] == "somebody else answers there"
    assert reach.call(LOOPBACK, free_port(LOOPBACK), "x")["problem"] == "Connection refused"
    with socket.create_server((LOOPBACK, 0)) as deaf:
        assert reach.call(LOOPBACK, deaf.getsockname()[1], "x")["problem"] == "no answer"


def test_nodes_that_do_not_reach_each_other_are_parted_and_no_others():
    nodes = [node(name) for name in "abcd"]
    assert part_networks(nodes, [Link("a", "b", 1e6, None)]) == nodes
    broken = [Link("a", "c", 0.0, "no answer"), Link("d", "c", 0.0, "no answer")]
    parted = part_networks([*nodes, replace(nodes[0], name="e", network="other")], broken)
    assert [one.network for one in parted] == [
        *["lab: a, b, d"] * 2,
        "lab: c",
        "lab: a, b, d",
        "other",
    ]
