"""A small real cluster to break: SSH servers on loopback, each behind a link of its own."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hadar_cli.node.agent import processes
from tests.faults.proxy import Proxy
from tests.support.lab import Lab, LabNode
from tests.support.sshd import descendants as below
from tests.support.sshd import free_ports

JOB = Path(__file__).with_name("real_job.py")
# Starts faster than that of a virtual environment, and the job needs nothing installed.
PYTHON = getattr(sys, "_base_executable", sys.executable)


class Site:
    """A lab whose nodes are reached through proxies; faults strike the first node."""

    def __init__(self, directory: Path, count: int = 2) -> None:
        self.directory = directory
        self.lab = Lab.up(directory / "lab", count=count)
        ports = free_ports(count)
        self.links = {
            node.name: Proxy(port, node.port)
            for node, port in zip(self.lab.nodes, ports, strict=True)
        }
        self.victim, self.others = self.lab.names[0], self.lab.names[1:]
        self.extra: dict[str, dict[str, object]] = {}  # node -> more of its inventory
        self.aliases: dict[str, str] = {}  # further names in the inventory -> node
        self.furniture: set[str] = set()  # what a fault put into the nodes' homes
        self.job = JOB.read_text()  # the script that is trained
        self.head_env: dict[str, str] = {}  # more of the head's environment
        self.gpus: object = None  # those that the victim has by the word of its tools
        self.another: object = None  # another head's run on the same nodes
        self.steps_of_another = 0  # that count in it
        self._write_known_hosts()
        self.empty()

    def _write_known_hosts(self) -> None:
        lines = [f"[127.0.0.1]:{self.links[n.name].port} {n.host_key()}\n" for n in self.lab.nodes]
        (self.directory / "known_hosts").write_text("".join(lines))

    def trust_at(self, address: str) -> None:
        """The victim's server is known at this address, too."""
        with (self.directory / "known_hosts").open("a") as file:
            file.write(f"[{address}]:{self.node.port} {self.node.host_key()}\n")

    @property
    def link(self) -> Proxy:
        """The way to the victim."""
        return self.links[self.victim]

    @property
    def node(self) -> LabNode:
        return self.lab[self.victim]

    def write_inventory(self, path: Path) -> None:
        shared = {
            "host": "127.0.0.1",
            "user": pwd.getpwuid(os.geteuid()).pw_name,
            "identity_file": str(self.lab.identity_file),
            "known_hosts": str(self.directory / "known_hosts"),
            "python": PYTHON,
        }
        lines = ["[defaults]", *(f"{key} = {json.dumps(value)}" for key, value in shared.items())]
        names = {**{name: name for name in self.links}, **self.aliases}
        for name, node in names.items():
            facts = {"name": name, "port": self.links[node].port, **self.extra.get(name, {})}
            lines += ["[[node]]", *(f"{key} = {_toml(value)}" for key, value in facts.items())]
        path.write_text("\n".join(lines) + "\n")

    # -- who is there ------------------------------------------------------------------------

    def pids(self, who: str) -> list[int]:
        """Living processes of that kind on the victim."""
        if who == "sshd":
            return [self.node.pid, *connections(self.node.pid)]
        if who == "everyone":
            return [self.node.pid, *connections(self.node.pid), *self.node.sessions()]
        if who == "session":
            return connections(self.node.pid)
        if who in ("worker", "supervisor"):
            found = []
            for path in self.node.home.glob(".hadar/runs/*/*/workers/*/worker.json"):
                pid, started = _read(path).get(who, (0, 0))
                if pid and processes.is_alive(pid, started):
                    found.append(pid)
            return found
        # Of the programs that the head began, only the agent has a child, alive or dead: the
        # nursery. Workers and their supervisors are forks of that, and look like it.
        begun = [pid for pid in self.node.sessions() if b"FileIO" in _command(pid)]
        if who == "agent":
            return [pid for pid in begun if below(pid)]
        return [pid for one in begun for pid in below(one) if b"nursery.py" in _command(pid)]

    def signal_all(self, who: str, signum: int) -> int:
        """How many of them were there, and got it."""
        struck = 0
        for pid in self.pids(who):
            try:
                os.kill(pid, signum)
                struck += 1
            except ProcessLookupError:
                continue
        return struck

    def steps_trained(self) -> int:
        """Those of the run, done in vain or not."""
        files = {(node.home / "trained").resolve() for node in self.lab.nodes}
        trained = sum(path.stat().st_size for path in files if path.exists())
        return trained - self.steps_of_another

    # -- between runs ------------------------------------------------------------------------

    def heal(self) -> None:
        """As it was before any fault."""
        for link in self.links.values():
            link.is_cut, link.bytes_per_s = False, float("inf")
            link.delay_s, link.loss, link.buffer_bytes = 0.0, 0.0, 0
            link.open()
        for node in self.lab.nodes:
            for pid in (node.pid, *below(node.pid), *node.sessions()) if node.pid else ():
                _send(pid, signal.SIGCONT)
            if not node.is_up:
                self.lab.start(node.name)

    def empty(self) -> None:
        """No process and no file of an earlier run."""
        for node in self.lab.nodes:
            for pid in node.sessions():
                _send(pid, signal.SIGKILL)
            shutil.rmtree(node.home, ignore_errors=True)
            node.home.mkdir(mode=0o700, exist_ok=True)
            (node.home / "canary").write_text("sings")
        self.extra.clear()
        self.aliases.clear()
        self.furniture.clear()
        self.head_env.clear()
        self.steps_of_another = 0
        self.job = JOB.read_text()

    def furnish(self, name: str, content: str) -> Path:
        """Puts a file into the victim's home."""
        path = self.node.home / name
        path.write_text(content)
        path.chmod(0o700)
        self.furniture.add(name)
        return path

    def form_habits(self, habits: dict[str, dict[str, float]]) -> None:
        """By node: how the job behaves there."""
        self.furniture.add("habits.json")
        for name, ones in habits.items():
            (self.lab[name].home / "habits.json").write_text(json.dumps(ones))

    def down(self) -> None:
        for link in self.links.values():
            link.end()
        self.lab.down()


@contextmanager
def site(directory: Path, count: int = 2) -> Iterator[Site]:
    made = Site(directory, count)
    try:
        yield made
    finally:
        made.heal()
        made.down()


def _toml(value: object) -> str:
    """Texts, numbers, and lists of tables."""
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_toml(one)}" for key, one in value.items()) + " }"
    return json.dumps(value)


def connections(server: int) -> list[int]:
    """The sshd processes that serve connections; what runs through them is below these."""
    return [pid for pid in below(server) if b"sshd" in _command(pid)] if server else []


def _send(pid: int, signum: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signum)


def _read(path: Path) -> dict[str, tuple[int, int]]:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return {}


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
