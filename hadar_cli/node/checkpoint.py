"""A training script's state as one safetensors file, and back.

Tensors are named ``model/<i>/<entry>`` and ``optimizer/<i>/<parameter>/<state>``; everything
that is not a tensor travels as JSON in the file's metadata under ``hadar``. Weights that share
memory are stored once, the other names noted as ``tied``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

State = Mapping[str, Any]


def save(
    path: Path,
    models: Sequence[torch.nn.Module],
    optimizers: Sequence[torch.optim.Optimizer],
    schedulers: Sequence[Any],
) -> None:
    """Writes under a temporary name, then renames, so that a cut leaves no half file."""
    tensors: dict[str, torch.Tensor] = {}
    tied: dict[str, str] = {}
    seen: dict[tuple[int, tuple[int, ...], torch.dtype], str] = {}
    for i, model in enumerate(models):
        for entry, tensor in model.state_dict().items():
            name = f"model/{i}/{entry}"
            key = (tensor.data_ptr(), tuple(tensor.shape), tensor.dtype)
            if tensor.numel() and key in seen:
                tied[name] = seen[key]
                continue
            seen[key] = name
            tensors[name] = tensor
    for i, optimizer in enumerate(optimizers):
        for parameter, state in optimizer.state_dict()["state"].items():
            for key_name, value in state.items():
                if value is not None:
                    tensors[f"optimizer/{i}/{parameter}/{key_name}"] = torch.as_tensor(value)
    notes = {
        "format": 1,
        "tied": tied,
        "buffers": _buffer_names(models),
        "optimizer_groups": [_plain(o.state_dict()["param_groups"]) for o in optimizers],
        "schedulers": [_plain(s.state_dict()) for s in schedulers],
    }
    part = path.with_name(path.name + ".part")
    stored = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
    save_file(stored, part, metadata={"hadar": json.dumps(notes)})
    part.replace(path)


def load(
    path: Path,
    models: Sequence[torch.nn.Module],
    optimizers: Sequence[torch.optim.Optimizer],
    schedulers: Sequence[Any],
) -> None:
    with safe_open(path, framework="pt") as file:
        notes = json.loads((file.metadata() or {}).get("hadar", "{}"))
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    for alias, name in notes.get("tied", {}).items():
        tensors[alias] = tensors[name]
    for i, model in enumerate(models):
        prefix = f"model/{i}/"
        model.load_state_dict(
            {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
        )
    for i, optimizer in enumerate(optimizers):
        groups = notes.get("optimizer_groups", [])
        _load_optimizer(optimizer, tensors, f"optimizer/{i}/", groups[i] if groups else [])
    for scheduler, state in zip(schedulers, notes.get("schedulers", []), strict=False):
        scheduler.load_state_dict({**scheduler.state_dict(), **state})


def _load_optimizer(
    optimizer: torch.optim.Optimizer,
    tensors: Mapping[str, torch.Tensor],
    prefix: str,
    saved_groups: list[dict[str, Any]],
) -> None:
    state: dict[int, dict[str, torch.Tensor]] = {}
    for name, tensor in tensors.items():
        if name.startswith(prefix):
            parameter, key = name.removeprefix(prefix).split("/", 1)
            state.setdefault(int(parameter), {})[key] = tensor
    groups = optimizer.state_dict()["param_groups"]
    for group, saved in zip(groups, saved_groups, strict=False):
        group.update(saved)
    optimizer.load_state_dict({"state": state, "param_groups": groups})


def _buffer_names(models: Sequence[torch.nn.Module]) -> list[str]:
    return [f"model/{i}/{name}" for i, m in enumerate(models) for name, _ in m.named_buffers()]


def _plain(value: Any) -> Any:
    """The part of a state that JSON can hold; the script rebuilds functions and objects itself."""
    if isinstance(value, Mapping):
        items = ((str(k), _plain(v)) for k, v in value.items())
        return {k: v for k, v in items if v is not _UNSTORABLE}
    if isinstance(value, (list, tuple)):
        plain = [_plain(v) for v in value]
        return _UNSTORABLE if any(v is _UNSTORABLE for v in plain) else plain
    if isinstance(value, torch.Tensor):
        return value.item() if value.numel() == 1 else _UNSTORABLE
    return value if isinstance(value, (str, int, float, bool, type(None))) else _UNSTORABLE


_UNSTORABLE = object()
