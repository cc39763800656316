"""Reads what is asked of Ray: the ``ray`` table of a node, and ``[ray]`` blocks of many nodes."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from hadar_cli.config.fields import Reader, Spot, number, record, text
from hadar_cli.core.model import Node
from hadar_cli.core.ray import PREFIX, RayRequest

AUTO = "ray://auto"
_PLAIN = r"auto|[A-Za-z0-9_.-]+:\d{1,5}|\[[0-9a-fA-F:]+\]:\d{1,5}"  # as Ray itself writes it
_HOST = re.compile(rf"ray:(//)?({_PLAIN})")
_KINDS = {"CPU": "num_cpus", "GPU": "num_gpus"}


def _resources(value: Any, spot: Spot) -> dict[str, float]:
    if not isinstance(value, dict):
        raise spot.error("should be a table", 'Write it like { "big_disk" = 1 }.')
    for kind in value:
        if kind in _KINDS:
            raise spot.inside(kind).error(
                f"Ray counts {kind} by itself", f"Write {_KINDS[kind]} = {value[kind]}."
            )
    return {
        kind: number(0, 10**9, above=True)(count, spot.inside(kind))
        for kind, count in value.items()
    }


FIELDS: dict[str, Reader[Any]] = {
    "node": text(),
    "num_gpus": number(0, 1024),
    "num_cpus": number(0, 10**5),
    "resources": _resources,
}
_REQUEST = record(FIELDS)


def request(value: Any, spot: Spot) -> RayRequest:
    return RayRequest(**_REQUEST(value, spot))


def check_host(host: str, spot: Spot) -> None:
    if host.startswith(PREFIX) and not _HOST.fullmatch(host):
        raise spot.error(
            f"'{host}' names no Ray cluster",
            f"Write {AUTO}, ray://HOST:10001 (Ray Client) or ray:HOST:6379 (of this cluster).",
        )


def asked_for(node: Node, before: Iterable[Node], spot: Spot) -> Node:
    """The node with its request, if Ray has it: who asks for the same as others gets the next."""
    if node.ray and re.fullmatch(_PLAIN, node.host):
        node = replace(node, host=f"{PREFIX}{node.host}")
    if not node.host.startswith(PREFIX):
        if node.ray:
            raise spot.inside("ray").error(
                f"host = '{node.host}' is no Ray cluster",
                f'Write host = "{AUTO}", or leave it out.',
            )
        return node
    if node.slurm:
        raise spot.inside("slurm").error("the node is Ray's already", "Leave one of them out.")
    wanted = node.ray or RayRequest()
    gpus = len(node.gpus) if wanted.num_gpus is None else wanted.num_gpus
    if gpus < len(node.gpus) and not node.emulated_speed:
        raise spot.inside("num_gpus").error(
            f"asks for {gpus:g} GPUs, and 'gpus' lists {len(node.gpus)}", "Make them agree."
        )
    same = (one for one in before if one.host == node.host and one.ray)
    nth = sum(replace(one.ray, nth=0) == wanted for one in same if one.ray)
    return replace(node, ray=replace(wanted, nth=nth))
