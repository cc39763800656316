"""Updates that the optimizer knows nothing of."""

import torch

from hadar_cli import training

torch.manual_seed(0)
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
data = [torch.randn(3) for _ in range(64)]
with training(model, optimizer) as t:
    for x in t.loader(data, batch_size=4):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        for parameter in model.parameters():
            parameter.data -= 0.1 * parameter.grad
