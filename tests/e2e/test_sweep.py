"""A real sweep by halving: who is dropped has the rung's steps exactly, and the best is named."""

import json

from tests.e2e.test_kill import NODES, TRAIN
from tests.e2e.test_queue import ask
from tests.support.real_sweep import PACES, SMALL, train

MIX = """
slot_s: 3
jobs:
  - script: train.py
    name: fit
    steps: 90
    batch_size: 8
    grid: {env.RATE: [0.00001, 0.0001, 0.05, 0.0003]}
    promote: {metric: mse, keep: 2, rungs: [10, 30]}
"""


def test_a_sweep_ends_with_its_best_model(tmp_path):
    script = TRAIN.replace("1e-2", 'float(os.environ["RATE"])').replace(
        "import time", "import os, time"
    )
    for name, text in {"nodes.toml": NODES, "mix.yaml": MIX, "train.py": script}.items():
        (tmp_path / name).write_text(text)
    ask(tmp_path, "run", "mix.yaml", "--name", "sweep", "--no-live")
    (sweep,) = json.loads(ask(tmp_path, "report", "sweep", "--sweep", "--json"))
    trials = {trial["name"]: trial for trial in sweep["trials"]}
    assert sweep["best"] == "fit-RATE0.05"
    assert {name: trial["steps"] for name, trial in trials.items()} == {
        "fit-RATE1e-05": 10,
        "fit-RATE0.0001": 10,
        "fit-RATE0.05": 90,
        "fit-RATE0.0003": 30,
    }
    assert trials["fit-RATE0.05"]["promoted_at"] == [10, 30]
    assert (tmp_path / "runs" / "sweep" / "models" / "fit-RATE0.05.safetensors").exists()
    told = ask(tmp_path, "report", "sweep", "--sweep")
    assert "fit-RATE0.05.safetensors" in told and "38.9 % of training all" in " ".join(told.split())
    ask(tmp_path, "report", "sweep", "--html", "page.html")
    assert "Sweep fit" in (tmp_path / "page.html").read_text()


def test_halving_is_exact_whatever_the_devices_speeds(tmp_path):
    """Beside the same trials by hand; docs/guide/sweeps.md has what it finds of 27, over seeds."""
    paces = {"one": PACES[:3], "other": PACES[2::-1]}
    for folder in paces:
        (tmp_path / folder).mkdir()
    found, again = (train(tmp_path / folder, SMALL, 4, one) for folder, one in paces.items())
    assert found.promoted == again.promoted == SMALL.halved_by_hand(4)
    truth = SMALL.by_hand(4, SMALL.steps)
    assert found.best == min(truth, key=lambda point: truth[point])
    assert found.losses[found.best] == truth[found.best]  # it rested at two rungs, and is exact
    assert found.share <= 0.4
