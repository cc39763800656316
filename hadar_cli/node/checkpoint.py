"""A training script's state as one safetensors file, and back.

Tensors are named ``model/<i>/<entry>``, ``optimizer/<i>/<parameter>/<state>`` and
``state/<name>/<entry>``; everything that is not a tensor travels as JSON in the file's metadata
under ``hadar``. Weights that share memory are stored once, the other names noted as ``tied``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Number
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

Tensors = dict[str, torch.Tensor]
_COMPILED = "_orig_mod."  # what torch.compile puts into the names of what it wraps


@dataclass(frozen=True, slots=True)
class Parts:
    """All of a script that a checkpoint holds; ``extras`` have a state_dict and its counterpart."""

    models: Sequence[torch.nn.Module]
    optimizers: Sequence[torch.optim.Optimizer]
    schedulers: Sequence[Any] = ()
    extras: Mapping[str, Any] = field(default_factory=dict)


def save(
    path: Path, parts: Parts, notes: Mapping[str, Any] | None = None, base: Path | None = None
) -> None:
    """Writes under a temporary name, then renames, so that a cut leaves no half file.

    With a ``base``, what that holds in float32 too is stored as an update of it, in bfloat16:
    half the bytes, and no more lost than the update's ninth significant bit. A base that has been
    cleared away meanwhile, as by a resumed head, is done without.
    """
    tensors: Tensors = {}
    tied, entries = _collect_models(parts.models, tensors)
    scalars = [_collect_optimizer(o, f"optimizer/{i}", tensors) for i, o in _counted(parts)]
    content = {
        "format": 1,
        "tied": tied,
        "entries": entries,
        "buffers": _buffer_names(parts.models),
        "optimizer_groups": [_plain(o.state_dict()["param_groups"]) for o in parts.optimizers],
        "optimizer_scalars": scalars,
        "schedulers": [_plain(s.state_dict()) for s in parts.schedulers],
        "state": {
            name: _take_apart(extra.state_dict(), f"state/{name}", tensors)
            for name, extra in parts.extras.items()
        },
        **(notes or {}),
    }
    part = path.with_name(path.name + ".part")
    stored = {name: _own_memory(tensor) for name, tensor in tensors.items()}
    metadata = {"hadar": json.dumps(content)}
    if base and base.is_file():
        stored |= _updates(stored, base)
        metadata["hadar.update_of"] = base.name
    save_file(stored, part, metadata)
    part.replace(path)


def load(path: Path, parts: Parts) -> dict[str, Any]:
    """Puts a checkpoint's content into the parts; returns its notes."""
    with safe_open(path, framework="pt") as file:
        notes: dict[str, Any] = json.loads((file.metadata() or {}).get("hadar", "{}"))
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    for alias, name in notes.get("tied", {}).items():
        tensors[alias] = tensors[name]
    for i, model in enumerate(parts.models):
        _load_model(model, f"model/{i}/", tensors, notes.get("entries", {}))
    groups, scalars = notes.get("optimizer_groups", []), notes.get("optimizer_scalars", [])
    for i, optimizer in _counted(parts):
        _load_optimizer(
            optimizer,
            tensors,
            f"optimizer/{i}/",
            groups[i] if i < len(groups) else [],
            scalars[i] if i < len(scalars) else [],
        )
    for scheduler, state in zip(parts.schedulers, notes.get("schedulers", []), strict=False):
        scheduler.load_state_dict({**scheduler.state_dict(), **state})
    for name, state in notes.get("state", {}).items():
        if name in parts.extras:
            parts.extras[name].load_state_dict(_put_together(state, tensors))
    return notes


def _counted(parts: Parts) -> list[tuple[int, torch.optim.Optimizer]]:
    return list(enumerate(parts.optimizers))


# -- models ----------------------------------------------------------------------------------


def _collect_models(
    models: Sequence[torch.nn.Module], tensors: Tensors
) -> tuple[dict[str, str], dict[str, Any]]:
    """Adds the models' tensors; returns which names are tied to which, and what is no tensor."""
    tied: dict[str, str] = {}
    entries: dict[str, Any] = {}
    seen: dict[tuple[int, tuple[int, ...], torch.dtype], str] = {}
    for i, model in enumerate(models):
        for entry, value in model.state_dict().items():
            name = f"model/{i}/{entry.replace(_COMPILED, '')}"
            if not isinstance(value, torch.Tensor):
                entries[name] = _plain(value)
                continue
            key = (value.data_ptr(), tuple(value.shape), value.dtype)
            if value.numel() and key in seen:
                tied[name] = seen[key]
                continue
            seen[key] = name
            tensors[name] = value
    return tied, {name: value for name, value in entries.items() if value is not _UNSTORABLE}


