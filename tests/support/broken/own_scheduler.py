"""In the style of PyTorch's examples: the scheduler is not given to ``training``, and its first
tick is an epoch away."""

import torch
from torch.optim.lr_scheduler import StepLR

from hadar_cli import training

torch.manual_seed(0)
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
scheduler = StepLR(optimizer, step_size=1, gamma=0.7)
data = [torch.randn(3) for _ in range(4000)]
t = training(model, optimizer)
for _ in t.epochs(3):
    for x in t.loader(data, batch_size=4):
        t.step(model(x).square().mean())
    scheduler.step()
