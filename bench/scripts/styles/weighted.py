"""Rare classes, drawn more often by a WeightedRandomSampler."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

from hadar_cli import training  # hadar

parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()
torch.manual_seed(args.seed)


def samples(count, seed):
    rng = torch.Generator().manual_seed(seed)
    y = (torch.rand(count, generator=rng) < 0.05).long()
    return TensorDataset(torch.randn(count, 8, generator=rng) + y[:, None], y)


train, held_out = samples(4000, 1), samples(2000, 2)
labels = train.tensors[1]
weights = (1.0 / labels.bincount())[labels]
sampler = WeightedRandomSampler(weights, 2048, generator=torch.Generator().manual_seed(args.seed))
loader = DataLoader(train, batch_size=32, sampler=sampler)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)


def test():
    with torch.no_grad():
        x, y = held_out.tensors
        found = model(x).argmax(1)
        recalls = [(found[y == c] == c).float().mean() for c in (0, 1)]
    return {"balanced_accuracy": (sum(recalls) / 2).item()}


t = training(model, optimizer, evaluate=test)  # hadar
for epoch in t.epochs(3):  # hadar: for epoch in range(3):
    for x, y in t.loader(loader):  # hadar: for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
print("quality", test())
