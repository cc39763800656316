"""Trains something else under hadar than by hand, and writes into its folder."""

import os
from pathlib import Path

import torch

from hadar_cli import training

torch.manual_seed(0)
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
data = [torch.randn(3) for _ in range(64)]
by_hand = "HADAR_STEPS" not in os.environ
Path("notes.txt").write_text("overwritten")
if Path("words.bin").exists():  # which .gitignore keeps from travelling
    print(len(Path("words.bin").read_bytes()), "words")
with training(model, optimizer) as t:
    for x in t.loader(data, batch_size=4):
        t.step(model(x if by_hand else x[:2]).square().mean())
