"""RS: a Recoder-style autoencoder on ML-20M (paper), or one of 5,000 items on drawn tastes (tiny).

The paper preset reads ``ratings.csv`` (userId,movieId,rating,timestamp). A sample is a user: a row
of ratings from 0.5 to 5, 0 where there is none. The model sees a part of the row and fills in the
rest. The measure is the squared error on hidden ratings of users it has never seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, Dataset

from hadar_cli import training
from hadar_cli.workloads import CATALOG, options
from hadar_cli.workloads.datasets import find, refuse

SOURCE = "MovieLens 20M (ml-20m) from the GroupLens data sets page, University of Minnesota"
CENTRE = 3.5  # near the mean rating of every MovieLens set


class Users(Dataset[Tensor]):
    """Ratings by user, kept sparse: user u owns entries ``starts[u]`` to ``starts[u + 1]``."""

    def __init__(self, starts: Tensor, items: Tensor, ratings: Tensor, item_count: int) -> None:
        self.starts, self.items, self.ratings = starts, items, ratings
        self.item_count = item_count

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, u: int) -> Tensor:
        if not 0 <= u < len(self):
            raise IndexError(u)
        own = slice(int(self.starts[u]), int(self.starts[u + 1]))
        return torch.zeros(self.item_count).index_put((self.items[own],), self.ratings[own])

    def part(self, start: int, stop: int) -> Users:
        """The users from ``start`` to ``stop``, over the same items."""
        return Users(self.starts[start : stop + 1], self.items, self.ratings, self.item_count)


def read_ratings(data_dir: Path | None) -> tuple[Users, Users]:
    """All users; the last one in twenty are held out."""
    (path,) = find(data_dir, "ml-20m", ("ratings.csv",), SOURCE)
    try:
        table = np.loadtxt(path, delimiter=",", skiprows=1, usecols=(0, 1, 2), ndmin=2)
    except ValueError as error:
        refuse(f"{path}: not userId,movieId,rating,timestamp: {error}")
    if len(table) == 0:
        refuse(f"{path} holds no ratings")
    table = table[np.argsort(table[:, 0], kind="stable")]
    _, starts = np.unique(table[:, 0], return_index=True)
    names, items = np.unique(table[:, 1], return_inverse=True)
    users = Users(
        torch.from_numpy(np.append(starts, len(table))),
        torch.from_numpy(items),
        torch.from_numpy(table[:, 2]).float(),
        len(names),
    )
    if len(users) < 2:
        refuse(f"{path} needs at least two users, one of them to hold out")
    split = len(users) - max(1, len(users) // 20)
    return users.part(0, split), users.part(split, len(users))


def draw_tastes(train: int = 8000, held_out: int = 200) -> tuple[Users, Users]:
    """Users with ten tastes rate 120 of 5,000 items by how well the items' traits match."""
    rng = torch.Generator().manual_seed(13)
    items, rated, tastes, count = 5000, 120, 10, train + held_out
    traits = torch.randn(items, tastes, generator=rng) / tastes**0.5
    users = torch.randn(count, tastes, generator=rng)
    # Coprime strides through the items: no user rates one twice, and none is drawn one by one.
    offset = torch.randint(items, (count, 1), generator=rng)
    stride = 2 * torch.randint(items // 2, (count, 1), generator=rng) + 1
    stride += (stride % 5 == 0) * 2
    chosen = (offset + stride * torch.arange(rated)) % items
    match = torch.einsum("ut,urt->ur", users, traits[chosen])
    noise = 0.2 * torch.randn(count, rated, generator=rng)
    ratings = (CENTRE + match + noise).clamp(0.5, 5.0)
    starts = torch.arange(count + 1) * rated
    everyone = Users(starts, chosen.flatten(), ratings.flatten(), items)
    return everyone.part(0, train), everyone.part(train, count)


class Autoencoder(nn.Module):
    """A row of ratings to a few hidden units and back to a rating for every item."""

    def __init__(self, items: int, width: int, noise: float) -> None:
        super().__init__()
        self.encode = nn.Linear(items, width)
        self.decode = nn.Linear(width, items)
        nn.init.normal_(self.encode.weight, std=width**-1.0)
        nn.init.normal_(self.decode.weight, std=width**-1.0)
        nn.init.zeros_(self.decode.bias)
        self.noise = nn.Dropout(noise)  # hides ratings in training: the task at evaluation

    def forward(self, rows: Tensor) -> Tensor:
        centred = torch.where(rows > 0, rows - CENTRE, 0.0)
        ratings: Tensor = self.decode(torch.tanh(self.encode(self.noise(centred))))
        return ratings + CENTRE


def load(preset: str, data_dir: Path | None = None) -> tuple[Users, Users]:
    """The training set and the held-out set."""
    return draw_tastes() if preset == "tiny" else read_ratings(data_dir)


def build_model(preset: str, train: Users) -> Autoencoder:
    return Autoencoder(train.item_count, width=64 if preset == "tiny" else 200, noise=0.5)


def build_optimizer(model: nn.Module, preset: str, steps: int) -> tuple[AdamW, LambdaLR]:
    optimizer = AdamW(model.parameters(), lr=5e-4, weight_decay=1e-4)
    return optimizer, options.cosine(optimizer, steps)


def batch_loss(model: nn.Module, rows: Tensor) -> Tensor:
    rows = rows.to(options.DEVICE)
    with options.autocast():
        guess = model(rows)
    return F.mse_loss(guess[rows > 0], rows[rows > 0])


def evaluate(model: nn.Module, held_out: Users) -> dict[str, float]:
    total = count = 0.0
    for rows in DataLoader(held_out, batch_size=100):
        hidden = (rows > 0) & (torch.arange(rows.shape[1]) % 5 == 0)
        guess = model(rows.masked_fill(hidden, 0.0).to(options.DEVICE)).cpu()
        total += F.mse_loss(guess[hidden], rows[hidden], reduction="sum").item()
        count += int(hidden.sum())
    return {"mse": total / max(1.0, count)}


def main(argv: Sequence[str] | None = None) -> None:
    args = options.parse(CATALOG["recommender"], argv)
    options.seed()
    train, held_out = load(args.preset, args.data_dir)
    model = build_model(args.preset, train).to(options.DEVICE)
    steps = options.total_steps(args, len(train))
    optimizer, scheduler = build_optimizer(model, args.preset, steps)
    with training(
        model, optimizer, scheduler, evaluate=lambda: evaluate(model, held_out), epochs=args.epochs
    ) as t:
        for rows in t.loader(train, batch_size=args.batch_size):
            t.step(batch_loss(model, rows), clip_norm=1.0)


if __name__ == "__main__":
    main()
