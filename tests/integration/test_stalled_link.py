"""A link that takes nothing any more, in the middle of an upload, harms no other node."""

import os
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from hadar_cli.assembly import connect
from hadar_cli.config.inventory import read_nodes
from hadar_cli.core.model import Job, Launch, Mix, Node
from hadar_cli.engine.ports import Failed, HandedIn, NodeBack, NodeGone
from hadar_cli.nodes.executor import NodeExecutor
from hadar_cli.nodes.session import decisions, returning
from hadar_cli.runs.store import RunFacts, RunStore
from hadar_cli.ssh import bulk
from hadar_cli.ssh.link import SshLink
from tests.contract.test_executor import order
from tests.faults.proxy import Proxy
from tests.integration.test_ssh import wait_for
from tests.support.lab import running
from tests.support.sshd import free_ports

LEASE_S = 4.0
STEPS = 90
# Longer than two leases for all of its steps, whatever else the machine does.
SLOW = """
import time
import torch
from hadar_cli import training
model = torch.nn.Linear(2, 1)
data = torch.utils.data.TensorDataset(torch.randn(64, 2), torch.randn(64, 1))
with training(model, torch.optim.SGD(model.parameters(), 0.1)) as t:
    for x, y in t.loader(data, batch_size=8):
        time.sleep(0.1)
        t.step(((model(x) - y) ** 2).mean())
"""


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short leases, files through paramiko, and a small send buffer, which a stall soon fills."""
    monkeypatch.setattr(decisions, "LEASE_S", LEASE_S)
    monkeypatch.setattr(decisions, "LOOK_EVERY_S", 0.5)
    monkeypatch.setattr(returning, "RETURN_EVERY_S", 0.5)
    monkeypatch.setattr(bulk, "can_reach", lambda endpoint: False)
    reach = SshLink._reach

    def reach_by_a_small_buffer(link: SshLink) -> socket.socket:
        reached = reach(link)
        reached.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 14)
        return reached

    monkeypatch.setattr(SshLink, "_reach", reach_by_a_small_buffer)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[tuple[Node, Node, Proxy]]:
    """A node behind a link that can stall, and one beside it."""
    with running(tmp_path / "lab", count=2) as lab:
        nodes = [replace(n, gpus=(), emulated_speed=None) for n in read_nodes(lab.inventory)]
        [port] = free_ports(1)
        proxy = Proxy(port, lab.nodes[0].port)
        proxy.buffer_bytes = 1 << 14  # or else it would take a whole window of a stalled channel
        with lab.known_hosts.open("a") as file:
            file.write(f"[127.0.0.1]:{port} {lab.nodes[0].host_key()}\n")
        yield replace(nodes[0], port=port), nodes[1], proxy
        proxy.end()


def test_a_stalled_upload_costs_its_own_node_only(impatient, site, tmp_path):
    stalled, well, proxy = site
    script = tmp_path / "script.py"
    script.write_text(SLOW)
    job = Job(0, "script", 10_000_000, 8, launch=Launch(script=str(script)))
    store = RunStore.create(tmp_path / "runs", RunFacts("r", Mix("m", ()), (), "", ""))
    (tmp_path / "weights").write_bytes(os.urandom(40_000_000))
    weights = store.take_in(tmp_path / "weights")
    executor = NodeExecutor(connect([stalled, well], store), 1, 0.0)
    executor.adopt([])
    try:
        proxy.bytes_per_s = 4e6
        executor.start(order("a", (0, 50), job=job, device=stalled.name, weights=weights))
        while proxy.passed < 5e6:
            executor.wait(executor.now() + 0.05)
        proxy.is_cut = True
        executor.start(order("b", (0, STEPS), job=job, device=well.name, seconds=100.0))
        reports = wait_for(executor, HandedIn)
        [done] = [r for r in reports if isinstance(r, HandedIn)]
        assert (done.attempt, done.result.slices) == ("b", ((0, STEPS),))
        assert [r.devices for r in reports if isinstance(r, NodeGone)] == [(stalled.name,)]
        assert [r.attempt for r in reports if isinstance(r, Failed)] == ["a"]
        proxy.is_cut, proxy.bytes_per_s = False, float("inf")
        assert isinstance(wait_for(executor, NodeBack)[-1], NodeBack)
    finally:
        proxy.is_cut = False
        executor.stop(0.0)
