"""Early stopping: a break out of the loop over epochs once the loss no longer falls."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from hadar_cli import training  # hadar

parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()
torch.manual_seed(args.seed)


def samples(count, seed):
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 6, generator=rng)
    return TensorDataset(x, x.sum(1, keepdim=True) + 0.3 * torch.randn(count, 1, generator=rng))


model = nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
order = torch.Generator().manual_seed(args.seed)
loader = DataLoader(samples(1024, 1), batch_size=32, shuffle=True, generator=order)
x_out, y_out = samples(512, 2).tensors


def test():
    with torch.no_grad():
        return {"error": (model(x_out) - y_out).square().mean().item()}


progress = {"best": float("inf"), "waited": 0}
t = training(model, optimizer, evaluate=test, state={"progress": progress})  # hadar
for epoch in t.epochs(60):  # hadar: for epoch in range(60):
    for x, y in t.loader(loader):  # hadar: for x, y in loader:
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()
    found = test()["error"]
    progress["waited"] = 0 if found < progress["best"] - 1e-4 else progress["waited"] + 1
    progress["best"] = min(progress["best"], found)
    if progress["waited"] == 2:
        break
print("quality", test())
