"""Mixed precision, and an exponential moving average of the weights that is what is measured."""

import argparse

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, TensorDataset

from hadar_cli import training  # hadar

parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()
torch.manual_seed(args.seed)


def samples(count, seed):
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 8, generator=rng)
    return TensorDataset(x, x[:, :1].sin() * x[:, 1:2])


model = nn.Sequential(nn.Linear(8, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 1))
ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.98))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
scaler = torch.amp.GradScaler("cpu", enabled=False)  # bfloat16 needs none
order = torch.Generator().manual_seed(args.seed)
loader = DataLoader(samples(2048, 1), batch_size=32, shuffle=True, generator=order)
held_out = samples(512, 2)


def test():
    with torch.no_grad():
        x, y = held_out.tensors
        return {"error": (ema(x) - y).square().mean().item()}


t = training(model, optimizer, scaler=scaler, state={"ema": ema}, evaluate=test)  # hadar
for epoch in t.epochs(4):  # hadar: for epoch in range(4):
    for x, y in t.loader(loader):  # hadar: for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = (model(x) - y).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        ema.update_parameters(model)
print("quality", test())
