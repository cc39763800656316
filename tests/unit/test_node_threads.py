"""The threads of node sessions: no node waits for another, no device of a node for its sibling."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from hadar_cli.core.model import Gpu, Job, Launch, Node
from hadar_cli.engine.ports import HandedIn, Merged
from hadar_cli.nodes.executor import NodeExecutor
from hadar_cli.nodes.session import decisions
from hadar_cli.nodes.session.threads import SessionThreads
from tests.contract.test_executor import order

LONG_S = 20.0
CARD = Gpu("RTX 3090", 36.0, 24.0)
DEVICES = 3


class Link:
    """An agent's; a stalled one takes no word until it is cut."""

    why_ended = ""

    def __init__(self) -> None:
        self.is_stalled, self.is_cut = False, threading.Event()
        self.renewals = 0

    @property
    def heard_at(self) -> float:
        return 0.0 if self.is_stalled else time.monotonic()

    def ask(self, do: str, timeout_s: float = LONG_S, **fields: Any) -> dict[str, Any]:
        return {"attempts": {}, "worker": fields.get("worker", ""), "number": 1}

    def tell(self, do: str, **fields: Any) -> None:
        if self.is_stalled:
            self.is_cut.wait(3 * LONG_S)
        self.renewals += do == "renew"

    def close(self) -> None: ...


class Connected:
    """A connection whose files move only once those of all devices do."""

    directory = token = nursery = door = ""

    def __init__(self, name: str) -> None:
        self.node = Node(name, "local", gpus=(CARD,) * DEVICES, emulated_speed=1.0)
        self.link = Link()
        self.aborted = threading.Event()
        self._all_out = threading.Barrier(DEVICES, timeout=LONG_S)
        self._all_in = threading.Barrier(DEVICES, timeout=LONG_S)

    def open_agent(self, on_event: object, on_end: object) -> Link:
        return self.link

    def place(self, job: Job) -> Launch:
        return job.launch

    def push(self, digest: str, *_: object) -> str:
        self._all_out.wait()
        return "/there"

    def pull(self, path: str, *_: object) -> str:
        self._all_in.wait()
        return "a" * 64

    def heard_at(self) -> float:
        return 0.0

    def recalled(self, idle_s: float) -> str:
        return ""

    def abort(self) -> None:
        self.aborted.set()

    def close(self) -> None: ...

    end_transfers = close


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Any]]:
    """Sessions, open, that look a hundred times a second."""
    monkeypatch.setattr(decisions, "LOOK_EVERY_S", 0.01)
    sessions: list[SessionThreads] = []

    def begin(name: str) -> tuple[SessionThreads, Connected, list[Any]]:
        told: list[Any] = []
        connection = Connected(name)
        sessions.append(SessionThreads(cast(Any, connection), 1, told.append))
        sessions[-1].begin([])
        wait_until(lambda: connection.link.renewals)
        return sessions[-1], connection, told

    yield begin
    for session in sessions:
        session.stop(0.0)


def wait_until(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + LONG_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_node_that_takes_no_word_is_cut_and_the_other_one_s_lease_is_renewed(begun):
    (_, stalled, _), (_, well, _) = begun("stalled"), begun("well")
    stalled.link.is_stalled = True
    try:
        assert stalled.aborted.wait(LONG_S)  # its own watchdog waits for no word
        before = well.link.renewals
        wait_until(lambda: well.link.renewals > before + 5)
    finally:
        stalled.link.is_cut.set()


def test_files_of_one_node_s_devices_move_side_by_side(begun):
    session, connection, told = begun("n")
    for device in connection.node.devices:
        at = f"a{device.index}"
        session.start(order(at, (0, 10), device=device.name, weights="a" * 64))
    for device in connection.node.devices:
        result = {"steps": 10, "waiting": True}
        done = {"event": "finished", "result": result, "checkpoint": "/made", "bytes": 9}
        session._on_event({**done, "attempt": f"a{device.index}"})
    wait_until(lambda: sum(isinstance(report, HandedIn) for report in told) == DEVICES)


def test_the_scheduling_thread_does_not_wait_for_a_merge():
    executor, may_end = NodeExecutor([], 1, 0.0), threading.Event()

    def merge() -> Merged:
        assert may_end.wait(LONG_S)
        return Merged(0, cast(Any, None), 0.0)

    executor.aside(merge)
    assert executor.wait(executor.now()) == []  # it is here while the merge still goes on
    may_end.set()
    assert executor.wait(executor.now() + LONG_S) == [Merged(0, cast(Any, None), 0.0)]
