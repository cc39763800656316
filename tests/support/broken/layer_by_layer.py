"""Layers that are trained one after another, each by a loop and an optimizer of its own."""

import torch

from hadar_cli import training

torch.manual_seed(0)
inputs = torch.randn(256, 8)
layers = [torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)]
optimizers = [torch.optim.Adam(layer.parameters(), 1e-3) for layer in layers]
t = training(layers, optimizers)
for layer, optimizer in zip(layers, optimizers, strict=True):
    for x in t.loader(inputs, batch_size=16):
        optimizer.zero_grad()
        (layer(x) - x).square().mean().backward()
        optimizer.step()
    inputs = layer(inputs).detach()
