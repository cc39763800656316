"""A generator learns to draw points on a ring: two models, two optimizers."""

import argparse
import math

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from hadar_cli import training  # hadar


def ring(count):
    rng = torch.Generator().manual_seed(0)
    angle = 2 * math.pi * torch.rand(count, generator=rng)
    points = torch.stack([angle.cos(), angle.sin()], 1)
    return TensorDataset(points + 0.05 * torch.randn(count, 2, generator=rng))


def mlp(inputs, outputs, width=32):
    return nn.Sequential(
        nn.Linear(inputs, width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Linear(width, outputs),
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--samples", type=int, default=4096)
    args = parser.parse_args()

    torch.manual_seed(0)
    loader = DataLoader(ring(args.samples), args.batch_size, shuffle=True)
    generator, discriminator = mlp(8, 2), mlp(2, 1)
    g_optimizer = torch.optim.Adam(generator.parameters(), 1e-3, betas=(0.5, 0.99))
    d_optimizer = torch.optim.Adam(discriminator.parameters(), 1e-3, betas=(0.5, 0.99))

    def off_ring():
        with torch.no_grad():
            points = generator(torch.randn(500, 8))
        return {"distance": (points.norm(dim=1) - 1).abs().mean().item()}

    t = training([generator, discriminator], [g_optimizer, d_optimizer], evaluate=off_ring)  # hadar
    for epoch in t.epochs(args.epochs):  # hadar
        for (real,) in t.loader(loader):  # hadar
            fake = generator(torch.randn(len(real), 8))
            d_optimizer.zero_grad()
            d_loss = F.softplus(-discriminator(real)).mean()
            d_loss = d_loss + F.softplus(discriminator(fake.detach())).mean()
            d_loss.backward()
            d_optimizer.step()

            g_optimizer.zero_grad()
            g_loss = F.softplus(-discriminator(fake)).mean()
            g_loss.backward()
            g_optimizer.step()
            t.log(g_loss)  # hadar
        print(f"epoch {epoch}: D {d_loss.item():.3f} G {g_loss.item():.3f} {off_ring()}")


if __name__ == "__main__":
    main()
