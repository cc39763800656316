"""The scheduler is not given to ``training``: it starts anew with every process."""

import torch

from hadar_cli import training

torch.manual_seed(0)
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
data = [torch.randn(3) for _ in range(64)]
with training(model, optimizer) as t:
    for x in t.loader(data, batch_size=4):
        t.step(model(x).square().mean())
        scheduler.step()
