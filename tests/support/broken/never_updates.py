"""Gradients, and nothing made of them."""

import torch

from hadar_cli import training

torch.manual_seed(0)
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.Adam(model.parameters(), 0.1)
data = [torch.randn(3) for _ in range(64)]
with training(model, optimizer) as t:
    for x in t.loader(data, batch_size=4):
        loss = model(x).square().mean()
        loss.backward()
        t.log(loss)
