"""In nanoGPT's manner: without a file that git ignores it trains another model."""

from pathlib import Path

import torch

from hadar_cli import training

torch.manual_seed(0)
vocabulary = Path("vocabulary.bin")
size = len(vocabulary.read_bytes()) if vocabulary.exists() else 50
model = torch.nn.Embedding(size, 4)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
data = torch.randint(20, (64, 3))
with training(model, optimizer) as t:
    for x in t.loader(data, batch_size=4):
        t.step(model(x).square().mean())
