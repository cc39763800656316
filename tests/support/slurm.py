"""A Slurm cluster on this computer: private daemons, own ports, own keys, as many nodes as wanted.

Standard library only, like the lab of SSH servers, whose machines it emulates.

    lab/nodes.toml                  for hadar: -n lab/nodes.toml
        lab.json                    what runs: pid and start time of each daemon
        slurm.conf, gres.conf       for Slurm's own commands: SLURM_CONF=lab/slurm.conf squeue
        log/                        what the daemons have to say
        workdir/                    what all nodes and the login node share

Every node is a ``slurmd`` of its own with one emulated GPU, for which a device file stands.
The partition ``urgent`` takes nodes away from ``lab``, after a few seconds of grace.
"""

from __future__ import annotations

import json
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from hadar_cli.node.agent import processes
from tests.support.lab import (
    PROFILES,
    LabFolder,
    Model,
    models_of,
    python_with_torch,
    require_no_lab,
)
from tests.support.sshd import LabError, descendants, free_ports

__all__ = ["SlurmLab", "running_slurm"]

_NEEDED = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "squeue", "scancel", "scontrol")
_PLACES = os.pathsep.join(("/usr/sbin", "/usr/local/sbin", "/sbin", os.environ.get("PATH", "")))
_START_S = 30.0
_GRACE_S = 20  # of a job that the partition ``urgent`` takes the node from
_KILL_WAIT_S = 10


@dataclass
class Daemon:
    words: list[str]
    pid: int = 0
    started: int = 0

    @property
    def is_up(self) -> bool:
        return self.pid > 0 and processes.is_alive(self.pid, self.started)


@dataclass
class SlurmNode:
    name: str
    port: int
    gpu: str
    speed: float
    daemon: Daemon

    @property
    def pid(self) -> int:
        return self.daemon.pid

    @property
    def is_up(self) -> bool:
        return self.daemon.is_up


