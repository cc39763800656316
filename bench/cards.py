"""A large card and a small one: is the small one worth its help, and does hadar see it?

    python -m bench.cards [--slower 2 8 30] [--steps 600] [--step-s 0.1]

A job whose batch takes 8 GB trains on a card of 24 GB and on one of 4 GB, each a node over SSH,
and on the first alone. The memory is scripted: a pass of more samples than fit ends as torch does
on such a card. A sample takes its time on each, and so does every pass on the small one, so that
batches in pieces cost what they do on a GPU. ``--slower`` is how many times as long a sample takes
on the small card.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from bench.frame import Row, beside, line
from bench.machines import Head, inventory_of
from hadar_cli.config.inventory import read_nodes
from hadar_cli.core import events
from hadar_cli.runs.store import read_journal
from tests.support.lab import running

BATCH, GB_PER_SAMPLE, WEIGHTS_GB = 16, 0.4375, 1.0  # 8 GB for a step
CARDS = {"rtx3090": ("RTX 3090", 24.0, 0.55), "t400": ("T400", 4.0, 0.066)}  # as in the lab
PASS_S = 0.01  # of the small card's passes, however few samples they are of
TRAIN = f"""
import os
import time
import torch
from hadar_cli import training

torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
x = torch.randn(4096, 8)
data = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))
CARD_GB, SAMPLE_S, PASS_S = (float(os.environ[key]) for key in ("CARD_GB", "SAMPLE_S", "PASS_S"))

def forward(x):
    if {WEIGHTS_GB} + len(x) * {GB_PER_SAMPLE} > CARD_GB:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
    time.sleep(len(x) * SAMPLE_S + PASS_S)
    return model(x)

with training(model, optimizer) as t:
    for a, b in t.loader(data, batch_size={BATCH}):
        t.step((forward(a) - b).square().mean())
"""


def run_cards(
    directory: Path, step_s: float, slower: float, steps: int, slot_s: float, with_small: bool
) -> tuple[list[events.Event], str]:
    """The journal of the job on both cards or on the large one alone, and what the head said."""
    with running(directory / "lab", count=2) as lab:
        project = directory / "project"
        project.mkdir()
        nodes = read_nodes(lab.inventory)
        names = list(CARDS)[: 1 + with_small]
        inventory = ""
        for node, name in zip(nodes, names, strict=False):
            model, gb, usual = CARDS[name]
            sample_s = step_s / BATCH * (slower if name == "t400" else 1.0)
            speed = {
                "CARD_GB": str(gb),
                "SAMPLE_S": f"{sample_s:.6f}",
                "PASS_S": str(PASS_S if name == "t400" else 0.0),
            }
            env = ", ".join(f"{key} = {json.dumps(value)}" for key, value in speed.items())
            inventory += inventory_of(replace(node, name=name))
            inventory += f'gpus = [{{ model = "{model}" }}]\nemulate = {{ speed = {usual} }}\n'
            inventory += f"env = {{ {env} }}\n"
        (project / "nodes.toml").write_text(inventory)
        (project / "train.py").write_text(TRAIN)
        (project / "mix.yaml").write_text(
            f"name: cards\nslot_s: {slot_s}\njobs:\n"
            f"  - {{script: train.py, steps: {steps}, batch_size: {BATCH}}}\n"
        )
        head = Head(project)
        head.start("run", "mix.yaml", "-n", "nodes.toml", "--name", "cards", "--no-live")
        head.end()
        return read_journal(project / "runs" / "cards" / "journal.jsonl"), head.told


def cards(step_s: float, slower: float, steps: int, slot_s: float) -> Iterator[Row]:
    """Both at the same time: they hardly compute, and what else goes on here slows both alike."""

    def seconds(with_small: bool) -> float:
        with tempfile.TemporaryDirectory() as name:
            journal, _ = run_cards(Path(name), step_s, slower, steps, slot_s, with_small)
        merged = [e for e in journal if isinstance(e, events.WeightsMerged)]
        counted = {attempt for merge in merged for attempt in merge.accepted}
        ends = [e for e in journal if isinstance(e, events.CopyFinished) and e.attempt in counted]
        assert sum(copy.steps for copy in ends) == steps, "not exact"
        return journal[-1].t

    with ThreadPoolExecutor(2) as pool:
        helped, alone = pool.map(seconds, (True, False))
    case = f"{steps} steps of {step_s:g} s, a small card {slower:g} x slower beside it"
    yield beside(case, "s", [helped], "the large card alone", [alone])


def rows(quick: bool) -> Iterator[Row]:
    for slower in (8.0,) if quick else (2.0, 8.0, 30.0):
        yield from cards(0.1, slower, 400 if quick else 900, 15.0)


def main() -> None:
    usage = argparse.ArgumentParser(description=__doc__)
    usage.add_argument("--slower", type=float, nargs="+", default=[2.0, 8.0, 30.0])
    usage.add_argument("--steps", type=int, default=600)
    usage.add_argument("--step-s", type=float, default=0.1)
    usage.add_argument("--slot-s", type=float, default=15.0)
    asked = usage.parse_args()
    for slower in asked.slower:
        for row in cards(asked.step_s, slower, asked.steps, asked.slot_s):
            print(line(row), flush=True)


if __name__ == "__main__":
    main()
