"""What the five scripts share: their arguments, device, seed and learning-rate schedule."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from hadar_cli.node import contract
from hadar_cli.workloads import PRESETS, Workload

_GPU = "mps" if torch.backends.mps.is_available() else "cpu"
DEVICE = torch.device("cuda" if torch.cuda.is_available() else _GPU)


def parse(workload: Workload, argv: Sequence[str] | None = None) -> argparse.Namespace:
    """``preset``, ``batch_size``, ``epochs`` and ``data_dir``, with the catalog's defaults."""
    parser = argparse.ArgumentParser(prog=workload.module, description=workload.title)
    parser.add_argument("--preset", choices=PRESETS, default="tiny")
    parser.add_argument("--batch-size", type=int, help="samples in a mini-batch")
    parser.add_argument("--epochs", type=int, help="how long to train when run by hand")
    parser.add_argument("--data-dir", type=Path, help="the data set's files, for the paper preset")
    args = parser.parse_args(argv)
    args.batch_size = args.batch_size or workload.batch_size[args.preset]
    args.epochs = args.epochs or workload.epochs[args.preset]
    return args


def seed() -> None:
    """Every copy of a job starts from the same weights."""
    torch.manual_seed(contract.job_seed())


def total_steps(args: argparse.Namespace, samples: int) -> int:
    """How long the learning-rate schedule is: the job's target, or by hand φ × epochs."""
    by_hand = math.ceil(samples / args.batch_size) * args.epochs
    return contract.total_steps() or by_hand


def cosine(
    optimizer: Optimizer, steps: int, *, warmup: float = 0.0, floor: float = 0.02
) -> LambdaLR:
    """Rise over the share ``warmup`` of the steps, then decay to ``floor`` of the base rate.

    A closed form, so that a copy can enter it at any step of the job.
    """

    def factor(step: int) -> float:
        rise = min(1.0, (step + 1) / max(1.0, warmup * steps))
        done = min(1.0, step / max(1, steps))
        return rise * (floor + (1 - floor) * (1 + math.cos(math.pi * done)) / 2)

    return LambdaLR(optimizer, factor)


def autocast() -> torch.autocast:
    """bfloat16 on GPUs that compute in it (Ampere and later); full precision elsewhere."""
    fit = DEVICE.type == "cuda" and torch.cuda.get_device_capability() >= (8, 0)
    return torch.autocast(DEVICE.type, dtype=torch.bfloat16, enabled=fit)
