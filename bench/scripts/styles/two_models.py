"""Two models with an optimizer each, trained in turns: an encoder against a probe."""

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
    return TensorDataset(torch.randn(count, 4, generator=rng) @ torch.ones(4, 10) / 2)


encoder, decoder = nn.Linear(10, 2), nn.Linear(2, 10)
optimizers = [torch.optim.Adam(m.parameters(), lr=0.01) for m in (encoder, decoder)]
order = torch.Generator().manual_seed(args.seed)
loader = DataLoader(samples(2048, 1), batch_size=32, shuffle=True, generator=order)
(held_out,) = samples(512, 2).tensors


def test():
    with torch.no_grad():
        return {"error": (decoder(encoder(held_out)) - held_out).square().mean().item()}


t = training([encoder, decoder], optimizers, evaluate=test)  # hadar
for epoch in t.epochs(3):  # hadar: for epoch in range(3):
    for (x,) in t.loader(loader):  # hadar: for (x,) in loader:
        for optimizer in optimizers:
            optimizer.zero_grad()
            (decoder(encoder(x)) - x).square().mean().backward()
            optimizer.step()
print("quality", test())
