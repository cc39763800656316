"""A language model of characters: tied embeddings, clipped gradients, one-cycle schedule."""

import argparse
import math

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader, Dataset

from hadar_cli import training  # hadar

WORDS = ("the", "a", "cat", "dog", "bird", "sees", "hears", "likes", "red", "old", "and", "house")


def write(words, seed):
    """Sentences in which a word hints at the next one."""
    rng = torch.Generator().manual_seed(seed)
    hops, text, at = torch.randint(1, 3, (words,), generator=rng).tolist(), [], 0
    for hop in hops:
        at = (at * 5 + hop) % len(WORDS)
        text.append(WORDS[at])
    return " ".join(text)


class Chunks(Dataset):
    def __init__(self, text, length):
        letters = sorted(set(" ".join(WORDS)))
        codes = torch.tensor([letters.index(letter) for letter in text])
        self.letters, self.chunks = len(letters), codes.unfold(0, length + 1, length)

    def __len__(self):
        return len(self.chunks)

    def __getitem__(self, i):
        return self.chunks[i][:-1], self.chunks[i][1:]


class Model(nn.Module):
    def __init__(self, letters, width=48):
        super().__init__()
        self.embed = nn.Embedding(letters, width)
        self.rnn = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, letters)
        self.head.weight = self.embed.weight

    def forward(self, x):
        return self.head(self.rnn(self.embed(x))[0])


def loss_of(model, x, y):
    return F.cross_entropy(model(x).flatten(0, 1), y.flatten())


@torch.no_grad()
def measure(model, loader):
    model.eval()
    loss = sum(loss_of(model, x, y).item() for x, y in loader) / len(loader)
    model.train()
    return {"perplexity": math.exp(loss)}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--words", type=int, default=20000)
    parser.add_argument("--lr", type=float, default=0.01)
    args = parser.parse_args()

    torch.manual_seed(0)
    data, held_out = Chunks(write(args.words, 1), 32), Chunks(write(1000, 2), 32)
    train_loader = DataLoader(data, args.batch_size, shuffle=True, drop_last=True)
    valid = DataLoader(held_out, 64)
    model = Model(data.letters)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    steps = args.epochs * len(train_loader)
    scheduler = OneCycleLR(optimizer, max_lr=args.lr, total_steps=steps)
    t = training(model, optimizer, scheduler, evaluate=lambda: measure(model, valid))  # hadar
    for epoch in t.epochs(args.epochs):  # hadar
        for x, y in t.loader(train_loader):  # hadar
            loss = loss_of(model, x, y)
            t.log(loss)  # hadar
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
        print(f"epoch {epoch}: loss {loss.item():.3f}, {measure(model, valid)}")


if __name__ == "__main__":
    main()
