"""Checkpoints of one node's devices over real SSH, side by side."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from hadar_cli.config.inventory import read_nodes
from hadar_cli.core.model import Mix, Node
from hadar_cli.nodes.remote import RemoteAccess, RemoteConnection
from hadar_cli.nodes.wire import LinkLostError
from hadar_cli.project.packing import CodePacker
from hadar_cli.runs.store import RunFacts, RunStore
from hadar_cli.ssh import bulk
from hadar_cli.ssh.transport import SshTransport
from tests.integration.test_ssh import stored
from tests.support.lab import Lab, running

LARGE, SMALL = 9 << 20, 3 << 20  # by a process of its own, and over the connection's channels
LONG_S = 60.0


@pytest.fixture(scope="module")
def lab(tmp_path_factory) -> Iterator[Lab]:
    with running(tmp_path_factory.mktemp("transfers") / "lab", count=1) as lab:
        yield lab


@pytest.fixture
def node(lab, tmp_path) -> Node:
    return replace(read_nodes(lab.inventory)[0], workdir=str(tmp_path / "workdir"))


@pytest.fixture
def store(tmp_path) -> RunStore:
    return RunStore.create(tmp_path / "runs", RunFacts("r", Mix("m", ()), (), "", ""))


@pytest.fixture
def connection(node, store) -> Iterator[RemoteConnection]:
    access = RemoteAccess(node, SshTransport(node))
    connection = RemoteConnection(access, store, CodePacker(store.directory / "code"))
    yield connection
    connection.close()


@pytest.fixture(params=["ssh processes", "channels"])
def way(request, monkeypatch) -> str:
    if request.param == "channels":  # as with jump hosts, and on heads without an ssh
        monkeypatch.setattr(bulk, "can_reach", lambda endpoint: False)
    return request.param


@pytest.mark.parametrize("size", [LARGE, SMALL])
def test_results_of_several_devices_arrive_side_by_side(connection, way, tmp_path, size):
    """Each waits, with bytes under way, until all others have some too."""
    contents = {tmp_path / f"made-{number}": os.urandom(size) for number in range(3)}
    for path, content in contents.items():
        path.write_bytes(content)
    all_move = threading.Barrier(3, timeout=LONG_S)

    def pull(path: Path) -> str:
        has_waited = False

        def tell(done: int, total: int) -> None:
            nonlocal has_waited
            if done and not has_waited:
                has_waited = True
                all_move.wait()

        return connection.pull(str(path), size, tell)

    with ThreadPoolExecutor(3) as pool:
        digests = list(pool.map(pull, contents))
    found = [connection._store.object_path(digest).read_bytes() for digest in digests]
    assert found == list(contents.values())


def test_devices_that_start_from_the_same_weights_get_them_once(connection, store):
    digest = stored(store, os.urandom(LARGE))
    sent: list[str] = []

    def push(device: str) -> str:
        def tell(done: int, total: int) -> None:
            if done:
                sent.append(device)

        return connection.push(digest, "weights of 0", lambda: [digest], tell)

    with ThreadPoolExecutor(4) as pool:
        places = set(pool.map(push, "abcd"))
    [place] = places
    assert Path(place).stat().st_size == LARGE
    assert len(set(sent)) == 1


def test_an_order_under_way_keeps_its_weights_while_others_come_and_go(connection, store):
    """Four devices, each with weights of its own, one after another and all at once."""
    digests = [[stored(store, os.urandom(SMALL)) for _ in range(3)] for _ in range(4)]
    under_way: dict[int, str] = {}

    def train(device: int) -> None:
        for digest in digests[device]:
            under_way[device] = digest
            place = connection.push(digest, "weights of 0", lambda: list(under_way.values()))
            assert Path(place).stat().st_size == SMALL

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(train, range(4)))
    objects = next(Path(connection.directory).parent.glob("*/objects"))
    assert {path.name for path in objects.iterdir()} >= set(under_way.values())


def test_the_end_of_transfers_leaves_the_connection(connection, tmp_path, way):
    made = tmp_path / "made"
    made.write_bytes(os.urandom(LARGE))
    moves, is_ended = threading.Event(), threading.Event()

    def tell(done: int, total: int) -> None:
        if done:
            moves.set()
            is_ended.wait(LONG_S)

    with ThreadPoolExecutor(1) as pool:
        pulled = pool.submit(connection.pull, str(made), LARGE, tell)
        assert moves.wait(LONG_S)
        connection.end_transfers()
        is_ended.set()
        with pytest.raises(LinkLostError):
            pulled.result(LONG_S)
    assert connection.pull(str(made), LARGE)
