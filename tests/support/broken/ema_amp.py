"""Right, and hard to judge: an average of the weights, and a GradScaler that leaves updates out."""

import copy

import torch

from hadar_cli import training

torch.manual_seed(0)
inputs = torch.randn(256, 8)
data = torch.utils.data.TensorDataset(inputs, (inputs.sum(1) > 0).long())
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.1), torch.nn.Linear(16, 2))
average = copy.deepcopy(model).requires_grad_(False)
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**17, growth_interval=1)
with training([model, average], optimizer, scaler=scaler) as t:
    for x, y in t.loader(data, batch_size=16):
        with torch.autocast("cpu", dtype=torch.float16):
            loss = torch.nn.functional.cross_entropy(model(x), y)
        t.step(loss, clip_norm=1.0)
        with torch.no_grad():
            for mean, parameter in zip(average.parameters(), model.parameters(), strict=True):
                mean.lerp_(parameter, 0.01)
