"""A small transformer in nanoGPT's manner: a count of iterations, a rate set by hand, clipping."""

import argparse
import math

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, RandomSampler

from hadar_cli import training  # hadar

parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()
torch.manual_seed(args.seed)
STEPS, BATCH, BLOCK, VOCABULARY = 200, 16, 24, 16


class Windows(Dataset):
    def __init__(self, length, seed):
        rng = torch.Generator().manual_seed(seed)
        steps = torch.randint(1, 4, (length,), generator=rng)
        self.text = steps.cumsum(0) % VOCABULARY

    def __len__(self):
        return len(self.text) - BLOCK - 1

    def __getitem__(self, i):
        return self.text[i : i + BLOCK], self.text[i + 1 : i + BLOCK + 1]


class Model(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, width)
        self.places = nn.Embedding(BLOCK, width)
        self.block = nn.TransformerEncoderLayer(width, 2, 64, 0.1, batch_first=True)
        self.head = nn.Linear(width, VOCABULARY)
        mask = nn.Transformer.generate_square_subsequent_mask(BLOCK)
        self.register_buffer("mask", mask)  # with -inf, as is usual

    def forward(self, x):
        h = self.words(x) + self.places(torch.arange(x.shape[1]))
        return self.head(self.block(h, self.mask))


def rate(i):
    return 3e-3 * min(1.0, (i + 1) / 20) * (0.55 + 0.45 * math.cos(math.pi * i / STEPS))


model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95))
train, held_out = Windows(4000, 1), Windows(600, 2)
order = torch.Generator().manual_seed(args.seed)
draws = RandomSampler(train, True, STEPS * BATCH, generator=order)
loader = DataLoader(train, BATCH, sampler=draws)


def test():
    model.eval()
    with torch.no_grad():
        x, y = (torch.stack(part) for part in zip(*(held_out[i] for i in range(0, 500, 5))))
        loss = nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
    model.train()
    return {"loss": loss.item()}


with training(model, optimizer, evaluate=test) as t:  # hadar: if True:
    for i, (x, y) in enumerate(t.loader(loader)):  # hadar: for i, (x, y) in enumerate(loader):
        i = t.position  # hadar
        for group in optimizer.param_groups:
            group["lr"] = rate(i)
        loss = nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
print("quality", test())
