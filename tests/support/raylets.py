"""A Ray cluster on this computer, for tests and newcomers: raylets of unequal speed.

    lab/nodes.toml      for hadar: -n lab/nodes.toml
        workdir/        what nodes keep
        lab.json        the cluster's address, and the raylet of each node

All processes have HADAR_RAY_LAB in their environment, and what they start has it: ``down`` ends
those. Ray keeps its own files in a short path of /tmp, as sockets cannot have long ones.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from hadar_cli.node.agent import processes
from tests.support.lab import (
    PROFILES,
    ROOT,
    LabFolder,
    Model,
    models_of,
    python_with_torch,
    require_no_lab,
)
from tests.support.sshd import LabError, descendants, free_ports

__all__ = ["RayLab", "running_ray"]

TAG = "HADAR_RAY_LAB"
_START_S = 180.0
# Quiet, and no more processes than it takes: no dashboard, no workers ahead of their use.
_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_enable_worker_prestart": "0",
    "RAY_prestart_worker_first_driver": "0",
    "RAY_enable_metrics_collection": "0",
}
# Runs in a process of its own, which ends: only the cluster's processes stay.
_STARTER = """
import json, sys, types
import ray._private.utils
from ray.cluster_utils import Cluster
ray._private.utils.write_ray_address = lambda *args: None  # `auto` stays what it was
asked = json.load(sys.stdin)
cluster, found = Cluster(shutdown_at_exit=False), {}
if asked["address"]:
    cluster.redis_address = asked["address"]
    cluster.head_node = types.SimpleNamespace(gcs_address=asked["address"])  # it runs already
for name in asked["names"]:
    is_head = cluster.head_node is None
    node = cluster.add_node(
        wait=is_head, node_name=name, resources={name: 1}, num_cpus=4, num_gpus=1,
        node_ip_address="127.0.0.2", include_dashboard=False, include_log_monitor=False,
        object_store_memory=80 << 20, **(asked["of_head"] if is_head else {}),
    )
    found[name] = [one.process.pid for one in node.all_processes["raylet"]]
if not asked["address"]:
    cluster.wait_for_nodes(120)
