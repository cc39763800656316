"""Which transport reaches a node. A new one, beside SSH, needs a line here."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hadar_cli.core.model import LOCAL, POD, Node
from hadar_cli.nodes.connection import Transport
from hadar_cli.nodes.local import LocalAccess
from hadar_cli.nodes.remote import RemoteAccess, directory_of
from hadar_cli.nodes.wire import LinkLostError
from hadar_cli.pipes.kubectl import check_kubectl, into_pod
from hadar_cli.pipes.transport import PipeTransport
from hadar_cli.runs.store import RunStore

if TYPE_CHECKING:
    from hadar_cli.aws.fleet import Fleet


@dataclass(frozen=True, slots=True)
class GivenBack:
    """Allotted machines, or requests for them, of some runs: how many there were, and are left."""

    before: int = 0
    after: int = 0
    names: tuple[str, ...] = ()  # of those that there were, where they have names


def access_to(
    node: Node, run: RunStore | None = None, may_start: bool = True
) -> LocalAccess | RemoteAccess:
    """The one way to the node, for runs and visits alike; nothing is opened yet.

    A machine that is allotted is so to a ``run``. Visits see what is there all the time: its files,
    from the login node. An instance is started for who ``may_start`` it only.
    """
    if node.is_local:
        return LocalAccess(node)
    if node.aws:
        return _rented(node, run, may_start)
    if node.slurm and node.host == LOCAL and not node.python:
        node = replace(node, python=sys.executable)  # of a login node, whose files all nodes see
    if node.slurm and run:
        from hadar_cli.slurm.transport import SlurmTransport

        there = SlurmTransport(node, label_of(run), _place_of(run, node), _way_to(node))
        return RemoteAccess(node, there)
    if node.ray:
        from hadar_cli.ray_cluster.transport import RayTransport

        if not run:
            return RemoteAccess(node, RayTransport(node))
        return RemoteAccess(node, RayTransport(node, label_of(run), _place_of(run, node)))
    return RemoteAccess(node, _way_to(node))


def label_of(run: RunStore) -> str:
    """By what a cluster's users tell its machines' runs apart. Another directory, or another user,
    may have a run of the same name, and each head ends what carries its own."""
    return f"{run.directory.name}.{run.facts.token[:6]}"


def _place_of(run: RunStore, node: Node) -> str:
    return directory_of(node, run.directory.name)


def _rented(node: Node, run: RunStore | None, may_start: bool) -> RemoteAccess:
    """An instance of a run, or nothing: without one, there is no machine to visit."""
    from hadar_cli.aws.transport import AwsTransport, machine_env

    if not run:
        problem = f"node {node.name} is an instance that is there only while a run has it"
        raise LinkLostError(problem, fix="ask for one of its run")
    node = replace(node, env={**machine_env(node), **node.env})
    return RemoteAccess(node, AwsTransport(node, _fleet(node, run), _way_to, may_start))


def _fleet(node: Node, run: RunStore) -> Fleet:
    from hadar_cli.aws.fleet import Fleet

    assert node.aws
    return Fleet.of(node.aws, run.directory.name, run.facts.token, run.directory)


def check_request(node: Node) -> str:
    """When or where the node would be allotted, "" if it need not be; InputError if never."""
    if node.host.startswith(POD):
        check_kubectl(node.host)
    if node.ray:
        from hadar_cli.ray_cluster.transport import check_place

        return check_place(node)
    if node.aws:
        from hadar_cli.aws.launching import check_launch

        return check_launch(node)
    if not node.slurm:
        return ""
    from hadar_cli.slurm.queue import Login

    return Login(node, _way_to(node)).check()


def with_prices(nodes: Sequence[Node]) -> tuple[tuple[Node, ...], list[str]]:
    """The nodes, those to be rented with what they cost; and how that is known, in words."""
    if not any(node.aws and node.enabled and node.price_per_hour is None for node in nodes):
        return tuple(nodes), []
    from hadar_cli.aws import prices

    return prices.with_prices(nodes)


def check_costs(nodes: Sequence[Node]) -> None:
    """InputError where what is to be rented would cost more than it may."""
    if any(node.aws for node in nodes):
        from hadar_cli.aws.budget import require_budget

        require_budget(nodes)


def renters(nodes: Sequence[Node], run: RunStore) -> Callable[[bool], None]:
    """To be told, again and again, whether jobs wait for machines: as long as none does, those that
    are rented may be ended when they have no work. All are wanted at first."""
    fleets = {_fleet(node, run) for node in nodes if node.aws}
    for fleet in fleets:
        for node in filter(lambda node: node.aws, nodes):
            fleet.know(node)
        fleet.knows_all = True
        fleet.demand.wake()

    def tell(is_short: bool) -> None:
        for fleet in fleets:
            fleet.demand.need(is_short)

    return tell


def give_back(node: Node, runs: Sequence[RunStore]) -> GivenBack:
    """Ends what is allotted to these runs on the node's behalf, or waits to be."""
    if node.ray:
        from hadar_cli.ray_cluster.transport import give_back_keepers

        return GivenBack(*give_back_keepers(node, [label_of(run) for run in runs]))
    if node.aws:
        from hadar_cli.aws.transport import end_instances

        before, after = end_instances(node, [_fleet(node, run) for run in runs])
        return GivenBack(len(before), len(after), tuple(before))
    if not node.slurm:
        return GivenBack()
    from hadar_cli.slurm.transport import give_back_allocations

    labels = [label_of(run) for run in runs]
    return GivenBack(*give_back_allocations(node, labels, _way_to(node)))


def _way_to(node: Node) -> Transport:
    """To the node itself or, where nodes are allotted, to the machine that does so."""
    if node.host == LOCAL:
        # A head within an allocation of its own asks as any login does.
        env = {k: v for k, v in os.environ.items() if k == "SLURM_CONF" or k[:6] != "SLURM_"}
        return PipeTransport(["sh", "-c"], env)
    if node.host.startswith(POD):
        return into_pod(node.host)
    from hadar_cli.ssh.transport import SshTransport  # here: what stays local need not wait for it

    return SshTransport(node)
