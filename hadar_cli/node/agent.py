"""The head's hand on a node: answers requests on stdin, tells events on stdout, one JSON per line.

    python -I agent.py

It needs only the standard library, listens on no port and holds no state of its own: workers
live under supervisors, everything else in files below the run's directory:

    workers/<worker>/    see supervisor.py
    attempts/<attempt>/  order.json, and what the copy leaves: progress, result, weights
    setup/               which jobs' setup commands are done, see setup.py
    fence.json           which head, and which of its connections, may give orders
    lease                renewed by every request; without it the workers end

When the head or the connection goes, it simply ends; a new one picks up from the files.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import select
import shutil
import signal
import sys
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # run by its path, on nodes where nothing is installed
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from hadar_cli.node import processes
from hadar_cli.node.bootstrap import answer as send
from hadar_cli.node.nursery import Nursery
from hadar_cli.node.order import write_atomically
from hadar_cli.node.plain_files import open_plain, read_json
from hadar_cli.node.setup import stamp_path
from hadar_cli.node.supervisor import WorkerSpec, leased_at, order_path

_LOOK_EVERY_S = 0.025
_PROGRESS_EVERY_S = 1.0
_LOG_TAIL_BYTES = 2000
_NEVER_STARTED_S = 60.0
_DISK_PAGE = 4096  # a full disk may yet take less
_HALF_WRITTEN_S = 2.0  # a result that is not JSON yet may still become it

Message = dict[str, Any]


class Superseded(Exception):
    """Somebody else gives the orders: a newer head, a newer connection, another run."""


class Agent:
    """One head's session on one node for one run."""

    def __init__(self, run: Path, request: Message) -> None:
        self._run, self._lease_s = run, float(request["lease_s"])
        self._fence = {
            "run": request["run"],
            "epoch": int(request["epoch"]),
            "session": secrets.token_hex(8),
        }
        self._nursery = Nursery(run / "nursery.log", request.get("imports", []))
        self._active: dict[str, Path] = {}  # attempt -> its worker's directory
        self._born_by: dict[Path, int] = {}  # worker's directory -> pid of the nursery it is from
        self._since: dict[str, float] = {}
        self._told_progress: dict[str, tuple[float, int]] = {}
        self._results = _Results()

    @classmethod
    def open(cls, request: Message) -> tuple[Agent, Message]:
        """Claims the run's directory for this head and connection.

        Goes on with the attempts and workers that the head names, and ends all others.
        """
        os.umask(0o077)
        os.environ.update(request["env"])
        run = Path(request["directory"]).expanduser()
        for name in ("workers", "attempts"):
            (run / name).mkdir(mode=0o700, parents=True, exist_ok=True)
        with _locked(run):
            is_other = _check_fence(run, request)
            agent = cls(run, request)
            write_atomically(run / "fence.json", agent._fence)
            agent.renew()
        known = agent._adopt(request["attempts"])
        kept = {record["worker"] for record in known.values()} | set(request["workers"])
        agent.stop_workers(0.0, kept)
        agent._tidy(known)
        if is_other:  # what an earlier run of the same name left must not be taken for ours
            _remove(run / "workers")
            _remove(run / "setup")
            (run / "workers").mkdir(mode=0o700)
        return agent, {"python": sys.version.split()[0], "attempts": known}

    def _adopt(self, attempts: list[str]) -> dict[str, Message]:
        """Those of the attempts that were ordered here, with what their order said."""
        known = {}
        for attempt in attempts:
            record = _read_json(self._run / "attempts" / attempt / "order.json")
            if not record:
                continue
            worker = self._run / "workers" / record["worker"]
            if order_path(
                worker, record.get("number", 1)
            ).exists():  # or else it never got that far
                known[attempt] = record
                self._watch(attempt, worker)
        return known

    def _tidy(self, known: dict[str, Message]) -> None:
        """Nobody will ask for what other attempts left."""
        for files in (self._run / "attempts").iterdir():
            if files.name not in known:
                _remove(files)

    def _watch(self, attempt: str, worker: Path) -> None:
        self._active[attempt] = worker
        self._since[attempt] = time.monotonic()

    def renew(self) -> None:
        (self._run / "lease.part").write_text(repr(time.monotonic()))
        (self._run / "lease.part").replace(self._run / "lease")

    # -- requests ----------------------------------------------------------------------------

    def handle(self, request: Message) -> Message:
        with _locked(self._run):
            if _read_json(self._run / "fence.json") != self._fence:
                raise Superseded("a newer head has taken over this run")
            if request["do"] == "stop":  # even where no lease can be written any more
                self.stop_workers(float(request["grace_s"]))
                self._nursery.end()
                return {}
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
        note = {"worker": request["worker"], "warm": number > 1, "number": number}
        write_atomically(files / "order.json", note)
        variables = {
            **request["variables"],
            "HADAR_ISSUED_AT": repr(time.monotonic()),
            "HADAR_CKPT_OUT": str(files / "weights.safetensors") if request["weights"] else "",
            "HADAR_RESULT": str(files / "result.json"),
            "HADAR_PROGRESS": str(files / "progress.json"),
            "HADAR_NEXT": str(order_path(directory, number + 1)),
        }
        order_path(directory, number).parent.mkdir(parents=True, exist_ok=True)
        write_atomically(order_path(directory, number), variables)
        self._watch(attempt, directory)
        if number == 1:
            self._born_by[directory] = self._nursery.start(directory, self._spec(request))
        return {"warm": number > 1}

    def _spec(self, request: Message) -> WorkerSpec:
        package_root = str(Path(__file__).resolve().parents[2])
        env = {**os.environ, **request["env"]}
        env["PYTHONPATH"] = os.pathsep.join(filter(None, (package_root, env.get("PYTHONPATH"))))
        setup, cwd = request["setup"] or "", request["cwd"] or str(self._run)
        return WorkerSpec(
            argv=[word or sys.executable for word in request["argv"]],
            env=env,
            cwd=cwd,
            lease=str(self._run / "lease"),
            lease_s=self._lease_s,
            tag=self._tag(request["worker"]),
            setup=setup,
            setup_stamp=str(stamp_path(self._run, request["job"], cwd, setup)),
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
        _remove(self._run / "attempts" / attempt)

    def stop_workers(self, grace_s: float, kept: Collection[str] = ()) -> None:
        """Ends the run's other workers: asks, waits ``grace_s``, then kills. Returns when gone."""
        directories = [
            d for d in (self._run / "workers").iterdir() if d.is_dir() and d.name not in kept
        ]
        for directory in directories:
            with suppress(OSError):  # a disk that takes nothing saves no worker from its end
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
            result = self._results.read(files / "result.json", time.monotonic())
            if result is not None:
                del self._active[attempt]
                weights = files / "weights.safetensors"
                found.append({"event": "finished", "attempt": attempt, "result": result})
                if weights.is_symlink() or weights.exists():
                    found[-1] |= {"weights": str(weights), "bytes": weights.lstat().st_size}
                continue
            ended = self._end_of(attempt, directory)
            if ended is not None:
                del self._active[attempt]
                found.append({"event": "exited", "attempt": attempt, **ended})
                continue
            found.extend(self._progress(attempt, files))
        return found

    def _end_of(self, attempt: str, directory: Path) -> Message | None:
        """How the worker ended, None while it lives (or is only just being started)."""
        ended = _read_json(directory / "exit.json")
        if ended:
            return {**ended, "log": _tail(directory / "log")}
        known = _processes_of(directory)
        if any(processes.is_alive(*pair) for pair in known):
            return None
        if known:
            ended = _read_json(directory / "exit.json") or _vanished(directory)  # if not just now
            return {**ended, "log": _tail(directory / "log")}
        # One that an earlier agent asked for may come yet: its nursery does all it was told to.
        nursery = self._nursery.pid
        is_coming = self._nursery.is_alive and self._born_by.get(directory, nursery) == nursery
        if is_coming and time.monotonic() < self._since[attempt] + _NEVER_STARTED_S:
            return None
        with suppress(OSError):
            (directory / "stop").touch()  # should it come up after all
        log = _tail(self._run / "nursery.log")
        return {"code": -1, "why": "it never started", "log": log, "node_fault": not is_coming}

    def _progress(self, attempt: str, files: Path) -> list[Message]:
        now = time.monotonic()
        told_at, steps = self._told_progress.get(attempt, (0.0, 0))
        if now < told_at + _PROGRESS_EVERY_S:
            return []
        progress = _read_json(files / "progress.json") or {}
        done = progress.get("steps")
        if not isinstance(done, int) or done <= steps:
            self._told_progress[attempt] = (now, steps)
            return []
        self._told_progress[attempt] = (now, done)
        told = {name: progress.get(name) for name in ("steps", "seconds", "loss")}
        return [{"event": "progress", "attempt": attempt, **told}]


def _check_fence(run: Path, request: Message) -> bool:
    """Whether another run of the same name was here. Raises where that one, or a newer head of this
    one, is at work."""
    fence = _read_json(run / "fence.json") or {}
    if fence.get("run", request["run"]) == request["run"]:
        if int(fence.get("epoch", 0)) > request["epoch"]:
            raise Superseded("a newer head has taken over this run")
        return False
    if time.monotonic() < leased_at(run / "lease") + float(request["lease_s"]):
        raise Superseded("another run of this name is at work here: give yours another --name")
    return True


def _processes_of(directory: Path) -> list[tuple[int, int]]:
    known = _read_json(directory / "worker.json")
    if not known:
        return []
    return [(int(pid), int(started)) for pid, started in (known["worker"], known["supervisor"])]


def _read_json(path: Path) -> Message | None:
    try:
        return read_json(path)
    except (OSError, ValueError):
        return None


class _Results:
    """Reads results as scripts leave them. How long one has been unreadable is not told by the
    file's own time: the wall clock may have been set since."""

    def __init__(self) -> None:
        self._unreadable_since: dict[Path, float] = {}

    def read(self, path: Path, now: float) -> Message | None:
        """The result; in place of one that stays unreadable, what is wrong with it."""
        try:
            return read_json(path)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            if now < self._unreadable_since.setdefault(path, now) + _HALF_WRITTEN_S:
                return None
            return {"problem": str(error)[:_LOG_TAIL_BYTES]}


def _vanished(directory: Path) -> Message:
    """How a worker ended whose supervisor left no word: it was killed, or had no disk to write to,
    which is no fault of the job's."""
    probe = directory / "probe"
    try:
        probe.write_bytes(bytes(_DISK_PAGE))
        probe.unlink()
    except OSError as error:
        why = f"nothing can be written there: {error.strerror}"
        return {"code": -1, "why": why, "node_fault": True}
    return {"code": -1, "why": "its supervisor was killed"}


def _tail(path: Path) -> str:
    try:
        with open_plain(path) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _LOG_TAIL_BYTES))
            return (file.read(_LOG_TAIL_BYTES) or b"").decode(errors="replace")
    except (OSError, ValueError):
        return ""


