"""``hadar_cli.api`` for real: built in code, trained, left, resumed, reported; and the notebook."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import nbformat
import numpy as np
import pandas as pd
import pytest
from nbclient import NotebookClient

from hadar_cli import api
from hadar_cli.core import events
from hadar_cli.errors import InputError

ROOT = Path(__file__).parents[2]
NODES = [
    {"name": "fast", "host": "local", "emulate": {"speed": 0.5}},
    {"name": "slow", "host": "local", "emulate": {"speed": 0.25}},
]
SCRIPT = """
import json, os, signal, time

asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
import numpy as np
from safetensors.numpy import load_file, save_file

weight = np.zeros(4, np.float32)
if os.environ["HADAR_CKPT_IN"]:
    weight = load_file(os.environ["HADAR_CKPT_IN"])["model/0/weight"]
done = 0
while done < int(os.environ["HADAR_STEPS"]) and not asked:
    weight, done = weight + 1, done + 1
    time.sleep(0.01)
save_file({"model/0/weight": weight}, os.environ["HADAR_CKPT_OUT"])
with open(os.environ["HADAR_RESULT"] + ".part", "w") as file:
    json.dump({"steps": done, "seconds": {"train": done * 0.01}}, file)
os.rename(os.environ["HADAR_RESULT"] + ".part", os.environ["HADAR_RESULT"])
"""


@pytest.fixture
def batch(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    job = {"script": "train.py", "steps": 200, "batch_size": 8, "count": 2, "fork": 1}
    fields = {"name": "coded", "slot_s": 3, "merge": {"solo": 0}, "jobs": (job,)}
    return api.mix(fields, folder=tmp_path)


def test_a_run_built_in_code_is_left_resumed_and_reported(tmp_path, batch):
    run = api.run(batch, api.nodes(NODES), name="mine", runs_dir=tmp_path / "runs")
    loop = iter(run)  # kept alive, as a notebook's last traceback keeps it
    with pytest.raises(KeyboardInterrupt):
        for event in loop:
            if isinstance(event, events.CopyStarted):
                signal.raise_signal(signal.SIGINT)
    while any(thread.name == "run mine" for thread in threading.enumerate()):
        time.sleep(0.05)  # its copies hand in
    assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    loop.close()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert api.report("mine", runs_dir=tmp_path / "runs").summary["state"] == "stopped"
    told = api.resume("mine", runs_dir=tmp_path / "runs").wait()
    assert told.summary["state"] == "finished"
    table = pd.DataFrame(told.jobs)
    assert list(table["steps_done"]) == [200, 200]
    assert set(pd.DataFrame(told.devices)["name"]) == {"fast", "slow"}
    assert list(api.resume("mine", runs_dir=tmp_path / "runs")) == []  # it is over


def test_what_is_built_in_code_is_checked_as_strictly_as_a_file(tmp_path, batch):
    with pytest.raises(InputError, match=r"jobs\[0\].stepz: there is no such field"):
        api.mix({"jobs": [{"script": "train.py", "stepz": 3}]}, folder=tmp_path)
    with pytest.raises(InputError, match=r"node\[1\].name: 'a' is already taken"):
        api.nodes([{"name": "a", "host": "local"}] * 2)
    with pytest.raises(InputError, match="cannot name a run"):
        api.run(batch, api.nodes(NODES), name="../up", runs_dir=tmp_path / "runs")
    with pytest.raises(InputError, match="no policy 'hadarr'"):
        api.simulate(batch, api.nodes(NODES), ["hadarr"])


def test_what_is_no_mix_or_inventory_is_told_what_to_give(tmp_path, batch):
    given = [
        (lambda: api.mix(3), r"no mix: '3'"),
        (lambda: api.nodes(None), "no inventory: 'None'"),
        (lambda: api.run("mix.yaml", api.nodes(NODES)), "no mix: 'mix.yaml'"),
        (lambda: api.run(batch, "nodes.toml"), "no inventory: 'nodes.toml'"),
        (lambda: api.simulate(batch, NODES), "no inventory"),
    ]
    for attempt, said in given:
        with pytest.raises(InputError, match=said) as caught:
            attempt()
        assert "api." in caught.value.fix
    assert not (tmp_path / "runs").exists()


def test_numbers_of_numpy_are_numbers(tmp_path, batch):
    job = {"script": "train.py", "steps": np.int64(20), "batch_size": 8}
    swept = api.mix({"jobs": [{**job, "grid": {"lr": np.array([0.5, 0.25])}}]}, folder=tmp_path)
    assert [(one.target_steps, one.trial.params["lr"]) for one in swept.jobs] == [
        (20, 0.5),
        (20, 0.25),
    ]


def test_a_simulation_is_a_row_for_each_policy(batch):
    assert len(api.simulate(batch, api.nodes(NODES), "gavel")) == 1
    rows = api.simulate(batch, api.nodes(NODES), ["hadare", "tiresias"])
    assert [row["policy"] for row in rows] == ["hadare", "tiresias"]
    assert all(row["unfinished"] == 0 and row["ttd_s"] > 0 for row in rows)


def test_importing_the_api_imports_nothing_heavy():
    heavy = {"torch", "numpy", "fabric", "paramiko", "plotly", "rich", "typer"}
    code = "import sys; import hadar_cli.api; print(*sys.modules)"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not heavy & set(told.stdout.split())


def test_the_notebook_runs_as_it_is(tmp_path):
    notebook = nbformat.read(ROOT / "examples" / "notebook.ipynb", as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells)  # nothing stale is shipped
    NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": tmp_path}}
    ).execute()
    printed = [
        output["text"]
        for cell in notebook.cells
        for output in cell.get("outputs", ())
        if output["output_type"] == "stream" and output["name"] == "stdout"
    ]
    assert json.loads(printed[-1]) == {"lines": [600, 600]}
