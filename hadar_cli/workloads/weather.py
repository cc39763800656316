"""MM: weather prediction by an encoder-decoder Transformer.

On station records of a Mesonet with WRF-HRRR forecasts (paper; columns in ``mesonet.py``), or on
sixteen drawn stations (tiny). From a day of hours it predicts every observed variable for the
next six. The measure is the squared error in units of each variable's variance.
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
from torch.utils.data import DataLoader

from hadar_cli import training
from hadar_cli.workloads import CATALOG, options
from hadar_cli.workloads.mesonet import AHEAD, PAST, Array, Windows, read_mesonet, split
from hadar_cli.workloads.transformer import EncoderDecoder


def draw_weather(stations: int = 16, hours: int = 477) -> tuple[Windows, Windows]:
    """Fronts of several periods move pressure, then wind; temperature also follows the sun."""
    rng = np.random.default_rng(14)
    t = np.arange(hours)

    def draw(low: float, high: float) -> Array:
        return rng.uniform(low, high, (stations, 1))

    def noise(size: float) -> Array:
        return rng.normal(0.0, size, (stations, hours))

    waves = [(draw(20, 120), draw(0, 120)) for _ in range(3)]
    pressure = np.sum([np.sin(2 * np.pi * (t + phase) / period) for period, phase in waves], axis=0)
    change = np.gradient(pressure, axis=1)
    sun = draw(0.5, 2.0) * np.sin(2 * np.pi * (t + draw(0, 24)) / 24)
    temperature = sun - 0.7 * pressure
    humidity = np.tanh(pressure - sun)
    wind = np.abs(8 * change) + 0.3 * np.maximum(sun, 0)
    forecast = temperature + draw(-1, 1) + noise(0.5)
    seen = [part + noise(0.15) for part in (temperature, humidity, pressure, wind)]
    table = np.stack([*seen, forecast], axis=-1).reshape(stations * hours, -1)
    names = ("temperature", "humidity", "pressure", "wind", "hrrr_temperature")
    station = [f"{i:02}" for i in range(stations) for _ in range(hours)]
    return split(station, np.tile(t * 3600.0, stations), table, names)


class Forecaster(nn.Module):
    """The encoder reads the past; the decoder looks at it from each hour ahead."""

    def __init__(self, inputs: int, outputs: int, width: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.past, self.known = nn.Linear(inputs, width), nn.Linear(inputs, width)
        self.position = nn.Parameter(0.1 * torch.randn(PAST + AHEAD, width))
        self.core = EncoderDecoder(width, 4, layers, dropout)
        self.head = nn.Linear(width, outputs)

    def forward(self, past: Tensor, known: Tensor) -> Tensor:
        x = self.past(past) + self.position[:PAST]
        y = self.known(known) + self.position[PAST:]
        forecast: Tensor = self.head(self.core(x, y, causal=False))
        return forecast


def load(preset: str, data_dir: Path | None = None) -> tuple[Windows, Windows]:
    """The training set and the held-out set."""
    return draw_weather() if preset == "tiny" else read_mesonet(data_dir)


def build_model(preset: str, train: Windows) -> Forecaster:
    columns, observed = len(train.observed), int(train.observed.sum())
    if preset == "tiny":
        return Forecaster(columns, observed, width=64, layers=1, dropout=0.0)
    return Forecaster(columns, observed, width=256, layers=3, dropout=0.1)


def build_optimizer(model: nn.Module, preset: str, steps: int) -> tuple[AdamW, LambdaLR]:
    optimizer = AdamW(model.parameters(), lr=1e-3 if preset == "tiny" else 3e-4)
    return optimizer, options.cosine(optimizer, steps, warmup=0.05)


def batch_loss(model: nn.Module, batch: Sequence[Tensor]) -> Tensor:
    past, known, truth = (part.to(options.DEVICE) for part in batch)
    with options.autocast():
        forecast = model(past, known)
    return F.mse_loss(forecast.float(), truth)


def evaluate(model: nn.Module, held_out: Windows) -> dict[str, float]:
    total = 0.0
    for batch in DataLoader(held_out, batch_size=100):
        total += batch_loss(model, batch).item() * len(batch[0])
    return {"mse": total / len(held_out)}


def main(argv: Sequence[str] | None = None) -> None:
    args = options.parse(CATALOG["weather"], argv)
    options.seed()
    train, held_out = load(args.preset, args.data_dir)
    model = build_model(args.preset, train).to(options.DEVICE)
    steps = options.total_steps(args, len(train))
    optimizer, scheduler = build_optimizer(model, args.preset, steps)
    with training(
        model, optimizer, scheduler, evaluate=lambda: evaluate(model, held_out), epochs=args.epochs
    ) as t:
        for batch in t.loader(train, batch_size=args.batch_size):
            t.step(batch_loss(model, batch), clip_norm=1.0)


if __name__ == "__main__":
    main()