def _load_model(
    model: torch.nn.Module, prefix: str, tensors: Tensors, entries: Mapping[str, Any]
) -> None:
    held = {n: t for n, t in {**tensors, **entries}.items() if n.startswith(prefix)}
    named = {prefix + entry.replace(_COMPILED, ""): entry for entry in model.state_dict()}
    model.load_state_dict({named.get(n, n.removeprefix(prefix)): t for n, t in held.items()})


def _buffer_names(models: Sequence[torch.nn.Module]) -> list[str]:
    return [
        f"model/{i}/{name.replace(_COMPILED, '')}"
        for i, model in enumerate(models)
        for name, _ in model.named_buffers()
    ]


def _own_memory(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor as safetensors takes it: on the CPU, and no view into a larger one."""
    stored = tensor.detach().cpu().contiguous()
    return stored.clone() if stored.untyped_storage().nbytes() != stored.nbytes else stored


def _updates(tensors: Tensors, base: Path) -> Tensors:
    """What has become of the base's float32 tensors, as bfloat16 differences."""
    updates: Tensors = {}
    with safe_open(base, framework="pt") as file:
        for name in tensors.keys() & set(file.keys()):
            mine, theirs = tensors[name], file.get_tensor(name)
            if mine.dtype == theirs.dtype == torch.float32 and mine.shape == theirs.shape:
                updates[name] = (mine - theirs).to(torch.bfloat16)
    return updates


# -- optimizers ------------------------------------------------------------------------------


def _collect_optimizer(
    optimizer: torch.optim.Optimizer, prefix: str, tensors: Tensors
) -> list[str]:
    """Adds the optimizer's state; returns which of it are plain numbers."""
    scalars: set[str] = set()
    for parameter, state in optimizer.state_dict()["state"].items():
        for key, value in state.items():
            if value is None:
                continue
            if not isinstance(value, (torch.Tensor, Number)):
                kind = type(optimizer).__name__
                raise TypeError(f"{kind} keeps {key!r} as a {type(value).__name__}: no merge of it")
            if not isinstance(value, torch.Tensor):
                scalars.add(key)
            tensors[f"{prefix}/{parameter}/{key}"] = torch.as_tensor(value)
    return sorted(scalars)


def _load_optimizer(
    optimizer: torch.optim.Optimizer,
    tensors: Mapping[str, torch.Tensor],
    prefix: str,
    saved_groups: list[dict[str, Any]],
    scalars: Sequence[str],
) -> None:
    state: dict[int, dict[str, Any]] = {}
    for name, tensor in tensors.items():
        if name.startswith(prefix):
            parameter, key = name.removeprefix(prefix).split("/", 1)
            value = tensor.item() if key in scalars else tensor
            state.setdefault(int(parameter), {})[key] = value
    groups = optimizer.state_dict()["param_groups"]
    for group, saved in zip(groups, saved_groups, strict=False):
        group.update(saved)
    optimizer.load_state_dict({"state": state, "param_groups": groups})


# -- whatever else the script wants kept -----------------------------------------------------


def _take_apart(value: Any, name: str, tensors: Tensors) -> Any:
    """A state as JSON, its tensors put aside under their way in it."""
    if isinstance(value, torch.Tensor):
        tensors[name] = value
        return {"$tensor": name}
    if isinstance(value, Mapping):
        return {"$items": [[k, _take_apart(v, f"{name}/{k}", tensors)] for k, v in value.items()]}
    if isinstance(value, (list, tuple)):
        return [_take_apart(v, f"{name}/{i}", tensors) for i, v in enumerate(value)]
    if isinstance(value, (str, int, float, bool, type(None))):
        return value
    raise TypeError(
        f"{name} is a {type(value).__name__}; a checkpoint holds tensors and plain values"
    )


def _put_together(value: Any, tensors: Tensors) -> Any:
    if isinstance(value, list):
        return [_put_together(v, tensors) for v in value]
    if isinstance(value, dict):
        if "$tensor" in value:
            return tensors[value["$tensor"]]
        return {k: _put_together(v, tensors) for k, v in value["$items"]}
    return value


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
