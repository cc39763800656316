"""A training script's state as one safetensors file, and back.

Tensors are named ``model/<i>/<entry>``, ``optimizer/<i>/<parameter>/<state>`` and
``state/<name>/<entry>``; everything that is not a tensor travels as JSON in the file's metadata
under ``hadar``. Weights that share memory are stored once, the other names noted as ``tied``.
Entries that did not train are noted as ``frozen``, with their hash, and mostly left out. Complex
numbers are stored as pairs of real ones.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Number
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from hadar_cli.node.training.checkpoints.frozen import Frozen
from hadar_cli.node.training.checkpoints.pretrained import describe
from hadar_cli.node.training.checkpoints.rounding import Rounding

Tensors = dict[str, torch.Tensor]
_COMPILED = "_orig_mod."  # what torch.compile puts into the names of what it wraps


@dataclass(frozen=True, slots=True)
class Parts:
    """All of a script that a checkpoint holds; ``extras`` have a state_dict and its counterpart."""

    models: Sequence[torch.nn.Module]
    optimizers: Sequence[torch.optim.Optimizer]
    schedulers: Sequence[Any] = ()
    extras: Mapping[str, Any] = field(default_factory=dict)
    frozen: Frozen = field(init=False)
    rounding: Rounding = field(init=False, default_factory=Rounding)
    told: list[dict[str, Any]] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        object.__setattr__(self, "frozen", Frozen(self.optimizers))

    def pretrained(self) -> dict[str, Any]:
        """What makes the model one for ``from_pretrained``; asked once."""
        if not self.told:
            self.told.append(describe(self.models))
        return self.told[0]


def begin(parts: Parts) -> None:
    """Takes the models as the script built them: what they keep of that is not handed in."""
    parts.frozen.look(_entries(parts.models))


def check(parts: Parts) -> None:
    """Raises TypeError if an optimizer's state cannot be saved, which shows in its first step."""
    for i, optimizer in _counted(parts):
        _collect_optimizer(optimizer, f"optimizer/{i}", {})


def save(
    path: Path,
    parts: Parts,
    notes: Mapping[str, Any] | None = None,
    base: Path | None = None,
    hand_in: str = "bf16",
    with_optimizer: bool = True,
) -> None:
    """Writes under a temporary name, then renames, so that a cut leaves no half file.

    With a ``base``, what that holds in float32 too is stored as an update of it, as ``hand_in``
    says: see rounding.py. A base that has been cleared away meanwhile, as by a resumed head, is
    done without. ``with_optimizer`` leaves out the optimizers' state if it is False.
    """
    tensors: Tensors = {}
    tied, entries = _collect_models(parts.models, tensors)
    frozen = parts.frozen.unchanged(tensors)
    of_models = set(tensors)
    scalars = [_collect_optimizer(o, f"optimizer/{i}", tensors) for i, o in _counted(parts)]
    if not with_optimizer:
        tensors = {name: tensor for name, tensor in tensors.items() if name in of_models}
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
        "frozen": frozen,
        "keeps_optimizer": not with_optimizer,
        "complex": [name for name, tensor in tensors.items() if tensor.is_complex()],
        **({"pretrained": told} if (told := parts.pretrained()) else {}),
        **(notes or {}),
    }
    for name in parts.frozen.left_out(frozen, tensors):
        del tensors[name]
    part = path.with_name(path.name + ".part")
    stored = {name: _own_memory(tensor) for name, tensor in tensors.items()}
    metadata = {"hadar": json.dumps(content)}
    if base and base.is_file():
        trained = of_models - frozen.keys() - set(content["buffers"])
        stored = _with_updates(stored, parts.rounding.updates(stored, base, hand_in, trained))
        metadata["hadar.update_of"] = base.name
    save_file(stored, part, metadata)
    part.replace(path)


def _with_updates(stored: Tensors, updates: Tensors) -> Tensors:
    """What is stored, with these updates in place of the tensors that they are of."""
    replaced = {name.partition("/")[2] for name in updates.keys() - stored.keys()}
    return {name: t for name, t in stored.items() if name not in replaced} | updates


