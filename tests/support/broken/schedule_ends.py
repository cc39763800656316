"""A schedule as long as the script's own steps: right where the mix has as many."""

import torch
from torch.optim.lr_scheduler import OneCycleLR

from hadar_cli import training

torch.manual_seed(0)
data = torch.randn(64, 4)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
scheduler = OneCycleLR(optimizer, 0.01, total_steps=24)
t = training(model, optimizer, scheduler)
for _ in t.epochs(2):
    for x in t.loader(data, batch_size=4):
        loss = (model(x) - x.sum(1, keepdim=True)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        t.log(loss)
