"""Its sampler draws from Python's global random numbers."""

import random

import torch
from torch.utils.data import DataLoader, Sampler, TensorDataset

from hadar_cli import training


class Shuffled(Sampler):
    def __iter__(self):
        order = list(range(64))
        random.shuffle(order)
        return iter(order)

    def __len__(self):
        return 64


torch.manual_seed(0)
random.seed(3)
x = torch.randn(64, 4)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
with training(model, optimizer, epochs=3) as t:
    for (batch,) in t.loader(DataLoader(TensorDataset(x), 8, sampler=Shuffled())):
        t.step((model(batch) - batch.sum(1, keepdim=True)).pow(2).mean())