address = cluster.gcs_address
print(json.dumps({"address": address, "raylets": found}))
"""


@dataclass
class Raylet:
    name: str
    port: int
    gpu: str
    speed: float
    pid: int
    started: int

    @property
    def is_up(self) -> bool:
        return self.pid > 0 and processes.is_alive(self.pid, self.started)


@dataclass(kw_only=True)
class RayLab(LabFolder):
    """The cluster in a directory. ``up`` makes it, ``open`` finds it again, ``down`` removes it."""

    kind = "ray"

    path: str
    temp: str
    models: list[Model]
    address: str = ""
    client_port: int | None = None  # of Ray Client's server, if there is one
    raylets: dict[str, list[int]]

    @classmethod
    def up(
        cls,
        directory: Path,
        profile: str = "testbed",
        count: int | None = None,
        has_client: bool = False,
    ) -> RayLab:
        directory = directory.resolve()
        require_no_lab(directory)
        _find_ray()
        models = models_of(profile, count or len(PROFILES[profile]))
        (directory / "workdir").mkdir(mode=0o700, parents=True)
        temp = tempfile.mkdtemp(prefix="hadar-ray-")
        lab = cls(path=str(directory), temp=temp, models=models, raylets={})
        lab.client_port = free_ports(1)[0] if has_client else None
        try:
            lab.start(*lab.names)
            lab.inventory.write_text(lab._nodes_toml())
        except BaseException:
            lab.down()
            raise
        return lab

    @classmethod
    def open(cls, directory: Path) -> RayLab:
        raw = json.loads((directory.resolve() / "lab.json").read_text())["ray"]
        return cls(**{**raw, "models": [Model(**one) for one in raw["models"]]})

    def down(self) -> None:
        """Ends every process of the cluster, and all that these started."""
        below = (pid for raylet, _ in self.raylets.values() for pid in descendants(raylet))
        known = [(pid, processes.start_time(pid) or 0) for pid in below]  # some hide their tag
        deadline = time.monotonic() + 30.0
        while time.monotonic() < deadline:
            left = {pid for pid, started in known if processes.is_alive(pid, started)}
            left.update(self.processes())
            if not left:
                break
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)
        shutil.rmtree(self.temp, ignore_errors=True)
        shutil.rmtree(self.directory)

    @property
    def nodes(self) -> list[Raylet]:
        port = int(self.address.rpartition(":")[2])
        return [
            Raylet(model.name, port, model.gpu, model.speed, *self.raylets[model.name])
            for model in self.models
        ]

    def processes(self) -> list[int]:
        return [pid for pid in processes.tagged(TAG, self.path) if pid != os.getpid()]

    def keepers(self) -> list[int]:
        """Pids of actors that hadar has there, or had until just now."""
        return [pid for pid in self.processes() if _title(pid).startswith("ray::Keeper")]

    def start(self, *names: str) -> None:
        """Raylets for these machines; the first of all is the cluster's head."""
        of_head = {"temp_dir": self.temp, "ray_client_server_port": self.client_port}
        asked = {"names": names, "address": self.address, "of_head": of_head}
        done = subprocess.run(
            [_python(), "-c", _STARTER],
            input=json.dumps(asked),
            capture_output=True,
            text=True,
            timeout=_START_S,
            env={**os.environ, **_SETTINGS, TAG: self.path},
            start_new_session=True,
            check=False,
        )
        if done.returncode:
            raise LabError(f"Ray did not come up: {done.stderr.strip()[-800:]}")
        told = json.loads(done.stdout.strip().rpartition("\n")[2])
        self.address = told["address"]
        for name, [pid] in told["raylets"].items():
            self.raylets[name] = [pid, processes.start_time(pid) or 0]
        self._save()

    def end(self, name: str) -> None:
        """The machine is gone: its raylet, its actors, and all that hadar started there."""
        pid, started = self.raylets[name]
        family = [pid, *descendants(pid)]
        mine = processes.tagged("RAY_RAYLET_PID", str(pid))
        for one in {*family, *mine}:
            with suppress(ProcessLookupError):
                os.kill(one, signal.SIGKILL)
        processes.wait_gone([(pid, started)], 10.0)

    def _save(self) -> None:
        part = self.directory / "lab.json.part"
        part.write_text(json.dumps({"ray": asdict(self)}, indent=1))
        part.replace(self.directory / "lab.json")

    def _nodes_toml(self) -> str:
        python = python_with_torch()
        lines = ["# A Ray cluster on this computer; `scripts/lab down` removes it."]
        for model in self.models:
            lines += ["", "[[node]]", f'name = "{model.name}"', f'host = "ray:{self.address}"']
            lines += [f'ray = {{ node = "{model.name}" }}', f'workdir = "{self.workdir}"']
            lines += [f'gpus = [{{ model = "{model.gpu}" }}]']
            lines += [f"emulate = {{ speed = {model.speed:.4g} }}"]
            lines += [f'python = "{python}"'] if python else []
            if model.price_per_hour is not None:
                lines.append(f"price_per_hour = {model.price_per_hour}")
        return "\n".join(lines) + "\n"


@contextmanager
def running_ray(
    directory: Path, count: int = 1, profile: str = "testbed", has_client: bool = False
) -> Iterator[RayLab]:
    """A cluster for the length of a ``with`` block."""
    lab = RayLab.up(directory, profile, count, has_client)
    try:
        yield lab
    finally:
        lab.down()


def _title(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    return ""


def _python() -> str:
    """This one, or that of the clone's virtual environment."""
    with suppress(ImportError):
        import ray  # noqa: F401

        return sys.executable
    return str(ROOT / ".venv" / "bin" / "python")


def _find_ray() -> None:
    python = _python()
    if Path(python).exists():
        for _ in range(2):
            words = [python, "-c", "import ray"]
            if not subprocess.run(words, check=False, capture_output=True).returncode:
                return
            print("installing ray", file=sys.stderr)
            pins = ["-c", str(ROOT / "constraints.txt")]
            words = [python, "-m", "pip", "install", "-q", *pins, "ray[client]"]
            subprocess.run(words, check=False, stdout=sys.stderr)
    raise LabError("the lab needs Ray: scripts/setup.sh, then .venv/bin/pip install 'ray[client]'")