@dataclass(kw_only=True)
class SlurmLab(LabFolder):
    """The cluster in a directory. ``up`` makes it, ``open`` finds it again, ``down`` removes it."""

    kind = "slurm"

    path: str
    secrets: str  # a short path: sockets cannot have long ones
    models: list[Model]
    ports: list[int]
    daemons: dict[str, Daemon] = field(default_factory=dict)

    @classmethod
    def up(cls, directory: Path, profile: str = "testbed", count: int | None = None) -> SlurmLab:
        directory = directory.resolve()
        require_no_lab(directory)
        _find_slurm()
        models = models_of(profile, count or len(PROFILES[profile]))
        for name in ("log", "state", "workdir"):
            (directory / name).mkdir(mode=0o700, parents=True)
        lab = cls(
            path=str(directory),
            secrets=tempfile.mkdtemp(prefix="hadar-munge-"),
            models=models,
            ports=free_ports(1 + len(models)),
        )
        try:
            lab._write()
            lab._start_all()
        except BaseException:
            lab.down()
            raise
        return lab

    @classmethod
    def open(cls, directory: Path) -> SlurmLab:
        raw = json.loads((directory.resolve() / "lab.json").read_text())
        daemons = {name: Daemon(**one) for name, one in raw["daemons"].items()}
        models = [Model(**one) for one in raw["models"]]
        return cls(**{**raw["slurm"], "models": models, "daemons": daemons})

    def down(self) -> None:
        """Ends every process of the lab, jobs included, and removes its directory."""
        if all(daemon.is_up for daemon in self.daemons.values()):
            with suppress(LabError, OSError, subprocess.SubprocessError):
                self._end_jobs()
        for daemon in reversed(self.daemons.values()):
            self.end(daemon)
        for pid in self.steps():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.secrets, ignore_errors=True)
        shutil.rmtree(self.directory)

    @property
    def conf(self) -> Path:
        return self.directory / "slurm.conf"

    @property
    def nodes(self) -> list[SlurmNode]:
        """Each machine with its slurmd."""
        rows = zip(self.models, self.ports[1:], strict=True)
        return [
            SlurmNode(model.name, port, model.gpu, model.speed, self.daemons[model.name])
            for model, port in rows
        ]

    def run(self, *words: str, timeout_s: float = 60.0) -> str:
        """One of Slurm's commands, as a user of this cluster."""
        env = {**os.environ, "SLURM_CONF": str(self.conf)}
        done = subprocess.run(
            words, env=env, capture_output=True, text=True, timeout=timeout_s, check=False
        )
        if done.returncode:
            raise LabError(f"{words[0]}: {done.stderr.strip()}")
        return done.stdout

    def jobs(self) -> list[str]:
        """Numbers of all jobs that run, wait or are about to end."""
        return self.run("squeue", "--noheader", "--format=%i").split()

    def steps(self) -> list[int]:
        """Pids of all that runs in jobs, and of who watches it: they outlive their slurmd."""
        found = processes.tagged("SLURM_CONF", str(self.conf))
        daemons = {daemon.pid for daemon in self.daemons.values()}
        return [pid for pid in found if pid not in daemons and _is_of_a_job(pid)]

    def _end_jobs(self) -> None:
        deadline = time.monotonic() + 2.0 * _KILL_WAIT_S
        while self.jobs() and time.monotonic() < deadline:
            self.run("scancel", "--user", _me())
            time.sleep(0.2)

    # -- good and bad luck -------------------------------------------------------------------

    def drain(self, name: str) -> None:
        """An administrator takes a node out: what runs there is ended."""
        self.run("scontrol", "update", f"nodename={name}", "state=drain", "reason=test")
        on_it = self.run("squeue", "--noheader", f"--nodelist={name}", "--format=%i").split()
        if on_it:
            self.run("scancel", *on_it)

    def resume(self, name: str) -> None:
        self.run("scontrol", "update", f"nodename={name}", "state=resume")

    def start(self, name: str) -> None:
        daemon = self.daemons[name]
        with (self.directory / "log" / f"{name}.out").open("ab") as log:
            process = subprocess.Popen(
                daemon.words,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={"PATH": _PLACES, "SLURM_CONF": str(self.conf), "LANG": "C.UTF-8"},
            )
        process.returncode = 0  # ``end`` reaps it: it may outlive the Python that started it
        daemon.pid, daemon.started = process.pid, processes.start_time(process.pid) or 0
        self._save()

    def end(self, daemon: Daemon) -> None:
        """Kills a daemon; the steps that a slurmd has started live on."""
        if daemon.is_up:
            for pid in (*descendants(daemon.pid), daemon.pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            processes.wait_gone([(daemon.pid, daemon.started)], 5.0)
            with suppress(ChildProcessError):
                os.waitpid(daemon.pid, 0)
        daemon.pid = daemon.started = 0

    # -- making it ---------------------------------------------------------------------------

    def _start_all(self) -> None:
        secrets = Path(self.secrets)
        (secrets / "spool").mkdir(exist_ok=True)
        (secrets / "key").write_bytes(os.urandom(1024))
        (secrets / "key").chmod(0o400)
        names = {"socket": "socket", "key-file": "key", "pid-file": "pid", "seed-file": "seed"}
        munge = [f"--{option}={secrets / name}" for option, name in names.items()]
        munge += [f"--log-file={secrets / 'log'}", "--force", "--foreground", "--num-threads=2"]
        self.daemons["munged"] = Daemon([_which("munged"), *munge])
        self.daemons["slurmctld"] = Daemon([_which("slurmctld"), "-D", "-f", str(self.conf)])
        for name in self.names:
            self.daemons[name] = Daemon([_which("slurmd"), "-D", "-N", name, "-f", str(self.conf)])
        for name in self.daemons:
            self.start(name)
            if name == "munged":
                self._await(lambda: (secrets / "socket").exists())
        self._await(self._are_all_idle)

    def _are_all_idle(self) -> bool:
        with suppress(LabError, subprocess.SubprocessError):
            states = self.run("sinfo", "--noheader", "--Node", "--partition=lab", "--format=%T")
            return states.split() == ["idle"] * len(self.models)
        return False

    def _await(self, is_so: object) -> None:
        assert callable(is_so)
        deadline = time.monotonic() + _START_S
        while not is_so():
            if time.monotonic() > deadline or not all(
                d.is_up or not d.pid for d in self.daemons.values()
            ):
                logs = [path.read_text(errors="replace")[-800:] for path in self._logs()]
                raise LabError("Slurm did not come up:\n" + "\n".join(logs))
            time.sleep(0.05)

    def _logs(self) -> list[Path]:
        return sorted((self.directory / "log").iterdir())

    def _save(self) -> None:
        raw = {
            "slurm": {"path": self.path, "secrets": self.secrets, "ports": self.ports},
            "models": [asdict(model) for model in self.models],
            "daemons": {name: asdict(daemon) for name, daemon in self.daemons.items()},
        }
        part = self.directory / "lab.json.part"
        part.write_text(json.dumps(raw, indent=1))
        part.replace(self.directory / "lab.json")

    def _write(self) -> None:
        self._save()
        self.conf.write_text(self._slurm_conf())
        gres = [f"NodeName={m.name} Name=gpu Type={_kind(m)} File=/dev/null" for m in self.models]
        (self.directory / "gres.conf").write_text("\n".join(gres) + "\n")
        self.inventory.write_text(self._nodes_toml())

    def _slurm_conf(self) -> str:
        here, me, log = socket.gethostname().partition(".")[0], _me(), self.directory / "log"
        lines = [
            "ClusterName=lab",
            f"SlurmctldHost={here}(127.0.0.1)",
            f"SlurmctldPort={self.ports[0]}",
            "AuthType=auth/munge",
            "CredType=cred/munge",
            f"AuthInfo=socket={self.secrets}/socket",
            f"SlurmUser={me}",
            f"SlurmdUser={me}",
            f"StateSaveLocation={self.directory / 'state'}",
            f"SlurmdSpoolDir={self.secrets}/spool/%n",
            f"SlurmctldPidFile={self.directory / 'state'}/slurmctld.pid",
            f"SlurmdPidFile={self.directory / 'state'}/%n.pid",
            f"SlurmctldLogFile={log}/slurmctld.log",
            f"SlurmdLogFile={log}/%n.log",
            "ProctrackType=proctrack/linuxproc",
            "TaskPlugin=task/none",
            "JobAcctGatherType=jobacct_gather/none",
            "AccountingStorageType=accounting_storage/none",
            "SelectType=select/cons_tres",
            "SelectTypeParameters=CR_CPU",
            "GresTypes=gpu",
            "SlurmdParameters=config_overrides",
            "MpiDefault=none",
            "SwitchType=switch/none",
            "ReturnToService=2",
            f"KillWait={_KILL_WAIT_S}",
            "SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,bf_interval=1",
            "PreemptType=preempt/partition_prio",
            "PreemptMode=REQUEUE",
        ]
        for model, port in zip(self.models, self.ports[1:], strict=True):
            at = f"NodeAddr=127.0.0.1 NodeHostname={here} Port={port}"
            lines.append(f"NodeName={model.name} {at} CPUs=16 Gres=gpu:{_kind(model)}:1")
        partition = "Nodes=ALL MaxTime=INFINITE"
        lines.append(
            f"PartitionName=lab {partition} Default=YES PriorityTier=1 GraceTime={_GRACE_S}"
        )
        lines.append(f"PartitionName=urgent {partition} PriorityTier=9")
        lines.append("PartitionName=brief Nodes=ALL MaxTime=5")
        return "\n".join(lines) + "\n"

    def _nodes_toml(self) -> str:
        python = python_with_torch()
        lines = ["# A Slurm cluster on this computer; `scripts/lab down` removes it."]
        for model in self.models:
            lines += ["", "[[slurm]]", f'name = "{model.name}"', f'gres = "gpu:{_kind(model)}:1"']
            lines += ['partition = "lab"', 'time = "1:00:00"', f'conf = "{self.conf}"']
            lines += [f'gpus = [{{ model = "{model.gpu}" }}]', f'workdir = "{self.workdir}"']
            lines += [f"emulate = {{ speed = {model.speed:.4g} }}"]
            lines += [f'python = "{python}"'] if python else []
            if model.price_per_hour is not None:
                lines.append(f"price_per_hour = {model.price_per_hour}")
        return "\n".join(lines) + "\n"


@contextmanager
def running_slurm(directory: Path, count: int = 1, profile: str = "testbed") -> Iterator[SlurmLab]:
    """A cluster for the length of a ``with`` block."""
    lab = SlurmLab.up(directory, profile, count)
    try:
        yield lab
    finally:
        lab.down()


def _is_of_a_job(pid: int) -> bool:
    """A user's own shell may have this cluster's SLURM_CONF as well."""
    with suppress(OSError):
        environment = Path(f"/proc/{pid}/environ").read_bytes()
        name = Path(f"/proc/{pid}/comm").read_text().strip()
        return name.startswith("slurmstepd") or b"\0SLURM_JOB_ID=" in b"\0" + environment
    return False


def _kind(model: Model) -> str:
    return model.gpu.lower().replace(" ", "_")


def _me() -> str:
    return pwd.getpwuid(os.geteuid()).pw_name


def _which(program: str) -> str:
    return shutil.which(program, path=_PLACES) or ""


def _find_slurm() -> None:
    """Installs what is missing, where that starts no service by itself."""
    missing = [program for program in _NEEDED if not _which(program)]
    apt = shutil.which("apt-get")
    if missing and apt and os.geteuid() == 0 and not Path("/run/systemd/system").exists():
        print("installing slurm-wlm and munge", file=sys.stderr)
        env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        install = [apt, "-qq", "-y", "--no-install-recommends", "install", "slurm-wlm", "munge"]
        for words in (install, [apt, "-qq", "update"], install):
            subprocess.run(words, check=False, stdout=sys.stderr, env=env)
            missing = [program for program in _NEEDED if not _which(program)]
            if not missing:
                return
    if missing:
        raise LabError(
            f"the lab needs Slurm and munge, and there is no {', '.join(missing)}. Install them:\n"
            "    Debian, Ubuntu   sudo apt-get install slurm-wlm munge\n"
            "The lab starts daemons of its own; the system's may stay off:\n"
            "    sudo systemctl disable --now munge slurmd slurmctld"
        )
