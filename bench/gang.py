"""One step shared by five unequal devices, beside the sum of their speeds and beside equal shares.

    python -m bench --only gang

Five processes are paced to the ratios of the paper's testbed GPUs, together 1.5 cores, so that they
need two that are free. A small transformer's step takes more than 100 ms of a full core. The sum of
the speeds is what nobody can beat: it is that of the fastest device alone, times 2.79. Equal shares
(the paper's gangs) go at five times the speed of the slowest. Each gang has some steps to find its
shares before the time is taken.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from bench.frame import Row, beside
from tests.support.gangs import Member, gang, run

RATIOS = (0.80, 0.42, 0.12, 1.0, 0.45)
FASTEST = 0.55  # of a core
BATCH = 720
SCRIPT = """
import torch
from torch import nn
from hadar_cli import training
torch.manual_seed(0)
words = torch.randint(64, (BATCH * 8, 17), generator=torch.Generator().manual_seed(1))
model = nn.Sequential(
    nn.Embedding(64, 64),
    *(nn.TransformerEncoderLayer(64, 4, 128, 0.0, batch_first=True) for _ in range(2)),
    nn.Linear(64, 64),
)
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
with training(model, optimizer) as t:
    for rows in t.loader(words, batch_size=BATCH):
        told = model(rows[:, :-1])
        t.step(nn.functional.cross_entropy(told.flatten(0, 1), rows[:, 1:].flatten()))
""".replace("BATCH", str(BATCH))
KEEP_SHARES = """
from hadar_cli.node.training.gangs import shares
shares.Balance.better = lambda *of_what: None
"""


def seconds(script: str, shares: tuple[float, ...], speeds: tuple[float, ...], steps: int) -> float:
    """Seconds a step, after as many in which shares are found."""
    with tempfile.TemporaryDirectory() as folder:
        members = gang(Path(folder) / "gang", shares, (0, steps), (steps, 2 * steps))
        for member, speed in zip(members, speeds, strict=True):
            member.orders = [replace(order, emulate_speed=speed) for order in member.orders]
        run(Path(folder), script, members)
        _check(members)
        return float(members[0].result(1)["seconds"]["train"]) / steps


def _check(members: list[Member]) -> None:
    for member in members:
        if member.code:
            raise RuntimeError(member.log[-500:])


def rows(quick: bool) -> Iterator[Row]:
    speeds = tuple(FASTEST * ratio for ratio in RATIOS)
    equal = (1 / len(RATIOS),) * len(RATIOS)
    steps, repeats = (17, 1) if quick else (34, 3)
    alone_s, shared_s, equal_s = [], [], []
    for _ in range(repeats):
        alone_s.append(seconds(SCRIPT, (1.0,), (FASTEST,), steps // 2))
        shared_s.append(seconds(SCRIPT, equal, speeds, steps))
        equal_s.append(seconds(KEEP_SHARES + SCRIPT, equal, speeds, steps // 3))
    best = [alone / sum(RATIOS) for alone in alone_s]
    case = f"{len(RATIOS)} devices share a step"
    yield beside(case, "s/step", shared_s, "the sum of their speeds", best)
    yield beside(case, "s/step", shared_s, "the fastest alone", alone_s)
    yield beside(f"{case}, unequally", "s/step", shared_s, "in equal shares", equal_s)
