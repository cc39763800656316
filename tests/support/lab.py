"""A cluster on this computer: private SSH servers of unequal speed, for tests and newcomers.

Standard library only, so that ``scripts/lab`` runs before anything is installed.

    lab/nodes.toml, known_hosts     for hadar: -n lab/nodes.toml
        id_ed25519, id_ed25519.pub  the key that opens every node
        lab.json                    what runs: pid and start time of each server
        <node>/home/                what the node's user sees as ~
        <node>/sshd.log             what its server has to say
"""

from __future__ import annotations

import json
import os
import pwd
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import ClassVar

from tests.support.sshd import LabError, Sshd, find_sshd, free_ports, make_key

__all__ = ["PROFILES", "Lab", "LabError", "LabNode", "running"]

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Model:
    """A machine to emulate: its GPU, and the share of one core that it trains at."""

    name: str
    gpu: str
    speed: float
    price_per_hour: float | None = None


# The paper's two clusters. Speeds add up to 1.6 cores at the most: a machine with two keeps pace.
PROFILES: dict[str, tuple[Model, ...]] = {
    "testbed": (
        Model("titan-rtx", "TITAN RTX", 0.44),
        Model("t4", "T4", 0.23),
        Model("t400", "T400", 0.066),
        Model("rtx3090", "RTX 3090", 0.55),
        Model("a2000", "RTX A2000", 0.25),
    ),
    "aws": (
        Model("v100", "V100", 0.60, 3.06),
        Model("k80-1", "K80", 0.12, 0.90),
        Model("k80-2", "K80", 0.12, 0.90),
        Model("t4-1", "T4", 0.30, 0.526),
        Model("t4-2", "T4", 0.30, 0.526),
    ),
}


@dataclass(kw_only=True)
class LabNode(Sshd):
    """A private SSH server that stands for a machine."""

    name: str
    gpu: str
    speed: float
    price_per_hour: float | None = None


class LabFolder:
    """What labs of clusters have alike: a folder of their own, with an inventory in it."""

    kind: ClassVar[str]  # the key of ``lab.json`` that no other kind of lab has
    path: str
    models: list[Model]

    @classmethod
    def is_in(cls, directory: Path) -> bool:
        with suppress(OSError, ValueError):
            return cls.kind in json.loads((directory / "lab.json").read_text())
        return False

    @property
    def directory(self) -> Path:
        return Path(self.path)

    @property
    def inventory(self) -> Path:
        return self.directory / "nodes.toml"

    @property
    def workdir(self) -> Path:
        return self.directory / "workdir"

    @property
    def names(self) -> list[str]:
        return [model.name for model in self.models]


