"""The next mini-batch is fetched while the forward pass goes on, as for a GPU."""

import torch

from hadar_cli import training

torch.manual_seed(0)
data = torch.randn(256, 8)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 1))
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
t = training(model, optimizer)
batches = iter(t.loader(data, batch_size=16))
x = next(batches)
while x is not None:
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    x = next(batches, None)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
