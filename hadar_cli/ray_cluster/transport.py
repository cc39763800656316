"""Streams to a machine of a Ray cluster, through the bridge."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec
from typing import Any

from hadar_cli.core.model import Node
from hadar_cli.core.ray import PREFIX
from hadar_cli.errors import InputError
from hadar_cli.nodes.connection import PATIENCE_S
from hadar_cli.nodes.wire import LinkLostError, NotYetError, said
from hadar_cli.ray_cluster.stream import BridgedStream, is_ready

_ANSWER_S = 90.0  # of Ray: a keeper's start, or its end, included
_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv.pop(1)); "
    "from hadar_cli.ray_cluster.bridge import main; main()"
)
_LONGEST_COMPLAINT = 2000


class UnreachableError(LinkLostError):
    """There is no such cluster, as far as Ray can tell, or nobody who speaks with it."""


class NeverError(LinkLostError):
    """No machine of the cluster, as it is now, has what is asked for."""


_KINDS: dict[str, type[LinkLostError]] = {
    "later": NotYetError,
    "never": NeverError,
    "unreachable": UnreachableError,
}


class Bridge:
    """The process through which this head reaches one cluster; started when first needed."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._starting = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the process
        self.is_joining = False  # the cluster: it has not answered yet
        self.was_joined = False  # ever

    def ask(self, request: dict[str, Any], data: socket.socket | None = None) -> socket.socket:
        """Where the answers will come."""
        ours, theirs = socket.socketpair()
        lent = [one.fileno() for one in (data, theirs) if one]
        with self._starting, theirs:
            for _ in range(2):  # one that has ended since the last time is replaced
                with suppress(OSError):
                    socket.send_fds(self._running(), [json.dumps(request).encode()], lent)
                    return ours
                self._end()
        ours.close()
        raise UnreachableError(f"the process that speaks with Ray ends at once: {self.complaint()}")

    def joined(self) -> None:
        self.is_joining, self.was_joined = False, True

    def complaint(self) -> str:
        size = self._errors.seek(0, 2)
        self._errors.seek(max(0, size - _LONGEST_COMPLAINT))
        return said(self._errors.read().decode(errors="replace").strip())

    def _running(self) -> socket.socket:
        if not self._process or self._process.poll() is not None:
            self._end()
            self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            words = [sys.executable, "-c", _START, json.dumps(sys.path), self._address]
            self.is_joining = True
            with theirs:
                self._process = subprocess.Popen(
                    words,
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    stderr=self._errors,
                    start_new_session=True,
                )
        return self._control

    def _end(self) -> None:
        if self._process:
            self._control.close()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(5.0)
            self._process.kill()
            self._process.wait()
            self._process = None


_BRIDGES: dict[str, Bridge] = {}
_bridging = threading.Lock()


def bridge_to(host: str) -> Bridge:
    """All nodes of a process share one."""
    address = host if host.startswith(f"{PREFIX}//") else host.removeprefix(PREFIX)
    address = "auto" if address == f"{PREFIX}//auto" else address
    with _bridging:
        return _BRIDGES.setdefault(address, Bridge(address))


def hear(answers: socket.socket, bridge: Bridge, patience_s: float = _ANSWER_S) -> dict[str, Any]:
    """One line, raised if it is an error."""
    line = bytearray()
    while not line.endswith(b"\n"):
        if not is_ready(answers, patience_s):
            raise UnreachableError(f"Ray did not answer within {patience_s:.0f} s")
        byte = answers.recv(1)
        if not byte:
            why = f"the process that speaks with Ray has ended: {bridge.complaint()}"
            raise UnreachableError(why)
        line += byte
    answer: dict[str, Any] = json.loads(line)
    kind = _KINDS.get(answer.get("kind", ""), LinkLostError)
    if kind is not UnreachableError:
        bridge.joined()
    if "error" in answer:
        raise kind(said(answer["error"]))
    return answer


