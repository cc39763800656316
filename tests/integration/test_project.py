"""A project of several files trains alike on this computer and over SSH, and stays as it was."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from hadar_cli.assembly import connect
from hadar_cli.config.inventory import read_nodes
from hadar_cli.config.mixes import read_mix
from hadar_cli.core.model import Job, Launch, Mix, Node
from hadar_cli.engine.ports import HandedIn, Report
from hadar_cli.nodes.executor import NodeExecutor
from hadar_cli.project.folder import find_project
from hadar_cli.runs.store import RunFacts, RunStore
from hadar_cli.trial.trial_run import open_trial_run
from tests.contract.test_executor import collect, order
from tests.support.lab import Lab, running

# Leaves what it saw as figures of quality: its data, its packages, where it stands.
TRAIN = """
import json, os, sys
from pathlib import Path
from beside import BESIDE            # next to the script
from package import PACKAGE          # in the project's folder
from layout import LAYOUT            # in the project's src

seen = {
    "settings": json.loads(Path("conf/settings.json").read_text())["figure"],
    "arguments": len(sys.argv),
    "data": len(os.environ.get("HADAR_DATA", "")),
}
Path("written-by-the-script.txt").write_text("x")
assert Path.cwd() == Path(__file__).resolve().parents[1], Path.cwd()
result = {"steps": 0, "evaluation": seen | BESIDE | PACKAGE | LAYOUT, "higher_is_better": True}
Path(os.environ["HADAR_RESULT"] + ".part").write_text(json.dumps(result))
os.rename(os.environ["HADAR_RESULT"] + ".part", os.environ["HADAR_RESULT"])
"""
FIGURES = {"settings": 3.0, "beside": 1.0, "package": 2.0, "layout": 4.0}


@pytest.fixture
def project(tmp_path) -> Path:
    files = {
        ".git/HEAD": "",
        "conf/settings.json": '{"figure": 3}',
        "scripts/train.py": TRAIN,
        "scripts/beside.py": 'BESIDE = {"beside": 1}',
        "package/__init__.py": 'PACKAGE = {"package": 2}',
        "src/layout.py": 'LAYOUT = {"layout": 4}',
    }
    root = tmp_path / "project"
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)
    return root


@pytest.fixture(scope="module")
def lab(tmp_path_factory) -> Iterator[Lab]:
    with running(tmp_path_factory.mktemp("project") / "lab") as lab:
        yield lab


@pytest.fixture(params=["local", "sshd"])
def node(request) -> Node:
    if request.param == "local":
        return Node("one", "local")
    [node] = read_nodes(request.getfixturevalue("lab").inventory)
    return replace(node, name="one", gpus=(), emulated_speed=None)


def read_job(project: Path, fields: str) -> Job:
    path = project / "mix.yaml"
    path.write_text(f"jobs: [{{{fields}, steps: 10}}]")
    job = read_mix(path).jobs[0]
    path.unlink()
    return job


def run(node: Node, job: Job, runs: Path) -> Report:
    facts = RunFacts(runs.parent.name, Mix("m", (job,)), (node,), "", "")
    store = RunStore.create(runs, facts)
    executor = NodeExecutor(connect([node], store), 1, 0.0)
    try:
        executor.start(order("a", (0, 1), job=job, returns_weights=False))
        return collect(executor, 1)[0]
    finally:
        executor.stop(0.0)


def files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*")}


def test_a_script_finds_its_project_around_it_and_leaves_it_as_it_was(node, project, tmp_path):
    before = files(project)
    job = read_job(project, "script: scripts/train.py, args: [--epochs, 8], data_dir: /data")
    report = run(node, job, tmp_path / "runs")
    assert isinstance(report, HandedIn), report
    assert report.result.quality == FIGURES | {"arguments": 3.0, "data": 5.0}
    assert report.result.higher_is_better is True
    assert files(project) == before


def test_a_module_runs_as_with_python_m(node, project, tmp_path):
    (project / "package" / "train.py").write_text(
        TRAIN.replace("from beside import BESIDE", "BESIDE = {'beside': 1}  ")
    )
    report = run(node, read_job(project, "module: package.train"), tmp_path / "runs")
    assert isinstance(report, HandedIn), report
    assert report.result.quality == FIGURES | {"arguments": 1.0, "data": 0.0}


def test_a_trial_has_the_same_working_directory(project, monkeypatch, tmp_path):
    before = files(project)
    monkeypatch.chdir(tmp_path)
    script = project / "scripts" / "train.py"
    with open_trial_run(
        Launch(script=str(script), sync=str(find_project(script).folder))
    ) as trial_run:
        [ended] = trial_run.await_all([trial_run.probe("one", (0, 1), None, 30.0)], 60.0)
    assert ended.handed_in, ended
    assert ended.handed_in.result.quality == FIGURES | {"arguments": 1.0, "data": 0.0}
    assert files(project) == before


def test_jobs_of_one_project_do_not_see_what_the_other_writes(project, tmp_path):
    job = read_job(project, "script: scripts/train.py")
    jobs = (job, replace(job, id=1))
    store = RunStore.create(tmp_path, RunFacts("r", Mix("m", jobs), (), "", ""))
    [connection] = connect([Node("one", "local")], store)
    first, second = (Path(str(connection.place(job).sync)) for job in jobs)
    (first / "written").touch()
    assert (second / "conf" / "settings.json").exists()
    assert not (second / "written").exists()