class Lab:
    """The lab in one directory. ``up`` makes it, ``open`` finds it again, ``down`` removes it."""

    def __init__(self, directory: Path, nodes: list[LabNode]) -> None:
        self.directory = directory
        self.nodes = nodes
        self.inventory = directory / "nodes.toml"
        self.known_hosts = directory / "known_hosts"
        self.identity_file = directory / "id_ed25519"

    @classmethod
    def up(cls, directory: Path, profile: str = "testbed", count: int | None = None) -> Lab:
        """Starts ``count`` machines like the profile's and returns when all of them answer."""
        directory = directory.resolve()
        require_no_lab(directory)
        find_sshd()
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if any(directory.iterdir()):
            raise LabError(f"{directory} is not empty, and no lab: move it away first")
        models = models_of(profile, count or len(PROFILES[profile]))
        ports = free_ports(len(models))
        lab = cls(directory, [_node(directory, *pair) for pair in zip(models, ports, strict=True)])
        try:
            lab._save()
            make_key(lab.identity_file)
            for node in lab.nodes:
                node.furnish()
            lab.start(*lab.names)
            lab.trust()
            lab._write_inventory()
        except BaseException:
            lab.down()
            raise
        return lab

    @classmethod
    def open(cls, directory: Path) -> Lab:
        directory = directory.resolve()
        try:
            rows = json.loads((directory / "lab.json").read_text())
        except FileNotFoundError:
            raise LabError(f"there is no lab in {directory}: scripts/lab up makes one") from None
        return cls(directory, [LabNode(**row) for row in rows])

    def down(self) -> None:
        """Ends every process of the lab and removes its directory."""
        for node in self.nodes:
            node.end()
        shutil.rmtree(self.directory)

    @property
    def names(self) -> list[str]:
        return [node.name for node in self.nodes]

    def __getitem__(self, name: str) -> LabNode:
        return next(node for node in self.nodes if node.name == name)

    def ssh(self, name: str, *command: str) -> list[str]:
        """The command line that reaches a node without looking at the user's own SSH files."""
        options = {
            "UserKnownHostsFile": f'"{self.known_hosts}"',
            "GlobalKnownHostsFile": os.devnull,
            "IdentitiesOnly": "yes",
            "StrictHostKeyChecking": "yes",
            "BatchMode": "yes",
        }
        words = [f"-o{key}={value}" for key, value in options.items()]
        place = ["-i", str(self.identity_file), "-p", str(self[name].port)]
        return ["ssh", "-F", "none", *words, *place, "127.0.0.1", *command]

    # -- good and bad luck -------------------------------------------------------------------

    def start(self, *names: str) -> None:
        """Starts servers that are down; each keeps its port and host key."""
        nodes = [self[name] for name in names]
        try:
            for node in nodes:
                node.start(self.identity_file.with_suffix(".pub"))
        finally:
            self._save()
        for node in nodes:
            node.await_up()

    def stop(self, name: str, sessions: bool = True) -> None:
        """Ends a server, and with ``sessions`` whatever was started through it."""
        self[name].end(sessions)
        self._save()

    def pause(self, name: str) -> None:
        """A hung machine: the kernel accepts connections, and nobody answers."""
        os.kill(self[name].pid, signal.SIGSTOP)

    def unpause(self, name: str) -> None:
        os.kill(self[name].pid, signal.SIGCONT)

    def change_host_key(self, name: str) -> None:
        """The machine was set up anew, or someone sits in between; known_hosts stays."""
        self.stop(name)
        make_key(self[name].path / "host_key")
        self.start(name)

    def configure(self, name: str, **options: str) -> None:
        """Restarts the server with these lines in its configuration; an empty one is left out."""
        self.stop(name)
        self[name].options = options
        self.start(name)

    def use_shell(self, name: str, shell: str) -> None:
        self[name].use_shell(shell)

    def trust(self) -> None:
        """Writes the nodes' host keys of now to the lab's known_hosts."""
        lines = [f"[127.0.0.1]:{node.port} {node.host_key()}\n" for node in self.nodes]
        self.known_hosts.write_text("".join(lines))

    # -- files -------------------------------------------------------------------------------

    def _save(self) -> None:
        part = self.directory / "lab.json.part"
        part.write_text(json.dumps([asdict(node) for node in self.nodes], indent=1))
        part.replace(self.directory / "lab.json")

    def _write_inventory(self) -> None:
        shared = {
            "host": "127.0.0.1",
            "user": pwd.getpwuid(os.geteuid()).pw_name,
            "identity_file": str(self.identity_file),
            "known_hosts": str(self.known_hosts),
            "python": python_with_torch(),
        }
        lines = ["# Private SSH servers on this computer; `scripts/lab down` removes them.", ""]
        lines += ["[defaults]", *(f"{k} = {json.dumps(v)}" for k, v in shared.items() if v)]
        for node in self.nodes:
            lines += ["", "[[node]]", f'name = "{node.name}"', f"port = {node.port}"]
            lines += [f'gpus = [{{ model = "{node.gpu}" }}]']
            lines += [f"emulate = {{ speed = {node.speed:.4g} }}"]
            if node.price_per_hour is not None:
                lines.append(f"price_per_hour = {node.price_per_hour}")
        self.inventory.write_text("\n".join(lines) + "\n")


@contextmanager
def running(directory: Path, count: int = 1, profile: str = "testbed") -> Iterator[Lab]:
    """A lab for the length of a ``with`` block."""
    lab = Lab.up(directory, profile, count)
    try:
        yield lab
    finally:
        lab.down()


def require_no_lab(directory: Path) -> None:
    if (directory / "lab.json").exists():
        raise LabError(f"there is a lab in {directory} already: scripts/lab down removes it")


def models_of(profile: str, count: int) -> list[Model]:
    """``count`` machines like the profile's, over again if need be; together no faster than it."""
    known = PROFILES[profile]
    slowdown = min(1.0, len(known) / count)
    models = []
    for number in range(count):
        turn, place = divmod(number, len(known))
        model = known[place]
        name = f"{model.name}-r{turn + 1}" if turn else model.name
        models.append(replace(model, name=name, speed=model.speed * slowdown))
    return models


def _node(lab: Path, model: Model, port: int) -> LabNode:
    return LabNode(directory=str(lab / model.name), port=port, **asdict(model))


def python_with_torch() -> str | None:
    """The interpreter that has torch, if there is a virtual environment yet."""
    if sys.prefix != sys.base_prefix:
        return sys.executable
    path = ROOT / ".venv" / "bin" / "python"
    return str(path) if path.exists() else None
