"""The head's hand on a node: answers requests on stdin, tells events on stdout, one JSON per line.

    python -I agent.py

It needs only the standard library, listens on no port and holds no state of its own: workers
live under supervisors, everything else in files below the run's directory:

    workers/<worker>/    see supervisor.py
    out/<job>/           what jobs leave for their user, see HADAR_OUT
    attempts/<attempt>/  order.json, and what the copy leaves: progress, result, weights
    setup/               which jobs' setup commands are done, see setup.py
    fence.json           which head, and which of its connections, may give orders
    lease                renewed by every request; without it the workers end (see lease.py)

When the head or the connection goes, it simply ends; a new one picks up from the files.
"""

from __future__ import annotations

import fcntl
import json
import os
import queue
import secrets
import shutil
import signal
import sys
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # run by its path, on nodes where nothing is installed
    sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from hadar_cli.node.agent import processes
from hadar_cli.node.agent.bootstrap import answer, refusal
from hadar_cli.node.agent.nursery import Nursery, SharedNursery
from hadar_cli.node.agent.setup import stamp_path
from hadar_cli.node.agent.supervisor import WorkerSpec, order_path, run_name
from hadar_cli.node.agent.watch import AttemptWatch, processes_of, read_json_if_any
from hadar_cli.node.agent_events import event_message
from hadar_cli.node.contract import (
    ALIVE,
    OUT,
    WORKER,
    Assignment,
    AttemptFiles,
    Membership,
    OrderRequest,
    WorkerStart,
    write_atomically,
)
from hadar_cli.node.files.outputs import out_folder
from hadar_cli.node.gpus.cards import door, environment, lock_name
from hadar_cli.node.gpus.turns import Turns
from hadar_cli.node.gpus.watch import GpuWatch
from hadar_cli.node.lease import Lease
from hadar_cli.node.network import free_port, torch_variables
from hadar_cli.node.preemption import PreemptionNotices

_LOOK_EVERY_S = 0.025

Message = dict[str, Any]
_saying = threading.Lock()


def send(message: Message) -> None:
    with _saying:
        answer(message)


class Superseded(Exception):
    """Somebody else gives the orders: a newer head, a newer connection, another run."""