def load(
    path: Path, parts: Parts, optimizer_in: Path | None = None, was_merged: bool = False
) -> dict[str, Any]:
    """Puts a checkpoint's content into the parts; returns its notes.

    Where it holds no optimizer state and there is an ``optimizer_in``, a copy whose own hand-in
    ``was_merged`` goes on with the state it has, and any other one starts with that file's.
    """
    parts.rounding.settle(was_merged)
    with safe_open(path, framework="pt") as file:
        notes: dict[str, Any] = json.loads((file.metadata() or {}).get("hadar", "{}"))
        tensors = _Stored(file, notes)
        frozen = {n: h for n, h in notes.get("frozen", {}).items() if n not in tensors}
        parts.frozen.check(frozen, _entries(parts.models))
        for i, model in enumerate(parts.models):
            _load_model(model, f"model/{i}/", tensors, notes)
        has_state = any(name.startswith("optimizer/") for name in tensors)
        if has_state or not optimizer_in:
            _load_optimizers(parts, tensors, notes)
        elif was_merged:
            _load_optimizers(parts, None, notes)
        else:
            with safe_open(optimizer_in, framework="pt") as older:
                state = json.loads((older.metadata() or {}).get("hadar", "{}"))
                scalars = {"optimizer_scalars": state.get("optimizer_scalars", [])}
                _load_optimizers(parts, _Stored(older, state), notes | scalars)
        for name, state in notes.get("state", {}).items():
            if name in parts.extras:
                parts.extras[name].load_state_dict(_put_together(state, tensors))
    for scheduler, state in zip(parts.schedulers, notes.get("schedulers", []), strict=False):
        scheduler.load_state_dict({**scheduler.state_dict(), **state})
    parts.frozen.look(_entries(parts.models))
    return notes


class _Stored(Mapping[str, torch.Tensor]):
    """A checkpoint's tensors, read one by one: they need not fit into memory beside the parts."""

    def __init__(self, file: Any, notes: Mapping[str, Any]) -> None:
        self._file, self._complex = file, frozenset(notes.get("complex", ()))
        self._names = frozenset(file.keys())

    def __getitem__(self, name: str) -> torch.Tensor:
        if name not in self._names:
            raise KeyError(name)
        tensor: torch.Tensor = self._file.get_tensor(name)
        return torch.view_as_complex(tensor) if name in self._complex else tensor

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._names))

    def __len__(self) -> int:
        return len(self._names)


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


def _entries(models: Sequence[torch.nn.Module]) -> Tensors:
    """All that a checkpoint holds of the models, each tensor once."""
    entries: Tensors = {}
    _collect_models(models, entries)
    return entries


def _load_model(
    model: torch.nn.Module, prefix: str, tensors: Mapping[str, torch.Tensor], notes: dict[str, Any]
) -> None:
    entries, tied = notes.get("entries", {}), notes.get("tied", {})
    held = {name: value for name, value in entries.items() if name.startswith(prefix)}
    held |= {name: tensors[name] for name in tensors if name.startswith(prefix)}
    for alias, name in tied.items():
        if alias.startswith(prefix) and name in tensors:
            held[alias] = held[name] if name in held else tensors[name]
    left_out = notes.get("frozen", {}).keys() - held.keys()
    left_out |= {alias for alias, name in tied.items() if name in left_out}
    named = {prefix + entry.replace(_COMPILED, ""): entry for entry in model.state_dict()}
    found = model.load_state_dict(
        {named.get(n, n.removeprefix(prefix)): value for n, value in held.items()}, strict=False
    )
    missing = set(found.missing_keys) - {named.get(name) for name in left_out}
    if missing or found.unexpected_keys:
        what = [f"it lacks {name}" for name in sorted(missing)[:3]]
        what += [f"it has {name}, which the model has not" for name in found.unexpected_keys[:3]]
        raise RuntimeError(f"the checkpoint is not of this model: {'; '.join(what)}")


def _buffer_names(models: Sequence[torch.nn.Module]) -> list[str]:
    return [
        f"model/{i}/{name.replace(_COMPILED, '')}"
        for i, model in enumerate(models)
        for name, _ in model.named_buffers()
    ]


