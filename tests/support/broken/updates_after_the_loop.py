"""Accumulates, and makes an update of what an epoch leaves after its loop."""

import torch

from hadar_cli import training

torch.manual_seed(0)
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
data = [torch.randn(3) for _ in range(132)]
t = training(model, optimizer)
for _ in t.epochs(3):
    for i, x in enumerate(t.loader(data, batch_size=4)):
        model(x).square().mean().backward()
        if i % 2:
            optimizer.step()
            optimizer.zero_grad()
    optimizer.step()
    optimizer.zero_grad()
