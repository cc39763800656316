"""Which transport reaches a node. A new one, beside SSH, needs a line here."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

from hadar_cli.core.model import LOCAL, Node
from hadar_cli.nodes.connection import Transport
from hadar_cli.nodes.local import LocalAccess
from hadar_cli.nodes.remote import RemoteAccess, directory_of
from hadar_cli.pipes.kubectl import PREFIX, check_kubectl, into_pod
from hadar_cli.pipes.transport import PipeTransport


@dataclass(frozen=True, slots=True)
class GivenBack:
    """Allotted machines, or requests for them, of some runs: how many there were, and are left."""

    before: int = 0
    after: int = 0


def access_to(node: Node, run: str | None = None) -> LocalAccess | RemoteAccess:
    """The one way to the node, for runs and visits alike; nothing is opened yet.

    A machine that is allotted is so to a ``run``. Visits see what is there all the time: its files,
    from the login node.
    """
    if node.is_local:
        return LocalAccess(node)
    if node.slurm and node.host == LOCAL and not node.python:
        node = replace(node, python=sys.executable)  # of a login node, whose files all nodes see
    if node.slurm and run:
        from hadar_cli.slurm.transport import SlurmTransport

        there = SlurmTransport(node, run, directory_of(node, run), _way_to(node))
        return RemoteAccess(node, there)
    if node.ray:
        from hadar_cli.ray_cluster.transport import RayTransport

        return RemoteAccess(node, RayTransport(node, run, directory_of(node, run) if run else ""))
    return RemoteAccess(node, _way_to(node))


def check_request(node: Node) -> str:
    """When or where the node would be allotted, "" if it need not be; InputError if never."""
    if node.host.startswith(PREFIX):
        check_kubectl(node.host)
    if node.ray:
        from hadar_cli.ray_cluster.transport import check_place

        return check_place(node)
    if not node.slurm:
        return ""
    from hadar_cli.slurm.queue import Login

    return Login(node, _way_to(node)).check()


def give_back(node: Node, runs: Sequence[str]) -> GivenBack:
    """Ends what is allotted to these runs on the node's behalf, or waits to be."""
    if node.ray:
        from hadar_cli.ray_cluster.transport import give_back_keepers

        return GivenBack(*give_back_keepers(node, runs))
    if not node.slurm:
        return GivenBack()
    from hadar_cli.slurm.transport import give_back_allocations

    return GivenBack(*give_back_allocations(node, runs, _way_to(node)))


def _way_to(node: Node) -> Transport:
    """To the node itself or, where nodes are allotted, to the machine that does so."""
    if node.host == LOCAL:
        # A head within an allocation of its own asks as any login does.
        env = {k: v for k, v in os.environ.items() if k == "SLURM_CONF" or k[:6] != "SLURM_"}
        return PipeTransport(["sh", "-c"], env)
    if node.host.startswith(PREFIX):
        return into_pod(node.host)
    from hadar_cli.ssh.transport import SshTransport  # here: what stays local need not wait for it

    return SshTransport(node)
