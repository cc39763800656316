"""Tell ten shapes apart with a small network, at the rate, width and dropout it is given."""

import argparse
import os

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from hadar_cli import training


def draw(count, seed):
    """Ten fixed shapes of 16 × 16, shifted and under noise."""
    shapes = torch.rand(10, 16, 16, generator=torch.Generator().manual_seed(0)).gt(0.6).float()
    rng = torch.Generator().manual_seed(seed)
    labels = torch.randint(10, (count,), generator=rng)
    down, right = torch.randint(-2, 3, (2, count, 1), generator=rng)
    rows, columns = (torch.arange(16) - down) % 16, (torch.arange(16) - right) % 16
    images = shapes[labels[:, None, None], rows[:, :, None], columns[:, None, :]]
    noise = torch.randn(count, 16, 16, generator=rng)
    return TensorDataset((images + noise).flatten(1), labels)


@torch.no_grad()
def measure(model, held_out):
    x, y = held_out.tensors
    model.eval()
    output = model(x)
    model.train()
    accuracy = (output.argmax(1) == y).float().mean().item()
    return {"loss": F.cross_entropy(output, y).item(), "accuracy": accuracy}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--dropout", type=float, default=0.2)
    parser.add_argument("--epochs", type=int, default=5)
    args = parser.parse_args()

    torch.manual_seed(int(os.environ.get("HADAR_JOB_SEED", 0)))  # the mix's seed
    layers = nn.Linear(256, args.width), nn.ReLU(), nn.Dropout(args.dropout)
    model = nn.Sequential(*layers, nn.Linear(args.width, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    data, held_out = draw(4096, 1), draw(4000, 2)
    with training(
        model, optimizer, evaluate=lambda: measure(model, held_out), epochs=args.epochs
    ) as t:
        for x, y in t.loader(data, batch_size=64):
            t.step(F.cross_entropy(model(x), y))
    print(measure(model, held_out))


if __name__ == "__main__":
    main()
