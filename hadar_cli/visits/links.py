"""Who of a network reaches whom, and how fast: every node calls every other one, for real.

A gang's members connect to each other directly, so what an inventory says of a ``network`` is only
true if no firewall stands between its nodes, and each has the address that it is said to have.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from hadar_cli.core.model import Node
from hadar_cli.errors import HadarError
from hadar_cli.nodes.gangs import address_of
from hadar_cli.nodes.wire import read_as
from hadar_cli.visits.visit import DEADLINE_S, Visit, visiting

FIX = (
    "let these machines open TCP connections to each other, on any port, or correct `address`, or "
    "give them different `network`s"
)


@dataclass(frozen=True, slots=True)
class Link:
    """The way from one node to another of its network."""

    start: str
    end: str
    bytes_per_s: float
    problem: str | None  # why there is none

    @property
    def why(self) -> str:
        return f"{self.start} does not reach {self.end}: {self.problem}"


@dataclass(frozen=True, slots=True)
class _Called:
    problem: str | None
    bytes_per_s: float


@dataclass(frozen=True, slots=True)
class _Listening:
    port: int


def measure_links(nodes: Sequence[Node], runs: Path, deadline_s: float = DEADLINE_S) -> list[Link]:
    """Of every two nodes that are said to share a network and can be visited, both ways."""
    networks: dict[str, list[Node]] = {}
    for node in nodes:
        if node.network and node.enabled and not node.is_allotted:
            networks.setdefault(node.network, []).append(node)
    groups = [members for members in networks.values() if len(members) > 1]
    with ThreadPoolExecutor(max(1, len(groups))) as pool:
        found = pool.map(lambda members: _among(members, runs, deadline_s), groups)
        return [link for links in found for link in links]


def _among(nodes: Sequence[Node], runs: Path, deadline_s: float) -> list[Link]:
    """In rounds: in each, every node calls one other and is called by one other."""
    secret, links = secrets.token_hex(32), list[Link]()
    with ExitStack() as stack, ThreadPoolExecutor(len(nodes)) as pool:

        def visit(node: Node) -> Visit | None:
            try:
                return stack.enter_context(visiting(node, runs, deadline_s))
            except HadarError:
                return None  # `hadar check` says so of the node itself

        visits = [one for one in pool.map(visit, nodes) if one]
        ports = list(pool.map(lambda one: _listen(one, secret), visits))
        for distance in range(1, len(visits)):

            def call(i: int, distance: int = distance) -> Link:
                other = (i + distance) % len(visits)
                return _call(visits[i], visits[other].node, ports[other], secret)

            links += pool.map(call, range(len(visits)))
    return links


def _listen(visit: Visit, secret: str) -> int | str:
    """Its port, or why it has none."""
    address = address_of(visit.node)
    try:
        return read_as(visit.ask("listen", host=address, secret=secret), _Listening).port
    except (HadarError, ValueError) as error:
        return f"it cannot listen at {address}: {error}"


def _call(visit: Visit, other: Node, port: int | str, secret: str) -> Link:
    here, address = visit.node.name, address_of(other)
    if isinstance(port, str):
        return Link(here, other.name, 0.0, port)
    try:
        called = read_as(visit.ask("call", host=address, port=port, secret=secret), _Called)
    except (HadarError, ValueError) as error:
        return Link(here, other.name, 0.0, str(error))
    problem = f"{called.problem} at {address}" if called.problem else None
    return Link(here, other.name, called.bytes_per_s, problem)


def part_networks(nodes: Sequence[Node], links: Sequence[Link]) -> list[Node]:
    """The nodes, those that do not reach each other in networks of their own.

    Each joins the first part of which it reaches everybody, and everybody it.
    """
    broken = {frozenset((link.start, link.end)) for link in links if link.problem}
    parts: dict[str, list[list[str]]] = {}
    for node in nodes:
        mine = parts.setdefault(node.network or "", [])
        for part in mine:
            if not any(frozenset((node.name, other)) in broken for other in part):
                part.append(node.name)
                break
        else:
            mine.append([node.name])
    names = {
        member: network if len(found) == 1 else f"{network}: {', '.join(part)}"
        for network, found in parts.items()
        for part in found
        for member in part
    }
    return [replace(node, network=names[node.name]) if node.network else node for node in nodes]
