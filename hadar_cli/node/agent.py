"""The head's hand on a node: answers requests on stdin, tells events on stdout, one JSON per line.

    python -I agent.py

It needs only the standard library, listens on no port and holds no state of its own: workers
live under supervisors, everything else in files below the run's directory. When the head or the
connection goes, it simply ends; a new one picks up from the files.
"""

from __future__ import annotations

import dataclasses
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # run by its path, on nodes where nothing is installed
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from hadar_cli.node import processes
from hadar_cli.node.order import write_atomically
from hadar_cli.node.supervisor import WorkerSpec, order_path

MARK = "@hadar "  # in front of every answer, so that login noise is never read as one
_LOOK_EVERY_S = 0.025
_PROGRESS_EVERY_S = 0.5
_LOG_TAIL_BYTES = 2000

Message = dict[str, Any]


class Agent:
    """One head's session on one node for one run."""

    def __init__(self, run: Path, epoch: int, lease_s: float) -> None:
        self._run, self._epoch, self._lease_s = run, epoch, lease_s
        self._nursery = _Nursery()
        self._active: dict[str, Path] = {}  # attempt -> its worker's directory
        self._told_progress: dict[str, tuple[float, int]] = {}

    @classmethod
    def open(cls, request: Message) -> Agent:
        """Claims the run's directory for this head's epoch and ends what an earlier head left."""
        os.umask(0o077)
        run = Path(request["directory"]).expanduser()
        (run / "workers").mkdir(parents=True, exist_ok=True)
        (run / "attempts").mkdir(exist_ok=True)
        agent = cls(run, int(request["epoch"]), float(request["lease_s"]))
        if agent._fenced_epoch() > agent._epoch:
            raise RuntimeError("a newer head has taken over this run")
        write_atomically(run / "fence.json", {"epoch": agent._epoch})
        agent.renew()
        agent.stop_workers(grace_s=0.0)
        return agent

    def _fenced_epoch(self) -> int:
        try:
            return int(json.loads((self._run / "fence.json").read_text())["epoch"])
        except (OSError, ValueError, KeyError):
            return 0

    def renew(self) -> None:
        (self._run / "lease.part").write_text(repr(time.monotonic()))
        (self._run / "lease.part").replace(self._run / "lease")

    # -- requests ----------------------------------------------------------------------------

    def handle(self, request: Message) -> Message:
        if self._fenced_epoch() != self._epoch:
            raise RuntimeError("a newer head has taken over this run")
        self.renew()
        match request["do"]:
            case "renew":
                return {}
            case "order":
                return self._order(request)
            case "release":
                self._release(request["worker"])
            case "forget":
                self._forget(request["attempt"])
            case "stop":
                self.stop_workers(float(request["grace_s"]))
            case unknown:
                raise ValueError(f"unknown request {unknown!r}")
        return {}

    def _order(self, request: Message) -> Message:
        """Hands an order to a waiting worker, or starts the worker with it."""
        directory = self._run / "workers" / request["worker"]
        attempt: str = request["attempt"]
        files = self._run / "attempts" / attempt
        files.mkdir(parents=True)
        number = 1 + len(list((directory / "orders").glob("*.json"))) if directory.exists() else 1
        following = order_path(directory, number + 1)
        variables = {
            **request["variables"],
            "HADAR_ISSUED_AT": repr(time.monotonic()),
            "HADAR_CKPT_OUT": str(files / "weights.safetensors") if request["weights"] else "",
            "HADAR_RESULT": str(files / "result.json"),
            "HADAR_PROGRESS": str(files / "progress.json"),
            "HADAR_NEXT": str(following),
        }
        order_path(directory, number).parent.mkdir(parents=True, exist_ok=True)
        write_atomically(order_path(directory, number), variables)
        self._active[attempt] = directory
        if number == 1:
            self._nursery.start(directory, self._spec(request))
        return {"warm": number > 1}

    def _spec(self, request: Message) -> WorkerSpec:
        package_root = str(Path(__file__).resolve().parents[2])
        env = {**os.environ, **request["env"]}
        env["PYTHONPATH"] = os.pathsep.join(filter(None, (package_root, env.get("PYTHONPATH"))))
        return WorkerSpec(
            argv=[word or sys.executable for word in request["argv"]],
            env=env,
            cwd=request["cwd"] or str(self._run),
            lease=str(self._run / "lease"),
            lease_s=self._lease_s,
            tag=self._tag(request["worker"]),
        )

    def _tag(self, worker: str) -> str:
        """Marks the worker's environment, so that its strays can be told from anyone else's."""
        return f"{self._run.resolve()}/{worker}"

    def _release(self, worker: str) -> None:
        directory = self._run / "workers" / worker
        if directory.exists():
            (directory / "stop").touch()

    def _forget(self, attempt: str) -> None:
        self._active.pop(attempt, None)
        shutil.rmtree(self._run / "attempts" / attempt, ignore_errors=True)

    def stop_workers(self, grace_s: float) -> None:
        """Ends every worker of the run: asks, waits ``grace_s``, then kills. Returns when gone."""
        directories = [d for d in (self._run / "workers").iterdir() if d.is_dir()]
        for directory in directories:
            (directory / "stop").touch()
        known = [pair for d in directories for pair in _processes_of(d)]
        processes.wait_gone(known, grace_s)
        for pid, started in known:
            processes.kill_group(pid, started)
        for directory in directories:
            for pid in processes.tagged("HADAR_WORKER", self._tag(directory.name)):
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
        processes.wait_gone(known, 5.0)

    # -- events ------------------------------------------------------------------------------

    def events(self) -> list[Message]:
        """What has happened to the active attempts since the last look."""
        found: list[Message] = []
        for attempt, directory in list(self._active.items()):
            files = self._run / "attempts" / attempt
            result = _read_json(files / "result.json")
            if result is not None:
                del self._active[attempt]
                weights = files / "weights.safetensors"
                path = str(weights) if weights.exists() else None
                found.append(
                    {"event": "finished", "attempt": attempt, "result": result, "weights": path}
                )
                continue
            ended = self._end_of(directory)
            if ended is not None:
                del self._active[attempt]
                found.append({"event": "exited", "attempt": attempt, **ended})
                continue
            found.extend(self._progress(attempt, files))
        return found

    def _end_of(self, directory: Path) -> Message | None:
        """How the worker ended, None while it lives (or is only just being started)."""
        ended = _read_json(directory / "exit.json")
        if ended is None:
            known = _processes_of(directory)
            if not known or any(processes.is_alive(*pair) for pair in known):
                return None
            ended = {"code": -1, "why": "its supervisor was killed"}
        return {**ended, "log": _tail(directory / "log")}

    def _progress(self, attempt: str, files: Path) -> list[Message]:
        now = time.monotonic()
        told_at, steps = self._told_progress.get(attempt, (0.0, 0))
        if now < told_at + _PROGRESS_EVERY_S:
            return []
        progress = _read_json(files / "progress.json") or {}
        self._told_progress[attempt] = (now, int(progress.get("steps", steps)))
        if progress.get("steps", 0) <= steps:
            return []
        return [{"event": "progress", "attempt": attempt, **progress}]


