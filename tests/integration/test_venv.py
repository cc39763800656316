"""A job's packages are installed once a node, on top of its Python; pip's words reach the user."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from hadar_cli.assembly import connect
from hadar_cli.config.inventory import read_nodes
from hadar_cli.config.mixes import read_mix
from hadar_cli.core.model import Job, Mix, Node
from hadar_cli.engine.ports import HandedIn, Preparing, Report
from hadar_cli.node.files.venvs import BuildError, make_venv
from hadar_cli.nodes.executor import NodeExecutor
from hadar_cli.nodes.supply.preparation import prepare
from hadar_cli.runs.store import RunFacts, RunStore
from hadar_cli.visits.visit import tidy
from tests.contract.test_executor import collect, order
from tests.support.lab import Lab, running

TRAIN = """
import json, os, sys
from pathlib import Path
from types import SimpleNamespace
import hadar_test_package            # of the virtual environment
import numpy                         # of the node's own Python
from beside import BESIDE            # of the project
result = {"steps": 0, "evaluation": {"version": hadar_test_package.VERSION, "beside": BESIDE}}
assert sys.prefix != sys.base_prefix and "venvs" in sys.prefix, sys.prefix
Path(os.environ["HADAR_RESULT"] + ".part").write_text(json.dumps(result))
os.rename(os.environ["HADAR_RESULT"] + ".part", os.environ["HADAR_RESULT"])
"""


def make_wheel(folder: Path, version: str) -> None:
    """The least that pip takes for a package."""
    folder.mkdir(exist_ok=True)
    facts = f"hadar_test_package-{version}.dist-info"
    with zipfile.ZipFile(folder / f"hadar_test_package-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr("hadar_test_package.py", f"VERSION = {version}")
        name = f"Metadata-Version: 2.1\nName: hadar-test-package\nVersion: {version}\n"
        wheel.writestr(f"{facts}/METADATA", name)
        tags = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        wheel.writestr(f"{facts}/WHEEL", tags)
        wheel.writestr(f"{facts}/RECORD", "")


@pytest.fixture
def project(tmp_path) -> Path:
    root = tmp_path / "project"
    root.mkdir()
    make_wheel(tmp_path / "wheels", "1.5")
    (root / "train.py").write_text(TRAIN)
    (root / "beside.py").write_text("BESIDE = 2")
    ask(root, "hadar-test-package", "numpy")
    (root / "mix.yaml").write_text(
        "jobs: [{script: train.py, steps: 10, venv: requirements.txt}]",
    )
    return root


def ask(project: Path, *packages: str) -> None:
    lines = ["--no-index", f"--find-links {project.parent / 'wheels'}", *packages]
    (project / "requirements.txt").write_text("\n".join(lines))


@pytest.fixture(scope="module")
def lab(tmp_path_factory) -> Iterator[Lab]:
    with running(tmp_path_factory.mktemp("venv") / "lab") as lab:
        yield lab


@pytest.fixture(params=["local", "sshd"])
def node(request, tmp_path) -> Node:
    if request.param == "local":
        return Node("one", "local")
    [node] = read_nodes(request.getfixturevalue("lab").inventory)
    workdir = str(tmp_path / "workdir")
    return replace(node, name="one", gpus=(), emulated_speed=None, workdir=workdir)


def read_job(project: Path) -> Job:
    return read_mix(project / "mix.yaml").jobs[0]


def run(node: Node, job: Job, runs: Path, name: str) -> tuple[Report, list[Preparing]]:
    store = RunStore.create(runs, RunFacts(name, Mix("m", (job,)), (node,), "", ""))
    told: list[Preparing] = []
    connections = connect([node], store)
    assert prepare(connections, [job], told.append, lambda: None) == {}
    executor = NodeExecutor(connections, 1, 0.0)
    try:
        executor.start(order("a", (0, 1), job=job, returns_weights=False))
        return collect(executor, 1)[0], told
    finally:
        executor.stop(0.0)


def test_it_is_made_once_a_node_and_removed_by_clean(node, project, tmp_path):
    runs = tmp_path / "runs"
    report, told = run(node, read_job(project), runs, "first")
    assert isinstance(report, HandedIn), report
    assert report.result.quality == {"version": 1.5, "beside": 2.0}
    assert (told[-1].what, told[-1].now) == ("packages", "packages are there")
    report, told = run(node, read_job(project), runs, "second")
    assert isinstance(report, HandedIn), report
    assert told == []
    made = runs / ".hadar" if node.is_local else Path(str(node.workdir))
    assert len(list(made.glob("venvs/*/bin/python"))) == 1
    [(_, tidied)] = tidy([node], runs, "remove", None, ["first", "second"], 30.0)
    assert tidied.after.bytes == 0
    assert not made.exists()


def test_a_package_that_is_not_to_be_had_is_told_in_pips_words(node, project, tmp_path):
    ask(project, "hadar-test-package==9.9")
    job = read_job(project)
    store = RunStore.create(tmp_path, RunFacts("r", Mix("m", (job,)), (node,), "", ""))
    failed = prepare(connect([node], store), [job], lambda report: None, lambda: None)
    assert "No matching distribution found for hadar-test-package==9.9" in failed["one"]
    assert len(failed["one"]) < 600


@pytest.mark.parametrize(
    ("free_mb", "told"),
    [(10_000, "install python3-venv there"), (3, "no room for its packages: 3 MB are free in")],
)
def test_a_python_that_can_make_none_is_told_what_it_lacks(tmp_path, monkeypatch, free_mb, told):
    """As Debian's without python3-venv, where there is no uv either; or as any on a full disk."""
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=free_mb * 10**6))
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexit 1\n")
    python.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(python))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(BuildError, match=told):
        make_venv(tmp_path, ["x"], [], lambda now: None)
    assert not list((tmp_path / "venvs").glob("*/bin"))


def test_one_that_was_cut_off_is_made_anew(tmp_path):
    make_wheel(tmp_path / "wheels", "1.5")
    wanted = ["--no-index", f"--find-links {tmp_path / 'wheels'}", "hadar-test-package"]
    python = make_venv(tmp_path, wanted, [], lambda now: None)
    (python.parents[1] / "hadar-ready").unlink()
    told: list[str] = []
    assert make_venv(tmp_path, wanted, [], told.append) == python
    assert told
    told.clear()
    assert make_venv(tmp_path, wanted, [], told.append) == python
    assert told == []