class Agent:
    """One head's session on one node for one run."""

    def __init__(self, run: Path, request: Message) -> None:
        self._run, self._lease_s = run, float(request["lease_s"])
        self.lease = Lease(run / "lease")
        self._fence = {
            "run": request["run"],
            "epoch": int(request["epoch"]),
            "session": secrets.token_hex(8),
        }
        self._nursery = _nursery(run, request)
        self._watched = AttemptWatch(run, self._nursery)
        self._notices = PreemptionNotices()
        self._gpus = GpuWatch(run, self._our_pids) if request.get("is_shared") else None
        asked = request.get("turns")
        self._door = request.get("door") or door(os.environ) if asked else ""
        self._turns = Turns(run, run_name(run), asked, self._door) if asked else None

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
        kept = {assigned.worker for assigned in known.values()} | set(request["workers"])
        agent.stop_workers(0.0, kept)
        agent._tidy(known)
        if is_other:  # what an earlier run of the same name left must not be taken for ours
            for name in ("workers", "setup", "work", "data", "out"):
                _remove(run / name)
            (run / "workers").mkdir(mode=0o700)
        told = {attempt: asdict(assigned) for attempt, assigned in known.items()}
        return agent, {"python": sys.version.split()[0], "attempts": told}

    def _adopt(self, attempts: list[str]) -> dict[str, Assignment]:
        """Those of the attempts that were ordered here, and who has them."""
        known = {}
        for attempt in attempts:
            note = read_json_if_any(self._files(attempt).assignment)
            if not note:
                continue
            assigned = Assignment(note["worker"], note["number"])
            worker = self._run / "workers" / assigned.worker
            if order_path(worker, assigned.number).exists():  # or else it never got that far
                known[attempt] = assigned
                self._watched.add(attempt, worker)
        return known

    def _files(self, attempt: str) -> AttemptFiles:
        return AttemptFiles(self._run / "attempts" / attempt)

    def _tidy(self, known: Collection[str]) -> None:
        """Nobody will ask for what other attempts left."""
        for files in (self._run / "attempts").iterdir():
            if files.name not in known:
                _remove(files)

    def renew(self) -> None:
        self.lease.renew_in_memory()
        self.lease.renew()
        if alive := os.environ.get(ALIVE):
            with suppress(OSError):
                os.utime(alive)

    # -- requests ----------------------------------------------------------------------------

    def handle(self, request: Message) -> Message:
        with _locked(self._run):
            if read_json_if_any(self._run / "fence.json") != self._fence:
                raise Superseded("a newer head has taken over this run")
            if request["do"] == "stop":  # even where no lease can be written any more
                self.stop_workers(float(request["grace_s"]))
                self._nursery.end()
                self.lease.end()
                _remove(self._run / "objects")  # a resumed head sends what it needs
                return {}
            self.renew()
            match request["do"]:
                case "renew" if self._turns:
                    self._turns.wanted = frozenset(request.get("wanted", ()))
                case "renew":
                    return {}
                case "order":
                    return asdict(self._order(OrderRequest.from_message(request)))
                case "release":
                    self._release(request["worker"])
                case "forget":
                    self._forget(request["attempt"])
                case "port":
                    return {"port": free_port(request["host"])}
                case unknown:
                    raise ValueError(f"unknown request {unknown!r}")
            return {}

    def _order(self, request: OrderRequest) -> Assignment:
        """Hands an order to a waiting worker, or starts the worker with it."""
        directory = self._run / "workers" / request.worker
        files = self._files(request.attempt)
        files.directory.mkdir(parents=True)
        number = 1 + len(list((directory / "orders").glob("*.json"))) if directory.exists() else 1
        assigned = Assignment(request.worker, number)
        write_atomically(files.assignment, asdict(assigned))
        following = order_path(directory, number + 1)
        order = request.order.placed(files, following, request.returns_weights)
        following.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(order_path(directory, number), order.variables())
        if not assigned.is_warm:
            spec = self._spec(request.worker, request.start, request.order.member)
            self._nursery.start(directory, spec)
        self._watched.add(request.attempt, directory)
        return assigned

    def _spec(self, worker: str, start: WorkerStart, member: Membership | None) -> WorkerSpec:
        package_root = str(Path(__file__).resolve().parents[3])
        env = {**os.environ, **(torch_variables(member) if member else {}), **start.env}
        shown = ""
        if start.card:
            env, shown = environment(start.card, env)
        env["PYTHONPATH"] = os.pathsep.join(filter(None, (package_root, env.get("PYTHONPATH"))))
        out = out_folder(self._run, start.job)
        out.mkdir(mode=0o700, parents=True, exist_ok=True)
        env[OUT] = str(out)
        setup, cwd = start.setup or "", start.cwd or str(self._run)
        return WorkerSpec(
            argv=[word or sys.executable for word in start.argv],
            env=env,
            cwd=cwd,
            lease=str(self._run / "lease"),
            lease_s=self._lease_s,
            tag=self._tag(worker),
            setup=setup,
            setup_stamp=str(stamp_path(self._run, start.job, cwd, setup)),
            device=start.device,
            card=shown,
            lock=lock_name(self._door, start.device),
        )

    def _tag(self, worker: str) -> str:
        """Marks the worker's environment, so that its strays can be told from anyone else's."""
        return f"{self._run.resolve()}/{worker}"

    def _release(self, worker: str) -> None:
        directory = self._run / "workers" / worker
        if directory.exists():
            (directory / "stop").touch()

    def _forget(self, attempt: str) -> None:
        self._watched.forget(attempt)
        _remove(self._files(attempt).directory)

    def stop_workers(self, grace_s: float, kept: Collection[str] = ()) -> None:
        """Ends the run's other workers: asks, waits ``grace_s``, then kills. Returns when gone."""
        directories = [
            d for d in (self._run / "workers").iterdir() if d.is_dir() and d.name not in kept
        ]
        for directory in directories:
            with suppress(OSError):  # a disk that takes nothing saves no worker from its end
                (directory / "stop").touch()
        known = [pair for d in directories for pair in processes_of(d)]
        processes.wait_gone(known, grace_s)
        for pid, started in known:
            processes.kill_group(pid, started)
        for directory in directories:
            for pid in processes.tagged(WORKER, self._tag(directory.name)):
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
        processes.wait_gone(known, 5.0)

    def events(self) -> list[Message]:
        """What has happened to the attempts under way since the last look."""
        told = [event_message(attempt, event) for attempt, event in self._watched.events()]
        if self._gpus and (news := self._gpus.news()):
            told.append({"event": "gpus", **news})
        if self._turns:
            self._turns.train(self._watched.trained_s)
            if turns := self._turns.news():
                told.append({"event": "turns", **turns})
        if why := self._notices.news():
            told.append({"event": "leaving", "why": why})
        return told

    def leave(self) -> None:
        if self._turns:
            self._turns.leave()

    def _our_pids(self) -> set[int]:
        """All that the run's workers have started: they lead sessions of their own."""
        workers = (self._run / "workers").iterdir()
        return processes.in_sessions({pid for w in workers for pid, _ in processes_of(w)})


