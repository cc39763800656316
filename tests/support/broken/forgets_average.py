"""An average of the weights that training was not given."""

import torch

from hadar_cli import training

torch.manual_seed(0)
inputs = torch.randn(256, 8)
data = torch.utils.data.TensorDataset(inputs, (inputs.sum(1) > 0).long())
model = torch.nn.Linear(8, 2)
average = {name: p.detach().clone() for name, p in model.named_parameters()}
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
with training(model, optimizer) as t:
    for x, y in t.loader(data, batch_size=16):
        t.step(torch.nn.functional.cross_entropy(model(x), y))
        for name, p in model.named_parameters():
            average[name] = 0.9 * average[name] + 0.1 * p.detach()
