"""One job that has the lab for itself: merged copies, and what hadar chooses, beside one device.

    python -m bench --only lone

Five sshd nodes, paced to the ratios of the paper's testbed GPUs and joined by a network, train a
small transformer on a text whose next word is known three times in four. A step takes more than
0.1 s on the fastest. Told are the time to the end of the same number of steps, and the held-out
loss then: of merged copies it may be worse; shared steps end where one device does.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.frame import Row, beside
from hadar_cli.core import events
from hadar_cli.runs.store import find_run, read_journal
from tests.support.lab import Lab, running

STEPS = 480
SCRIPT = """
import torch
from torch import nn
from hadar_cli import training
torch.manual_seed(0)
torch.set_num_threads(1)
chance = torch.Generator().manual_seed(1)
follows = torch.randperm(64, generator=chance)
words = torch.randint(64, (8512, 17), generator=chance)
for column in range(1, 17):
    known = torch.rand(len(words), generator=chance) < 0.75
    words[known, column] = follows[words[known, column - 1]]

class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.names = nn.Embedding(64, 64)
        layer = nn.TransformerEncoderLayer(64, 4, 128, 0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2)
        self.tell = nn.Linear(64, 64)

    def forward(self, read):
        past = nn.Transformer.generate_square_subsequent_mask(read.shape[1])
        return self.tell(self.layers(self.names(read), mask=past, is_causal=True))

model = Reader()
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)

def loss_of(rows):
    told = model(rows[:, :-1])
    return nn.functional.cross_entropy(told.flatten(0, 1), rows[:, 1:].flatten())

def evaluate():
    with torch.no_grad():
        return {"loss": loss_of(words[8000:]).item()}

with training(model, optimizer, scheduler, evaluate=evaluate) as t:
    for rows in t.loader(words[:8000], batch_size=640, shuffle=True):
        t.step(loss_of(rows))
""".replace("STEPS", str(STEPS))
MIX = """
name: lone
slot_s: 10
jobs:
  - {{script: train.py, name: lone, steps: {steps}, batch_size: 640, mode: {mode}}}
"""


@dataclass(frozen=True, slots=True)
class Ended:
    """A run of the job."""

    seconds: float
    loss: float
    merges: int  # of several copies


def run(lab: Lab, mode: str, steps: int) -> Ended:
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        joined = '[[node]]\nnetwork = "lab"\naddress = "127.0.0.1"'
        (work / "nodes.toml").write_text(lab.inventory.read_text().replace("[[node]]", joined))
        (work / "train.py").write_text(SCRIPT)
        (work / "mix.yaml").write_text(MIX.format(steps=steps, mode=mode))
        words = [sys.executable, "-m", "hadar_cli.cli.main", "run", "mix.yaml", "--no-live"]
        subprocess.run(words, cwd=work, check=True, capture_output=True)
        return of_journal(read_journal(find_run(work / "runs", None).journal_path))


def of_journal(happened: list[events.Event]) -> Ended:
    """When the last step was counted, and the last quality that was told."""
    merges = [event for event in happened if isinstance(event, events.WeightsMerged)]
    told = [e.quality for e in happened if isinstance(e, events.CopyFinished) and e.quality]
    return Ended(merges[-1].t, told[-1]["loss"], sum(len(m.accepted) > 1 for m in merges))


def rows(quick: bool) -> Iterator[Row]:
    steps = STEPS // 4 if quick else STEPS
    with tempfile.TemporaryDirectory() as folder, running(Path(folder) / "lab", 5) as lab:
        alone, merged, chosen = (run(lab, mode, steps) for mode in ("alone", "merge", "auto"))
    for name, found in (("merged", merged), ("as hadar chooses", chosen)):
        case = f"a lone job, {name}, {found.merges} merges"
        yield beside(case, "s", [found.seconds], "the fastest alone", [alone.seconds])
        yield beside(f"{case}: held-out loss", "", [found.loss], "alone", [alone.loss])