def _nursery(run: Path, request: Message) -> Nursery:
    imports = request.get("imports", [])
    if shared := request.get("nursery"):
        # With the run's token in it, what is made of secrets in the environment tells nothing.
        needs = {**request["env"], "": str(request["run"])}
        return SharedNursery(Path(shared), run / "nursery.json", imports, needs)
    return Nursery(run / "nursery.log", imports)


def _check_fence(run: Path, request: Message) -> bool:
    """Whether another run of the same name was here. Raises where that one, or a newer head of this
    one, is at work."""
    fence = read_json_if_any(run / "fence.json") or {}
    if fence.get("run", request["run"]) == request["run"]:
        if int(fence.get("epoch", 0)) > request["epoch"]:
            raise Superseded("a newer head has taken over this run")
        return False
    lease, lease_s = Lease(run / "lease"), float(request["lease_s"])
    if lease.is_fresh(lease_s) or lease.is_fresh_elsewhere(lease_s):
        raise Superseded("another run of this name is at work here: give yours another --name")
    return True


def _remove(files: Path) -> None:
    """At once: the supervisor would take an attempt without its result for one overdue."""
    gone = files.with_name(f"{files.name}.gone")
    with suppress(OSError):
        files.rename(gone)
    shutil.rmtree(gone, ignore_errors=True)


@contextmanager
def _locked(run: Path) -> Iterator[None]:
    """One request at a time, whichever connection it came by: a fence that holds."""
    path = run / "fence.lock"
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)  # NFS would lock no other
    except OSError:  # a disk that has turned read-only is no reason not to be stopped
        descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


class _Session:
    """The conversation with the head, from its first request to the end of the connection."""

    def __init__(self) -> None:
        self._agent: Agent | None = None
        self._requests: queue.SimpleQueue[bytes] = queue.SimpleQueue()  # an empty one is the end

    def listen(self) -> None:
        """On a thread of its own: the head lives, whatever disk the answers wait for."""
        pending = b""
        try:
            while received := os.read(0, 1 << 16):
                if self._agent:
                    self._agent.lease.renew_in_memory()
                if not self._requests.empty():
                    send({"alive": True})
                *lines, pending = (pending + received).split(b"\n")
                for line in lines:
                    self._requests.put(line)
        finally:
            self._requests.put(b"")

    def serve(self) -> None:
        """Answers requests and tells events, until the connection ends or another takes over."""
        while True:
            with suppress(queue.Empty):
                line = self._requests.get(timeout=_LOOK_EVERY_S)
                while line:
                    self._take(json.loads(line))
                    line = self._requests.get_nowait()
                return
            self._tell_events()

    def _take(self, request: Message) -> None:
        """Answers one request; raises Superseded, once answered, where nothing more will be."""
        try:
            send({"answer": request["id"], **self._answer(request)})
        except Superseded as error:
            send({"answer": request["id"], "error": str(error), "superseded": True})
            raise
        except Exception as error:
            send({"answer": request["id"], **refusal(error)})

    def _answer(self, request: Message) -> Message:
        if request["do"] == "open":
            self._agent, answer = Agent.open(request)
            return answer
        if self._agent is None:
            raise RuntimeError("open first")
        return self._agent.handle(request)

    def leave(self) -> None:
        if self._agent:
            self._agent.leave()

    def _tell_events(self) -> None:
        for event in self._agent.events() if self._agent else ():
            send(event)


def main() -> None:
    session = _Session()
    threading.Thread(target=session.listen, daemon=True).start()
    try:
        session.serve()
    except Superseded:
        pass
    finally:
        session.leave()


if __name__ == "__main__":
    main()
