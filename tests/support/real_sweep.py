"""A small sweep for real: what halving finds, beside training every trial to its end by hand.

Every trial is a process that trains a small network by gradient descent. Devices have unequal
speeds, which are dealt anew for a second run. By hand, all trials are trained to their end here.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from hadar_cli import api
from hadar_cli.core import events
from hadar_cli.runs.store import find_run, read_journal

TRAIN = """
import json, os, sys, time
import numpy as np


def task(seed):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(400, 4))
    y = (np.sin(2 * x[:, 0]) * x[:, 1] + 0.5 * x[:, 2] > 0) ^ (rng.random(400) < 0.05)
    return x[:200], y[:200, None] * 1.0, x[200:], y[200:, None] * 1.0


def begin(width, seed):
    rng = np.random.default_rng(1000 + seed)
    return {"a": rng.normal(size=(5, width)) / 2, "b": rng.normal(size=(width + 1, 1)) / width**0.5}


def forward(w, x):
    one = np.ones((len(x), 1))
    h = np.tanh(np.hstack([x, one]) @ w["a"])
    return h, 1 / (1 + np.exp(-np.clip(np.hstack([h, one]) @ w["b"], -30, 30)))


def step(w, x, y, lr):
    one = np.ones((len(x), 1))
    h, p = forward(w, x)
    d = (p - y) / len(x)
    back = d @ w["b"][:-1].T * (1 - h**2)
    return {"a": w["a"] - lr * np.hstack([x, one]).T @ back,
            "b": w["b"] - lr * np.hstack([h, one]).T @ d}


def loss(w, x, y):
    p = np.clip(forward(w, x)[1], 1e-9, 1 - 1e-9)
    return float(-(y * np.log(p) + (1 - y) * np.log(1 - p)).mean())


if __name__ == "__main__":
    from safetensors.numpy import load_file, save_file

    told = dict(zip(sys.argv[1::2], sys.argv[2::2]))
    lr, width, seed = float(told["--lr"]), int(told["--width"]), int(told["--seed"])
    x, y, held_x, held_y = task(seed)
    w = begin(width, seed)
    if os.environ["HADAR_CKPT_IN"]:
        saved = load_file(os.environ["HADAR_CKPT_IN"])
        w = {name: saved[f"model/0/{name}"] for name in w}
    result = {"steps": int(os.environ["HADAR_STEPS"]), "seconds": {}}
    if os.environ.get("HADAR_EVALUATE") == "1":
        result["evaluation"] = {"loss": loss(w, held_x, held_y)}
    began = time.monotonic()
    for _ in range(result["steps"]):
        w = step(w, x, y, lr)
        time.sleep(float(os.environ["PACE"]))
    result["seconds"]["train"] = time.monotonic() - began
    if os.environ["HADAR_CKPT_OUT"]:
        weights = {f"model/0/{name}": value for name, value in w.items()}
        save_file(weights, os.environ["HADAR_CKPT_OUT"])
    with open(os.environ["HADAR_RESULT"] + ".part", "w") as file:
        json.dump(result, file)
    os.rename(os.environ["HADAR_RESULT"] + ".part", os.environ["HADAR_RESULT"])
"""
PACES = (0.0005, 0.001, 0.002, 0.004)  # seconds a step, of the devices


@dataclass(frozen=True, slots=True)
class Sweep:
    rates: tuple[float, ...]
    widths: tuple[int, ...]
    rungs: tuple[int, ...]
    steps: int

    @property
    def points(self) -> list[tuple[float, int]]:
        return list(product(self.rates, self.widths))

    def by_hand(self, seed: int, steps: int) -> dict[tuple[float, int], float]:
        """Held-out loss of every trial after so many steps, without hadar."""
        code: dict[str, Any] = {"__name__": "by hand"}
        exec(TRAIN, code)
        x, y, held_x, held_y = code["task"](seed)
        found = {}
        for lr, width in self.points:
            w = code["begin"](width, seed)
            for _ in range(steps):
                w = code["step"](w, x, y, lr)
            found[lr, width] = code["loss"](w, held_x, held_y)
        return found

    def halved_by_hand(self, seed: int) -> set[tuple[tuple[float, int], int]]:
        """Who is promoted at which rung, by the definition of halving."""
        left, promoted = self.points, set()
        for rung in self.rungs:
            losses = self.by_hand(seed, rung)
            left = sorted(left, key=lambda point: losses[point])[: len(left) // 3]
            promoted |= {(point, rung) for point in left}
        return promoted


SMALL = Sweep((4.0, 1.0, 0.1), (2, 8, 32), rungs=(20, 60), steps=180)


@dataclass(frozen=True, slots=True)
class Outcome:
    best: tuple[float, int]
    share: float  # of the steps of training all to the end
    promoted: frozenset[tuple[tuple[float, int], int]]  # point, rung
    losses: dict[tuple[float, int], float]


def train(folder: Path, sweep: Sweep, seed: int, paces: tuple[float, ...]) -> Outcome:
    (folder / "train.py").write_text(TRAIN)
    nodes = [
        {"name": f"n{i}", "host": "local", "env": {"PACE": str(pace)}}
        for i, pace in enumerate(paces)
    ]
    job = {
        "script": "train.py",
        "name": "fit",
        "steps": sweep.steps,
        "batch_size": 200,
        "args": ["--seed", seed],
        "grid": {"lr": list(sweep.rates), "width": list(sweep.widths)},
        "promote": {"metric": "loss", "keep": 3, "rungs": list(sweep.rungs)},
    }
    mix = api.mix({"slot_s": 5, "jobs": [job]}, folder=folder)
    report = api.run(mix, api.nodes(nodes), name="real", runs_dir=folder / "runs").wait()
    points = {row["name"]: (row["lr"], row["width"]) for row in report.trials}
    store = find_run(folder / "runs", "real")
    names = {job.id: job.name for job in store.facts.mix.jobs}
    passed = [e for e in read_journal(store.journal_path) if isinstance(e, events.MilestonePassed)]
    best = report.best["fit"]
    assert best
    return Outcome(
        best=points[best],
        share=sum(row["steps"] for row in report.trials) / (len(points) * sweep.steps),
        promoted=frozenset((points[names[e.job]], e.step) for e in passed),
        losses={points[row["name"]]: row["value"] for row in report.trials},
    )
