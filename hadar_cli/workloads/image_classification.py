"""IC: ResNet-18 on CIFAR-10 (paper), or a ResNet-18 of width 8 on shifted patterns (tiny).

The paper preset reads the python or the binary version of the data set (see ``cifar10.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, TensorDataset

from hadar_cli import training
from hadar_cli.workloads import CATALOG, options
from hadar_cli.workloads.cifar10 import read_cifar10


def pick(images: Tensor, which: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """For each n, the given rows and columns of image ``which[n]``."""
    picked = images[which[:, None, None], :, rows[:, :, None], columns[:, None, :]]
    return picked.permute(0, 3, 1, 2)


def draw_patterns(train: int = 2400, held_out: int = 300) -> tuple[TensorDataset, TensorDataset]:
    """Ten smooth patterns, each shown at a random place, with random contrast, under noise."""
    rng = torch.Generator().manual_seed(10)
    count = train + held_out
    coarse = torch.randn(10, 3, 8, 8, generator=rng)
    patterns = F.interpolate(coarse, size=32, mode="bicubic")
    labels = torch.randint(10, (count,), generator=rng)
    rows = (torch.arange(32) + torch.randint(32, (count, 1), generator=rng)) % 32
    columns = (torch.arange(32) + torch.randint(32, (count, 1), generator=rng)) % 32
    contrast = 0.5 + torch.rand(count, 1, 1, 1, generator=rng)
    noise = 2.0 * torch.randn(count, 3, 32, 32, generator=rng)
    images = contrast * pick(patterns, labels, rows, columns) + noise
    return (
        TensorDataset(images[:train], labels[:train]),
        TensorDataset(images[train:], labels[train:]),
    )


class Block(nn.Module):
    """Two 3×3 convolutions around a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.shortcut.append(nn.Conv2d(inputs, outputs, 1, stride, bias=False))
            self.shortcut.append(nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


class ResNet18(nn.Module):
    """The CIFAR form: a 3×3 stem and no first pooling, four stages of two blocks."""

    def __init__(self, width: int, classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()
        )
        sizes = [width, width, 2 * width, 4 * width, 8 * width]
        self.stages = nn.Sequential()
        for i, (inputs, outputs) in enumerate(pairwise(sizes)):
            self.stages.append(Block(inputs, outputs, stride=2 if i else 1))
            self.stages.append(Block(outputs, outputs, stride=1))
        self.head = nn.Linear(8 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = self.stages(self.stem(x))
        logits: Tensor = self.head(features.mean((2, 3)))
        return logits


def augment(x: Tensor) -> Tensor:
    """Shift each image by up to four pixels and mirror half of them."""
    rows = torch.arange(32) + torch.randint(9, (len(x), 1))
    columns = torch.arange(32) + torch.randint(9, (len(x), 1))
    columns = torch.where(torch.rand(len(x), 1) < 0.5, columns, columns.flip(1))
    return pick(F.pad(x, (4, 4, 4, 4)), torch.arange(len(x)), rows, columns)


def load(preset: str, data_dir: Path | None = None) -> tuple[TensorDataset, TensorDataset]:
    """The training set and the held-out set."""
    return draw_patterns() if preset == "tiny" else read_cifar10(data_dir)


def build_model(preset: str, train: TensorDataset) -> ResNet18:
    return ResNet18(width=8 if preset == "tiny" else 64)


def build_optimizer(model: nn.Module, preset: str, steps: int) -> tuple[SGD, LambdaLR]:
    rate = 0.02 if preset == "tiny" else 0.1
    optimizer = SGD(model.parameters(), lr=rate, momentum=0.9, weight_decay=5e-4, nesterov=True)
    return optimizer, options.cosine(optimizer, steps)


def batch_loss(model: nn.Module, batch: Sequence[Tensor]) -> Tensor:
    x, y = (part.to(options.DEVICE) for part in batch)
    with options.autocast():
        return F.cross_entropy(model(x), y)


def evaluate(model: nn.Module, held_out: TensorDataset) -> dict[str, float]:
    right = 0
    for x, y in DataLoader(held_out, batch_size=200):
        right += int((model(x.to(options.DEVICE)).argmax(1).cpu() == y).sum())
    return {"accuracy": right / len(held_out)}


def main(argv: Sequence[str] | None = None) -> None:
    args = options.parse(CATALOG["image_classification"], argv)
    options.seed()
    train, held_out = load(args.preset, args.data_dir)
    model = build_model(args.preset, train).to(options.DEVICE)
    steps = options.total_steps(args, len(train))
    optimizer, scheduler = build_optimizer(model, args.preset, steps)
    with training(
        model, optimizer, scheduler, evaluate=lambda: evaluate(model, held_out), epochs=args.epochs
    ) as t:
        for x, y in t.loader(train, batch_size=args.batch_size):
            t.step(batch_loss(model, (augment(x) if args.preset == "paper" else x, y)))


if __name__ == "__main__":
    main()