class RayTransport:
    """One node of a run or, without a ``run``, of a visit, for which nothing is taken."""

    def __init__(self, node: Node, run: str | None = None, directory: str = "") -> None:
        self._bridge = bridge_to(node.host)
        self._name = keeper_name(run, node.name) if run else None
        self._request = {"name": self._name, "directory": directory, "wanted": wanted(node)}
        self._streams: list[BridgedStream] = []
        self._opening: socket.socket | None = None

    def open(self, command: str) -> BridgedStream:
        ours, theirs = socket.socketpair()
        with theirs:
            request = {"do": "open", "command": command, **self._request}
            answers = self._opening = self._bridge.ask(request, theirs)
        try:
            hear(answers, self._bridge)
        except (LinkLostError, OSError) as error:
            ours.close()
            answers.close()
            raise self._in_a_run(error) from error
        finally:
            self._opening = None
        stream = BridgedStream(ours, answers, PATIENCE_S)
        self._streams = [one for one in self._streams if not one.is_closed] + [stream]
        return stream

    def _in_a_run(self, error: Exception) -> LinkLostError:
        """A cluster that was there is waited for: with it, all its nodes would be lost at once."""
        if isinstance(error, UnreachableError) and self._bridge.was_joined:
            return NotYetError(str(error))
        return error if isinstance(error, LinkLostError) else LinkLostError("aborted")

    def open_bulk(self, command: str) -> None:
        return None

    def heard_at(self) -> float:
        """While the bridge is replaced, nobody could say a word."""
        return time.monotonic() if self._opening and self._bridge.is_joining else 0.0

    def abort(self) -> None:
        if opening := self._opening:
            with suppress(OSError):
                opening.shutdown(socket.SHUT_RDWR)
        for stream in list(self._streams):
            stream.cut()

    def close(self) -> None:
        while self._streams:
            stream = self._streams.pop()
            if not self._name:
                stream.complaint()  # a visit's keeper is ended before its last word
            stream.close()

    def recalled(self, idle_s: float) -> str:
        return ""

    def move_on(self) -> None:
        self.give_back()

    def give_back(self) -> None:
        if self._name:
            _, left = _end_keepers(self._bridge, [self._name])
            if left:
                raise LinkLostError(f"Ray does not end the actor {self._name}")


def keeper_name(run: str, node: str) -> str:
    """By this name a head finds its keepers again, whoever started them."""
    return f"hadar:{run}:{node}"


def wanted(node: Node) -> dict[str, Any]:
    request = node.ray
    assert request, node.name
    gpus = len(node.gpus) if request.num_gpus is None else request.num_gpus
    return {
        "node": request.node,
        "num_gpus": gpus,
        "num_cpus": request.num_cpus,
        "resources": dict(request.resources),
        "nth": request.nth,
    }


def _end_keepers(bridge: Bridge, names: Sequence[str]) -> tuple[int, int]:
    with bridge.ask({"do": "give back", "names": list(names)}) as answers:
        told = hear(answers, bridge)
    return int(told["before"]), int(told["after"])


def give_back_keepers(node: Node, runs: Sequence[str]) -> tuple[int, int]:
    """Ends the keepers of these runs; how many there were, and are left."""
    return _end_keepers(bridge_to(node.host), [keeper_name(run, node.name) for run in runs])


def check_place(node: Node) -> str:
    """Which machine the node would be; InputError if there is none."""
    field = f"node {node.name}"
    if not find_spec("ray"):
        fix = "pip install 'hadar[ray]', in the version that the cluster has"
        raise InputError(f"{node.host!r} needs Ray, which is not here", field=field, fix=fix)
    bridge = bridge_to(node.host)
    try:
        with bridge.ask({"do": "check", "wanted": wanted(node)}) as answers:
            return str(hear(answers, bridge)["place"])
    except NeverError as error:
        fix = "mend the request (`ray status`, `ray list nodes`), or add such a machine"
        raise InputError(str(error), field=field, fix=fix) from error
    except LinkLostError as error:
        fix = "does `ray status` work here? `ray start --head` starts a cluster"
        raise InputError(f"no Ray at {node.host}: {error}", field=field, fix=fix) from error
