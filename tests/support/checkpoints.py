"""Checkpoints of copies, written by the safetensors package, and the merge of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from hadar_cli.core.model import MergeRules
from hadar_cli.weights.merging import Contribution, Merged, merge

Tensors = Mapping[str, torch.Tensor]
W = "model/0/weight"
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


class Folder:
    """Checkpoints handed in for one merge, and the merge of them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.out = path / "out"
        self.base: Path | None = None
        self.contributions: list[Contribution] = []

    def save(self, name: str, content: Tensors, notes: Mapping[str, Any] | None = None) -> Path:
        metadata = None if notes is None else {"hadar": json.dumps(notes)}
        safetensors.torch.save_file(dict(content), self.path / name, metadata)
        return self.path / name

    def add(
        self,
        content: Tensors,
        steps: int = 10,
        batch_size: int = 4,
        notes: Mapping[str, Any] | None = None,
    ) -> Path:
        copy = len(self.contributions) + 1
        path = self.save(f"copy{copy}", content, notes)
        self.contributions.append(Contribution(copy, path, steps, batch_size))
        return path

    def merge(self, **rules: Any) -> Merged:
        return merge(self.contributions, self.base, self.out, MergeRules(**rules))

    def load(self) -> dict[str, torch.Tensor]:
        return safetensors.torch.load_file(self.out)

    def refusals(self, **rules: Any) -> dict[int, str]:
        return {copy: one.why for copy, one in self.merge(**rules).refused}


def noise(seed: int, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


def with_state(value: float, step: float) -> dict[str, torch.Tensor]:
    return {
        W: torch.tensor([value]),
        "optimizer/0/0/exp_avg": torch.tensor([value]),
        "optimizer/0/0/exp_avg_sq": torch.tensor([value**2]),
        "optimizer/0/0/step": torch.tensor(step),
    }
