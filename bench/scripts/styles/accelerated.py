"""A loop with accelerate and no Trainer."""

import argparse

import torch
from accelerate import Accelerator, DataLoaderConfiguration
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from transformers import get_linear_schedule_with_warmup

from hadar_cli import training  # hadar

parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()
set_seed(args.seed)


def samples(count, seed):
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 16, generator=rng)
    teacher = torch.randn(16, 4, generator=torch.Generator().manual_seed(99))
    return TensorDataset(x, (x @ teacher).argmax(1))


accelerator = Accelerator(
    cpu=True,
    gradient_accumulation_steps=2,
    dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True),
)
model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
scheduler = get_linear_schedule_with_warmup(optimizer, 10, 4 * 64)
loader = DataLoader(samples(2048, 1), batch_size=16, shuffle=True)
model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
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
        with accelerator.accumulate(model):
            loss = nn.functional.cross_entropy(model(x), y)
            accelerator.backward(loss)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
print("quality", test())
