"""Right: its learning rate is set by hand, by the number of the job's step."""

import torch

from hadar_cli import training

torch.manual_seed(0)
data = torch.randn(64, 4)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
with training(model, optimizer, epochs=4) as t:
    for x in t.loader(data, batch_size=4):
        for group in optimizer.param_groups:
            group["lr"] = 0.01 / (1 + 0.01 * t.position)
        t.step((model(x) - x.sum(1, keepdim=True)).pow(2).mean())
