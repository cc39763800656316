"""A bridge to Ray that dies under its head, with a stand-in for what speaks with the cluster."""

import os
import signal
import threading
import time

import pytest

from hadar_cli.core.model import Node
from hadar_cli.core.ray import RayRequest
from hadar_cli.nodes.wire import LinkLostError, NotYetError
from hadar_cli.ray_cluster import transport
from hadar_cli.ray_cluster.transport import Bridge, RayTransport

# Answers as the file says: at once, never, or by its end.
STAND_IN = """
import pathlib, signal, socket, sys
control, way = socket.socket(fileno=0), pathlib.Path(sys.argv[2])
kept = []
while way.read_text() != "ends":
    content, sockets, _, _ = socket.recv_fds(control, 65536, 2)
    if not content:
        break
    kept += sockets
    if way.read_text() == "answers":
        socket.socket(fileno=sockets[-1]).send(b'{"ready": true}\\n')
"""


@pytest.fixture
def node(tmp_path, monkeypatch) -> RayTransport:
    monkeypatch.setattr(transport, "_START", STAND_IN)
    monkeypatch.setattr(transport, "_BRIDGES", {})
    way = tmp_path / "way"
    way.write_text("answers")
    return RayTransport(Node("a", f"ray:{way}", ray=RayRequest()), "r", str(tmp_path))


def bridge(node: RayTransport) -> Bridge:
    return node._bridge


def kill(node: RayTransport) -> None:
    process = bridge(node)._process
    assert process
    os.kill(process.pid, signal.SIGKILL)
    process.wait()


def open_in_vain(node: RayTransport) -> None:
    with pytest.raises(LinkLostError):
        node.open("x")


def test_while_a_killed_bridge_is_replaced_its_nodes_do_not_count_as_silent(node, tmp_path):
    """Joining a cluster anew may take longer than a node may be silent; all of them would be."""
    node.open("x")
    assert node.heard_at() == 0.0, "the agent's own words count"
    kill(node)
    (tmp_path / "way").write_text("waits")
    trying = threading.Thread(target=open_in_vain, args=(node,))
    trying.start()
    deadline = time.monotonic() + 30.0
    while not node.heard_at():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert node.heard_at() > time.monotonic() - 5.0
    node.abort()
    trying.join()
    assert node.heard_at() == 0.0, "nobody is joining any more"
    kill(node)


def test_a_cluster_that_was_there_is_waited_for(node, tmp_path):
    node.open("x")
    kill(node)
    (tmp_path / "way").write_text("ends")
    with pytest.raises(NotYetError, match="speaks with Ray"):
        node.open("x")


def test_a_cluster_that_was_never_there_is_not(node, tmp_path):
    (tmp_path / "way").write_text("ends")
    with pytest.raises(LinkLostError) as caught:
        node.open("x")
    assert not isinstance(caught.value, NotYetError)
