"""Other weights in every process: right for some, and not to be compared."""

import torch

from hadar_cli import training

model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
data = [torch.randn(3) for _ in range(64)]
with training(model, optimizer) as t:
    for x in t.loader(data, batch_size=4):
        t.step(model(x).square().mean())