def _own_memory(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor as safetensors takes it: on the CPU, and no view into a larger one."""
    real = torch.view_as_real(tensor.detach().resolve_conj()) if tensor.is_complex() else tensor
    stored = real.detach().cpu().contiguous()
    return stored.clone() if stored.untyped_storage().nbytes() != stored.nbytes else stored


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
                raise TypeError(
                    f"{type(optimizer).__name__} keeps {key!r} as a {type(value).__name__}: hadar "
                    "can neither save nor merge that. Use an optimizer whose state is tensors and "
                    "numbers, such as SGD or Adam"
                )
            if not isinstance(value, torch.Tensor):
                scalars.add(key)
            tensors[f"{prefix}/{parameter}/{key}"] = torch.as_tensor(value)
    return sorted(scalars)


def _load_optimizers(
    parts: Parts, tensors: Mapping[str, torch.Tensor] | None, notes: Mapping[str, Any]
) -> None:
    """With no tensors at all, they keep the state they have."""
    groups, scalars = notes.get("optimizer_groups", []), notes.get("optimizer_scalars", [])
    for i, optimizer in _counted(parts):
        _load_optimizer(
            optimizer,
            tensors,
            f"optimizer/{i}/",
            groups[i] if i < len(groups) else [],
            scalars[i] if i < len(scalars) else [],
        )


def _load_optimizer(
    optimizer: torch.optim.Optimizer,
    tensors: Mapping[str, torch.Tensor] | None,
    prefix: str,
    saved_groups: list[dict[str, Any]],
    scalars: Sequence[str],
) -> None:
    own = optimizer.state_dict()
    groups, state = own["param_groups"], own["state"]
    for group, saved in zip(groups, saved_groups, strict=False):
        group.update({key: value for key, value in saved.items() if key != "params"})
    if tensors is not None:
        known = {parameter for group in groups for parameter in group["params"]}
        names = _state_names(tensors, prefix, known)
        if _is_alike(state, names, scalars):
            # In place: a second state beside the first would take as much memory as two models.
            for parameter, keys in names.items():
                for key, name in keys.items():
                    state[parameter][key].copy_(tensors[name])
        else:
            state = {
                parameter: {
                    key: tensors[name].item() if key in scalars else tensors[name]
                    for key, name in keys.items()
                }
                for parameter, keys in names.items()
            }
    optimizer.load_state_dict({"state": state, "param_groups": groups})


def _state_names(tensors: Iterable[str], prefix: str, known: set[int]) -> dict[int, dict[str, str]]:
    """Where the state of each parameter is; of layers that only other copies train, there is none
    to be had."""
    names: dict[int, dict[str, str]] = {}
    for name in tensors:
        if name.startswith(prefix):
            number, key = name.removeprefix(prefix).split("/", 1)
            if int(number) in known:
                names.setdefault(int(number), {})[key] = name
    return names


def _is_alike(
    own: Mapping[int, Mapping[str, Any]],
    names: Mapping[int, Mapping[str, str]],
    scalars: Sequence[str],
) -> bool:
    """Whether the optimizer has a tensor in place of everything that is to be loaded."""
    return (
        not scalars
        and own.keys() == names.keys()
        and all(
            own[parameter].keys() == keys.keys()
            and all(isinstance(value, torch.Tensor) for value in own[parameter].values())
            for parameter, keys in names.items()
        )
    )


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


def _put_together(value: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    if isinstance(value, list):
        return [_put_together(v, tensors) for v in value]
    if isinstance(value, dict):
        if "$tensor" in value:
            return tensors[value["$tensor"]]
        return {k: _put_together(v, tensors) for k, v in value["$items"]}
    return value


def _plain(value: Any) -> Any:
    """The part of a state that JSON can hold as it is, which knows no keys but texts; the script
    rebuilds functions, objects and the milestones of a MultiStepLR itself."""
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            return _UNSTORABLE
        items = ((k, _plain(v)) for k, v in value.items())
        return {k: v for k, v in items if v is not _UNSTORABLE}
    if isinstance(value, (list, tuple)):
        plain = [_plain(v) for v in value]
        return _UNSTORABLE if any(v is _UNSTORABLE for v in plain) else plain
    if isinstance(value, torch.Tensor):
        return value.item() if value.numel() == 1 else _UNSTORABLE
    return value if isinstance(value, (str, int, float, bool, type(None))) else _UNSTORABLE


_UNSTORABLE = object()
