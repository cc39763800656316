"""This machine as a node: parts are child processes, files are already where they are needed."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from hadar_cli.core.model import Job, Launch, Node
from hadar_cli.node import agent
from hadar_cli.node.agent.plain_files import open_plain
from hadar_cli.node.files.datasets import show_files
from hadar_cli.node.files.outputs import list_outputs, out_folder
from hadar_cli.node.files.workspace import make_workspace
from hadar_cli.nodes.connection import PATIENCE_S, Listed, TellMoved, TellPrepared, ThroughAccess
from hadar_cli.nodes.supply.outputs import MOST_FILES
from hadar_cli.nodes.supply.placing import TellNow, place_job, prepare_venv, require_data
from hadar_cli.nodes.transfer import TransferSession
from hadar_cli.nodes.wire import AgentError, LinkLostError, ProcessStream, Wire
from hadar_cli.project.data import list_files
from hadar_cli.project.packing import CodePacker
from hadar_cli.project.requirements import Requirements
from hadar_cli.runs.store import RunStore

LOCAL_SHARED = ".hadar"  # beside the runs: what several of this computer's nodes use


class LocalAccess:
    """Starts parts as children of this process, straight from the installed package."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self._streams: list[ProcessStream] = []

    def open(self, part: str, patience_s: float | None) -> Wire:
        python = str(Path(self.node.python).expanduser()) if self.node.python else sys.executable
        program = Path(agent.__file__).resolve().with_name(f"{part}.py")
        try:
            stream = ProcessStream([python, "-I", str(program)], patience_s)
        except OSError as error:
            raise LinkLostError(
                f"{python}: {error.strerror}", "name a Python that is there: python = ..."
            ) from error
        self._streams.append(stream)
        return Wire(stream)

    def heard_at(self) -> float:
        return 0.0

    def abort(self) -> None:
        for stream in self._streams:
            stream.kill()

    def close(self) -> None:
        while self._streams:
            self._streams.pop().close()

    def recalled(self, idle_s: float) -> str:
        return ""

    def move_on(self) -> None: ...

    def give_back(self) -> None: ...


class LocalConnection(ThroughAccess[LocalAccess]):
    """A run's ``host = "local"`` node, working below the run's own directory.

    Where a run has several, they share what starts their workers: ``nursery`` is its folder.
    """

    def __init__(
        self, access: LocalAccess, store: RunStore, packer: CodePacker, nursery: str = ""
    ) -> None:
        super().__init__(access)
        self._packer = packer
        self.directory = str((store.directory / "nodes" / self.node.name).resolve())
        self._store, self.token = store, store.facts.token
        self.nursery = nursery
        runs = store.directory.parent.resolve()  # the same folder of runs: the same stand-ins
        self.door = f"local-{hashlib.sha256(os.fsencode(runs / self.node.name)).hexdigest()[:16]}"

    def place(self, job: Job) -> Launch:
        try:
            return place_job(job, self)
        except OSError as error:
            raise AgentError(f"{error.filename or self.directory}: {error.strerror}") from error

    def send_code(self, source: Path, data: Sequence[Path]) -> str:
        return str(self._packer.unpack(source, data).resolve())

    def send_data(self, source: Path) -> str:
        """It is used in place; what a script writes beside it goes to the run's own folder."""
        if not source.is_dir():
            return str(source)
        name = hashlib.sha256(os.fsencode(source)).hexdigest()
        found = ((file.name, file.path) for file in list_files(source))
        return str(show_files(Path(self.directory) / "data" / name, found))

    def make_workspace(self, job: int, code: str | None, links: Mapping[str, str]) -> str:
        shown = {path: Path(target) for path, target in links.items()}
        return str(make_workspace(Path(self.directory), job, Path(code) if code else None, shown))

    def make_venv(self, wanted: Requirements, tell: TellNow = lambda now: None) -> str:
        shared = str((self._store.directory.parent / LOCAL_SHARED).resolve())
        wire = self._access.open("transfer", PATIENCE_S)
        try:
            return TransferSession(wire).make_venv(shared, wanted, tell)
        finally:
            wire.close()

    def prepare(self, job: Job, tell: TellPrepared) -> None:
        """Nothing has to be sent."""
        require_data(job.launch, os.path.exists)
        if job.launch.venv:
            prepare_venv(job.launch.venv, self.make_venv, tell)

    def push(
        self,
        digest: str,
        series: str,
        under_way: Callable[[], Collection[str]],
        tell: TellMoved = lambda done, total: None,
    ) -> str:
        return str(self._store.object_path(digest).resolve())

    def pull(self, path: str, size: int, tell: TellMoved = lambda done, total: None) -> str:
        try:
            return self._store.take_in(Path(path), lambda done: tell(done, size))
        except ValueError as error:
            raise AgentError(str(error)) from error

    def list_out(self, job: int) -> tuple[list[Listed], int]:
        return list_outputs(out_folder(Path(self.directory), job), MOST_FILES)

    def fetch_out(self, job: int, name: str, size: int, target: Path) -> None:
        try:
            path = out_folder(Path(self.directory), job) / name
            with open_plain(path) as source, target.open("wb") as file:
                shutil.copyfileobj(source, file)
        except ValueError as error:
            raise AgentError(str(error)) from error

    def end_transfers(self) -> None:
        """They are copies on this computer's disk, and soon over."""
