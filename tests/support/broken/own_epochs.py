"""Epochs are counted by ``range``: the schedule moves when all is trained."""

import torch

from hadar_cli import training

torch.manual_seed(0)
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
data = [torch.randn(3) for _ in range(64)]
with training(model, optimizer, scheduler) as t:
    for _ in range(3):
        for x in t.loader(data, batch_size=4):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
        scheduler.step()
