"""Which machine of a Ray cluster is which node, and what an inventory may say of it."""

import sys

import pytest

from hadar_cli.config.inventory import nodes_of
from hadar_cli.config.strict_toml import parse_toml
from hadar_cli.errors import InputError
from hadar_cli.ray_cluster.places import places_for
from hadar_cli.ray_cluster.transport import wanted
from hadar_cli.transports import check_request


def machine(name, address="10.0.0.1", is_alive=True, **resources):
    return {
        "NodeID": f"id-{name}",
        "NodeManagerAddress": address,
        "NodeManagerHostname": f"host-{name}",
        "NodeName": name,
        "Alive": is_alive,
        "Resources": {"CPU": 8.0, "memory": 1e9, **resources},
        "Labels": {"zone": name},
    }


CLUSTER = [
    machine("c", "10.0.0.3", GPU=4.0),
    machine("a", "10.0.0.1", GPU=1.0),
    machine("gone", "10.0.0.0", is_alive=False, GPU=4.0),
    machine("b", "10.0.0.2"),
]


def nodes(text):
    return nodes_of(parse_toml(text, "nodes.toml"))


def place_of(node):
    request = wanted(node)
    return places_for(request, CLUSTER, LookupError)[request["nth"]].name


def test_nodes_of_a_block_are_the_machines_that_fit_by_their_addresses():
    found = nodes('[ray]\nname = "n"\ncount = 2\ngpus = [{ model = "A100" }]')
    assert [(node.name, node.host, place_of(node)) for node in found] == [
        ("n-1", "ray://auto", "a"),
        ("n-2", "ray://auto", "c"),
    ]
    assert all(node.is_allotted and not node.is_over_ssh for node in found)


@pytest.mark.parametrize("host", ["auto", "h:6379", "[::1]:6379", "ray:auto", "ray://h:10001"])
def test_a_cluster_is_named_as_ray_names_it(host):
    [node] = nodes(f'[ray]\nname = "n"\nhost = "{host}"')
    assert node.host == (host if host.startswith("ray:") else f"ray:{host}")
    assert not node.is_over_ssh and node.ray


@pytest.mark.parametrize("name", ["10.0.0.3", "host-c", "c", "id-c", "zone=c"])
def test_a_machine_is_chosen_by_any_of_its_names(name):
    [node] = nodes(f'[[node]]\nname = "n"\nhost = "ray://h:10001"\nray = {{ node = "{name}" }}')
    assert place_of(node) == "c"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("num_gpus = 8", "0 of 1 machines have 8 GPU: a (10.0.0.1) has 8 CPU, 1 GPU; b"),
        ("resources = { tpu = 1 }", "have 1 tpu"),
        ('node = "gone"', "no machine of the cluster is called 'gone'; there are: a"),
    ],
)
def test_what_no_machine_has_is_told_with_what_there_is(text, why):
    [node] = nodes(f'[ray]\nname = "n"\n{text}')
    with pytest.raises(LookupError) as error:
        place_of(node)
    assert why in " ".join(str(error.value).split())


@pytest.mark.parametrize(
    ("text", "fix"),
    [
        ('[[node]]\nname = "n"\nhost = "ray://"', "ray://HOST:10001"),
        ('[[node]]\nname = "n"\nhost = "ray:h"', "ray:HOST:6379"),
        ('[[node]]\nname = "n"\nhost = "h"\nray = { num_cpus = 1 }', 'host = "ray://auto"'),
        ('[ray]\nname = "n"\nresources = { GPU = 1 }', "num_gpus = 1"),
        ('[ray]\nname = "n"\nnum_gpus = 1\ngpus = [{model = "A100"}, {model = "T4"}]', "agree"),
        ('[ray]\nname = "n"\nnum_gpu = 1', "num_gpus"),
        ("[ray]\ncount = 2", "name"),
    ],
)
def test_a_wrong_word_in_the_inventory_is_told_with_its_fix(text, fix):
    with pytest.raises(InputError) as error:
        nodes(text)
    assert fix in f"{error.value} {error.value.fix}" and error.value.line


def test_without_ray_a_cluster_is_refused_before_anybody_asks_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setattr("hadar_cli.ray_cluster.transport.bridge_to", lambda host: pytest.fail(host))
    (node,) = nodes('[ray]\nname = "n"\nhost = "10.0.0.1:6379"')
    with pytest.raises(InputError, match="needs Ray, which is not here") as error:
        check_request(node)
    assert "hadar[ray]" in (error.value.fix or "")
