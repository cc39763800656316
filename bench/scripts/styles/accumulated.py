"""t.step in place of a loop's own updates: accumulation, clipping and a schedule by steps."""

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
    x = torch.randn(count, 12, generator=rng)
    return TensorDataset(x, (x[:, :3].prod(1) > 0).long())


model = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
order = torch.Generator().manual_seed(args.seed)
loader = DataLoader(samples(2048, 1), batch_size=16, shuffle=True, generator=order)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=4 * 64)
held_out = samples(512, 2)


def test():
    with torch.no_grad():
        x, y = held_out.tensors
        return {"accuracy": (model(x).argmax(1) == y).float().mean().item()}


t = training(model, optimizer, scheduler, accumulate=2, evaluate=test)  # hadar
for epoch in t.epochs(4):  # hadar: for epoch in range(4):
    for i, (x, y) in enumerate(t.loader(loader)):  # hadar: for i, (x, y) in enumerate(loader):
        loss = nn.functional.cross_entropy(model(x), y) / 2
        loss.backward()
        if i % 2:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
print("quality", test())