class _Nursery:
    """The process that workers are forked from; it ends when this one does."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", str(Path(__file__).with_name("nursery.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )

    def start(self, directory: Path, spec: WorkerSpec) -> None:
        assert self._process.stdin
        request = {"directory": str(directory), "spec": dataclasses.asdict(spec)}
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        self._process.stdin.flush()


def _processes_of(directory: Path) -> list[tuple[int, int]]:
    known = _read_json(directory / "worker.json")
    if not known:
        return []
    return [(int(pid), int(started)) for pid, started in (known["worker"], known["supervisor"])]


def _read_json(path: Path) -> Message | None:
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def _tail(path: Path) -> str:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _LOG_TAIL_BYTES))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def _send(message: Message) -> None:
    os.write(1, (MARK + json.dumps(message) + "\n").encode())


def main() -> None:
    agent: Agent | None = None
    pending = b""
    while True:
        if select.select([0], [], [], _LOOK_EVERY_S)[0]:
            received = os.read(0, 1 << 16)
            if not received:
                return
            *lines, pending = (pending + received).split(b"\n")
            for line in lines:
                request: Message = json.loads(line)
                try:
                    if request["do"] == "open":
                        agent, answer = Agent.open(request), {"python": sys.version.split()[0]}
                    elif agent is None:
                        raise RuntimeError("open first")
                    else:
                        answer = agent.handle(request)
                    _send({"answer": request["id"], **answer})
                except Exception as error:
                    _send({"answer": request["id"], "error": f"{type(error).__name__}: {error}"})
        if agent:
            for event in agent.events():
                _send(event)


if __name__ == "__main__":
    main()