def _remove(files: Path) -> None:
    """At once: the supervisor would take an attempt without its result for one overdue."""
    gone = files.with_name(f"{files.name}.gone")
    with suppress(OSError):
        files.rename(gone)
    shutil.rmtree(gone, ignore_errors=True)


@contextmanager
def _locked(run: Path) -> Iterator[None]:
    """One request at a time, whichever connection it came by: a fence that holds."""
    # For reading: a disk that has turned read-only is no reason not to be stopped.
    descriptor = os.open(run / "fence.lock", os.O_RDONLY | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


class _Session:
    """The conversation with the head, from its first request to the end of the connection."""

    def __init__(self) -> None:
        self._agent: Agent | None = None

    def take(self, request: Message) -> None:
        """Answers one request; raises Superseded, once answered, where nothing more will be."""
        try:
            send({"answer": request["id"], **self._answer(request)})
        except Superseded as error:
            send({"answer": request["id"], "error": str(error), "superseded": True})
            raise
        except Exception as error:
            send({"answer": request["id"], "error": f"{type(error).__name__}: {error}"})

    def _answer(self, request: Message) -> Message:
        if request["do"] == "open":
            self._agent, answer = Agent.open(request)
            return answer
        if self._agent is None:
            raise RuntimeError("open first")
        return self._agent.handle(request)

    def tell_events(self) -> None:
        for event in self._agent.events() if self._agent else ():
            send(event)


def main() -> None:
    session, pending = _Session(), b""
    with suppress(Superseded):
        while True:
            if select.select([0], [], [], _LOOK_EVERY_S)[0]:
                received = os.read(0, 1 << 16)
                if not received:
                    return
                *lines, pending = (pending + received).split(b"\n")
                for line in lines:
                    session.take(json.loads(line))
            session.tell_events()


if __name__ == "__main__":
    main()
