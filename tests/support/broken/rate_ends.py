"""A rate that ends at 0 with the script's own steps, and a mean of the weights that goes on."""

import copy

import torch
from torch.optim.lr_scheduler import CosineAnnealingLR

from hadar_cli import training

torch.manual_seed(0)
data = torch.randn(64, 4)
model = torch.nn.Linear(4, 1)
average = copy.deepcopy(model).requires_grad_(False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
scheduler = CosineAnnealingLR(optimizer, T_max=2)
t = training(model, optimizer, scheduler, state={"average": average})
for _ in t.epochs(2):
    for x in t.loader(data, batch_size=8):
        optimizer.zero_grad()
        (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
        optimizer.step()
        for mean, parameter in zip(average.parameters(), model.parameters(), strict=True):
            mean.data.lerp_(parameter.data, 0.1)
    scheduler.step()
