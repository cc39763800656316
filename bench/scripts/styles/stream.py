"""An IterableDataset that reads shards and shuffles them in a buffer."""

import argparse
import random

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from hadar_cli import training  # hadar

parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()
torch.manual_seed(args.seed)


def row(number):
    x = torch.randn(8, generator=torch.Generator().manual_seed(number))
    return x, x[:1].abs() - x[1:2]


class Shards(IterableDataset):
    def __iter__(self):
        rng, buffer = random.Random(args.seed), []
        for number in range(2048):
            buffer.append(number)
            if len(buffer) == 256:
                yield row(buffer.pop(rng.randrange(256)))
        rng.shuffle(buffer)
        yield from map(row, buffer)

    def __len__(self):
        return 2048


model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
loader = DataLoader(Shards(), batch_size=32)
held_out = [torch.stack(part) for part in zip(*(row(10_000 + i) for i in range(256)))]


def test():
    with torch.no_grad():
        return {"error": (model(held_out[0]) - held_out[1]).square().mean().item()}


t = training(model, optimizer, evaluate=test)  # hadar
for epoch in t.epochs(3):  # hadar: for epoch in range(3):
    for x, y in t.loader(loader):  # hadar: for x, y in loader:
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()
print("quality", test())
