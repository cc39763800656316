"""Reads the inventory, ``nodes.toml``, into nodes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from hadar_cli.config import aws, ray, slurm
from hadar_cli.config.fields import (
    ENVIRONMENT,
    NAME,
    Document,
    Reader,
    Spot,
    flag,
    integer,
    list_of,
    number,
    read_text,
    record,
    text,
)
from hadar_cli.config.strict_toml import parse_toml
from hadar_cli.core.gpu_table import CPU, find_gpu, nearest_gpu
from hadar_cli.core.model import LOCAL, POD, Gpu, Node
from hadar_cli.core.ray import RayRequest
from hadar_cli.core.slurm import SlurmRequest

# A leading dash would be taken for an option by ssh.
_ADDRESS = text(re.compile(r"[^\s-]\S*"), "Give it without spaces or a leading dash.")
_POD = re.compile(rf"{POD}(?:[a-z0-9-]+/)?[a-z0-9][a-z0-9.-]*")
_CLOCK = r"(?:[01]\d|2[0-3]):[0-5]\d"
_HOURS = text(re.compile(rf"{_CLOCK}-{_CLOCK}"), "Write it like 19:00-07:00.")


def read_nodes(path: Path) -> tuple[Node, ...]:
    """The nodes of the inventory, the disabled ones included."""
    return nodes_of(parse_toml(read_text(path), str(path)))


def nodes_of(document: Document) -> tuple[Node, ...]:
    tables = _INVENTORY(document.root, document.top)
    defaults = tables.get("defaults", {})
    nodes: dict[str, Node] = {}
    for node, spot in _listed(tables, defaults, document):
        if node.name in nodes:
            raise spot.inside("name").error(f"'{node.name}' is already taken", "Rename one node.")
        nodes[node.name] = ray.asked_for(node, nodes.values(), spot)
    if not any(node.enabled for node in nodes.values()):
        if nodes:
            raise document.top.error("no node is enabled", "Set enabled = true for one of them.")
        raise document.top.error("lists no nodes", 'Add a [[node]] with name and host = "local".')
    return tuple(nodes.values())


def _listed(
    tables: dict[str, Any], defaults: dict[str, Any], document: Document
) -> Iterator[tuple[Node, Spot]]:
    for i, fields in enumerate(tables.get("node", ())):
        spot = document.top.inside("node").inside(i)
        yield _node(defaults, fields, spot), spot
    for kind in _ALLOTTED_HOSTS:
        is_list = isinstance(document.root.get(kind), list)
        for i, block in enumerate(tables.get(kind, ())):
            spot = document.top.inside(kind)
            spot = spot.inside(i) if is_list else spot
            for name in slurm.names_of(block):
                fields = {key: value for key, value in block.items() if key != "count"}
                yield _node(defaults, {**fields, "name": name}, spot), spot
    for fields in tables.get("aws", ()):
        spot = fields.pop("spot")
        yield _node(defaults, fields, spot), spot


def _node(defaults: dict[str, Any], fields: dict[str, Any], spot: Spot) -> Node:
    for kind, host in _ALLOTTED_HOSTS.items():
        if kind in fields or kind in defaults:
            defaults = {"host": host, **defaults}
    for key in ("name", "host"):
        if key not in fields and key not in defaults:
            raise spot.error(f"'{key}' is missing", f"Add '{key}'.")
    env = {**defaults.get("env", {}), **fields.get("env", {})}
    node = Node(**{**defaults, **fields, "env": env})
    if node.slurm:
        is_block = spot.where[0] == "slurm"
        at = spot if is_block else spot.inside("slurm")
        node = replace(node, gpus=slurm.gpus_asked_for(node.slurm, node.gpus, at))
    cards = [device.gpu.uuid or device.card for device in node.devices if device.gpu]
    if twice := [card for card in cards if cards.count(card) > 1]:
        at = spot.inside("gpus")
        raise at.error(f"names GPU {twice[0]} twice", "Give each its own index or uuid.")
    if node.network and node.is_local and not node.address:
        problem = "a local node in a network needs the address at which others reach it"
        raise spot.inside("network").error(problem, 'Add it: address = "192.168.1.5".')
    return node


def _gpu(value: Any, spot: Spot) -> Gpu:
    if isinstance(value, str):
        raise spot.error("should be a table", f'Write {{ model = "{value}" }}.')
    fields = _GPU(value, spot)
    if "index" in fields and "uuid" in fields:
        raise spot.error("has both 'index' and 'uuid'", "Name the card in one way.")
    name = fields.pop("model")
    known = find_gpu(name)
    if known is CPU:
        raise spot.error("a CPU is no GPU", "Leave 'gpus' out for a node that trains on its CPU.")
    if known:
        return replace(known, **fields)
    if "tflops" in fields and "vram_gb" in fields:
        return Gpu(name, **fields)
    close = nearest_gpu(name)
    guess = f"Did you mean '{close}'? If not, give" if close else "Give"
    problem = f"'{name}' is not in the table of known GPUs"
    raise spot.inside("model").error(problem, f"{guess} its tflops and vram_gb as well.")


def _host(value: Any, spot: Spot) -> str:
    host = _ADDRESS(value, spot)
    ray.check_host(host, spot)
    if host.startswith(POD) and not _POD.fullmatch(host):
        raise spot.error(
            f"'{host}' names no pod", "Write it like kubectl:POD or kubectl:SPACE/POD."
        )
    return host


def _emulated(value: Any, spot: Spot) -> float:
    fields = record({"speed": number(0, 100, above=True)}, required=("speed",))(value, spot)
    return float(fields["speed"])


def _node_fields(value: Any, spot: Spot, fields: dict[str, Reader[Any]]) -> dict[str, Any]:
    values = record(fields)(value, spot)
    if "emulate" in values:
        values["emulated_speed"] = values.pop("emulate")
    return values


def _blocks(
    request: dict[str, Reader[Any]], required: tuple[str, ...], make: Callable[..., dict[str, Any]]
) -> Reader[tuple[dict[str, Any], ...]]:
    """One table, or several: fields of nodes and of their request, side by side."""

    def block(value: Any, spot: Spot) -> dict[str, Any]:
        fields: dict[str, Reader[Any]] = {"name": NAME, "count": integer(1, 10_000)}
        values = record({**fields, **_PLAIN_NODE, **request}, required=required)(value, spot)
        asked = {key: values.pop(key) for key in request if key in values}
        if "emulate" in values:
            values["emulated_speed"] = values.pop("emulate")
        return {**values, **make(**asked)}

    many = list_of(block)
    return lambda value, spot: (
        (block(value, spot),) if isinstance(value, dict) else many(value, spot)
    )


def _node_tables(value: Any, spot: Spot) -> tuple[dict[str, Any], ...]:
    if isinstance(value, dict):
        raise spot.error("should be a list of tables", "Write [[node]], with two brackets.")
    return list_of(lambda item, at: _node_fields(item, at, {"name": NAME, **_DEFAULTS}))(
        value, spot
    )


_GPU = record(
    {
        "model": text(),
        "tflops": number(0, 10**6, above=True),
        "vram_gb": number(0, 10**5, above=True),
        "pcie": integer(1, 6),
        "index": integer(0, 1023),
        "uuid": text(
            re.compile(r"[A-Za-z0-9][A-Za-z0-9/._-]{0,99}"), "Copy it from nvidia-smi -L."
        ),
    },
    required=("model",),
)

_PLAIN_NODE: dict[str, Reader[Any]] = {
    "host": _host,
    "port": integer(1, 65_535),
    "user": _ADDRESS,
    "identity_file": text(),
    "proxy_jump": _ADDRESS,
    "host_key": text(),
    "known_hosts": text(),
    "python": text(),
    "workdir": text(),
    "env": ENVIRONMENT,
    "gpus": list_of(_gpu),
    "max_gpu_mem": number(0, 1, above=True),
    "hours": _HOURS,
    "turn_s": number(1, 3600),
    "price_per_hour": number(0, 10**6),
    "enabled": flag,
    "emulate": _emulated,
    "network": NAME,
    "address": _ADDRESS,
}
_DEFAULTS: dict[str, Reader[Any]] = {
    **_PLAIN_NODE,
    "slurm": slurm.request,
    "ray": ray.request,
}
_ALLOTTED_HOSTS = {"slurm": LOCAL, "ray": ray.AUTO}  # of requests that name none

_INVENTORY = record(
    {
        "defaults": lambda value, spot: _node_fields(value, spot, _DEFAULTS),
        "node": _node_tables,
        "slurm": _blocks(
            slurm.FIELDS, ("name", "time"), lambda **asked: {"slurm": SlurmRequest(**asked)}
        ),
        "ray": _blocks(ray.FIELDS, ("name",), lambda **asked: {"ray": RayRequest(**asked)}),
        "aws": aws.block({"name": NAME, **_PLAIN_NODE}),
    }
)
