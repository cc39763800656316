"""The evaluation, too, is given its batches by ``t.loader``: after more steps than a trial does."""

import torch
from torch.utils.data import DataLoader

from hadar_cli import training

torch.manual_seed(0)
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
loader = DataLoader(torch.randn(400000, 3), 4, shuffle=True)
held_out = DataLoader(torch.randn(16, 3), 2)
t = training(model, optimizer)
for _ in t.epochs(3):
    for x in t.loader(loader):
        t.step(model(x).square().mean())
    model.eval()
    print(sum(float(model(x).detach().square().mean()) for x in t.loader(held_out)))
    model.train()
