"""Reads CIFAR-10 as it is published, without torchvision.

Either the pickled Python batches (``cifar-10-batches-py/data_batch_1`` …) or the binary ones
(``cifar-10-batches-bin/data_batch_1.bin`` …).
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from hadar_cli.workloads.datasets import find, refuse

SOURCE = "CIFAR-10 (python or binary version) from Alex Krizhevsky's CIFAR page, Univ. of Toronto"
PARTS = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")
RECORD = 1 + 3 * 32 * 32  # binary version: a label, then the red, green and blue planes


class ArrayUnpickler(pickle.Unpickler):
    """Builds numpy arrays and plain values only: a pickle off the network may ask for anything."""

    admitted = frozenset(
        {
            ("_codecs", "encode"),  # how old protocols spell bytes
            ("numpy", "dtype"),
            ("numpy", "ndarray"),
            ("numpy.core.multiarray", "_reconstruct"),
            ("numpy._core.multiarray", "_reconstruct"),
            ("numpy._core.numeric", "_frombuffer"),
        }
    )

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in self.admitted:
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"{module}.{name} has no place in it")


def read_pickled(path: Path) -> tuple[Tensor, Tensor]:
    with path.open("rb") as file:
        try:
            batch = ArrayUnpickler(file, encoding="bytes").load()
            images = np.asarray(batch[b"data"], np.uint8).reshape(-1, RECORD - 1)
            return torch.from_numpy(images.copy()), torch.tensor(batch[b"labels"])
        except (pickle.UnpicklingError, LookupError, TypeError, ValueError, EOFError) as error:
            refuse(f"{path} is not a CIFAR-10 python batch: {error}")


def read_binary(path: Path) -> tuple[Tensor, Tensor]:
    raw = torch.from_numpy(np.fromfile(path, np.uint8))
    if len(raw) % RECORD:
        refuse(f"{path} is not a CIFAR-10 binary batch: no multiple of {RECORD} bytes")
    records = raw.view(-1, RECORD)
    return records[:, 1:], records[:, 0].long()


def read_cifar10(data_dir: Path | None) -> tuple[TensorDataset, TensorDataset]:
    """The five training batches and the test batch, scaled by the training images' statistics."""
    binary = "cifar-10-batches-bin"
    if data_dir and ((data_dir / binary).exists() or (data_dir / f"{PARTS[0]}.bin").exists()):
        names = [f"{part}.bin" for part in PARTS]
        batches = [read_binary(path) for path in find(data_dir, binary, names, SOURCE)]
    else:
        paths = find(data_dir, "cifar-10-batches-py", PARTS, SOURCE)
        batches = [read_pickled(path) for path in paths]
    train = torch.cat([images for images, _ in batches[:-1]]).view(-1, 3, 32, 32).float()
    held_out = batches[-1][0].view(-1, 3, 32, 32).float()
    mean, deviation = (f((0, 2, 3), keepdim=True) for f in (train.mean, train.std))
    return (
        TensorDataset((train - mean) / deviation, torch.cat([y for _, y in batches[:-1]])),
        TensorDataset((held_out - mean) / deviation, batches[-1][1]),
    )
