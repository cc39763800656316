"""A classifier with epochs, its own updates, a schedule by epochs and a validation loop."""

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
    x = torch.randn(count, 16, generator=rng)
    teacher = torch.randn(16, 4, generator=torch.Generator().manual_seed(99))
    return TensorDataset(x, (x @ teacher).argmax(1))


model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.7)
order = torch.Generator().manual_seed(args.seed)
loader = DataLoader(samples(2048, 1), batch_size=32, shuffle=True, generator=order)
held_out = samples(512, 2)


def test():
    model.eval()
    with torch.no_grad():
        x, y = held_out.tensors
        accuracy = (model(x).argmax(1) == y).float().mean().item()
    model.train()
    return {"accuracy": accuracy}


t = training(model, optimizer, scheduler, evaluate=test)  # hadar
for epoch in t.epochs(4):  # hadar: for epoch in range(4):
    for x, y in t.loader(loader):  # hadar: for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        t.log(loss)  # hadar
    scheduler.step()
print("quality", test())
