"""Where a job's code and data lie on a node, and what its copies are started with there."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol, TypeAlias

from hadar_cli.core.model import Job, Launch
from hadar_cli.nodes.connection import TellPrepared
from hadar_cli.nodes.wire import AgentError
from hadar_cli.project.data import place_of
from hadar_cli.project.requirements import Requirements, read_requirements


class Destination(Protocol):
    """What it takes to place a job: the same for this computer and for any other."""

    def send_code(self, source: Path, data: Sequence[Path]) -> str:
        """Puts a folder's code there, without its data, or a single file's folder; where it is."""
        ...

    def send_data(self, source: Path) -> str:
        """Puts data there, unless it is; by what name ``make_workspace`` knows it."""
        ...

    def make_venv(self, wanted: Requirements) -> str:
        """The Python of a virtual environment with these packages there."""
        ...

    def make_workspace(self, job: int, code: str | None, links: Mapping[str, str]) -> str:
        """The working directory of the job in this run: a copy of that code, with its data."""
        ...


def place_job(job: Job, destination: Destination) -> Launch:
    """Puts the project folder, or the script alone, on the node; the launch as it is there."""
    launch = job.launch
    script = Path(launch.script) if launch.script else None
    project = Path(launch.sync) if launch.sync else None
    if launch.venv:
        launch = replace(launch, python=destination.make_venv(read_requirements(Path(launch.venv))))
    source, data = project or script, [Path(path) for path in launch.data]
    if not source and not data:
        return launch
    code = destination.send_code(source, data) if source else None
    links = {place_of(path, project): destination.send_data(path) for path in data}
    workspace = destination.make_workspace(job.id, code, links)
    there = None
    if script and script.is_relative_to(project or script.parent):
        there = f"{workspace}/{script.relative_to(project or script.parent).as_posix()}"
    elif script:
        there = f"{destination.send_code(script, ())}/{script.name}"
    found = os.pathsep.join(f"{workspace}/{path}" for path in links) or launch.data_dir
    return replace(launch, sync=workspace, script=there, data_dir=found)


def needs_data_there(launch: Launch) -> bool:
    """Whether a job reads data that lies on the nodes already, and that no ``setup`` puts there."""
    is_read = launch.workload is None or launch.preset == "paper"
    is_place = bool(launch.data_dir) and Path(str(launch.data_dir)).is_absolute()
    return is_place and is_read and not launch.setup


def require_data(launch: Launch, is_there: Callable[[str], bool]) -> None:
    """Raises AgentError where a node lacks the data that a job says it has."""
    if needs_data_there(launch) and not is_there(str(launch.data_dir)):
        raise AgentError(
            f"there is no {launch.data_dir} there, which data_dir names",
            "data_dir is for data that lies on the nodes, by its whole path; 'data' has it sent",
        )


TellNow: TypeAlias = Callable[[str], None]


def prepare_venv(
    file: str, make: Callable[[Requirements, TellNow], str], tell: TellPrepared
) -> None:
    """Has a virtual environment made, and tells how it goes where it was not there before."""
    told = []

    def hear(now: str) -> None:
        told.append(now)
        tell("packages", 0, 1, now)

    make(read_requirements(Path(file)), hear)
    if told:
        tell("packages", 1, 1, "packages are there")
