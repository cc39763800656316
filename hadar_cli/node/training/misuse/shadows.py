"""Weights that a script keeps beside its model's: their running mean, a target network."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import BuiltinFunctionType, FrameType, FunctionType, ModuleType
from typing import Any

import torch

from hadar_cli.node.training.misuse.refused import Refused

_DEEPEST = 4  # attributes of attributes
_LOOKED_AT = 16  # numbers of each tensor: a running mean changes all of them

_MOST_ENTRIES = 64
_NOT_LOOKED_INTO = ("builtins", "torch", "numpy", "hadar_cli")
_NO_OBJECTS = (type, FunctionType, BuiltinFunctionType, ModuleType)
_OF_MODULES = ("_parameters", "_buffers", "_modules")

Sample = list[list[float]]


def refused(name: str) -> Refused:
    word = re.findall(r"[A-Za-z_]\w*", name)[-1]
    return Refused(
        f"{name} holds weights of the shapes of the model's, which change as it trains, and "
        "training was not given it: it would begin anew in every process, and not know of the "
        "steps of other copies",
        f"training(..., state={{'{word}': {name}}}), be it a model, a dict or an object; or the "
        "model among the others, training([model, other], …); what a framework's callback keeps: "
        "as a part of the model",
    )


class Shadows:
    """Those that the script holds when its loop begins, and that ``training`` was not given."""

    def __init__(
        self,
        models: Sequence[torch.nn.Module],
        given: Iterable[object],
        frames: Iterable[FrameType],
    ) -> None:
        self._given = {id(each) for each in given}
        self._memory = {t.data_ptr() for model in models for t in _all_of(model)}
        trained = [{n: p for n, p in m.named_parameters() if p.requires_grad} for m in models]
        self._names = [{_bare(n): p.shape for n, p in of_one.items()} for of_one in trained]
        every = [list(model.parameters()) for model in models]
        self._shapes = [[p.shape for p in ps] for ps in (*every, *(t.values() for t in trained))]
        self._seen: set[int] = set()
        self._found: list[tuple[str, Any, Sample]] = []  # by name, as they were
        for frame in frames:
            for held in (frame.f_locals, frame.f_globals):
                for name, value in list(held.items()):
                    self._look(name, value, _DEEPEST)

    def changed(self) -> str | None:
        """The name of one that training has changed."""
        for name, value, before in self._found:
            if _sample(_tensors_of(value)) != before:
                return name
        return None

    def _look(self, name: str, value: Any, deep: int) -> None:
        if id(value) in self._given or id(value) in self._seen or name.startswith("__"):
            return
        self._seen.add(id(value))
        tensors = _tensors_of(value)
        if tensors and self._follows(value, tensors):
            if not any(t.data_ptr() in self._memory for t in tensors):
                self._found.append((name, value, _sample(tensors)))
        elif deep:
            for inner, held in _inside(value):
                self._look(f"{name}{inner}", held, deep - 1)

    def _follows(self, value: Any, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether these could be weights of one of the models."""
        if isinstance(value, Mapping):
            held = {_bare(name): tensor.shape for name, tensor in value.items()}
            return any(names and names.items() <= held.items() for names in self._names)
        shapes = [t.shape for t in tensors]
        return any(shapes and shapes == of_model for of_model in self._shapes)


def _inside(value: Any) -> Iterator[tuple[str, Any]]:
    """What may hold weights: attributes of the project's objects and of libraries for running
    means, parts of models, entries of short lists and dicts; nothing of torch's own."""
    kind = type(value)
    if isinstance(value, (dict, list, tuple)):
        if len(value) <= _MOST_ENTRIES:
            items = value.items() if isinstance(value, dict) else enumerate(value)
            yield from ((f"[{key!r}]", held) for key, held in list(items))
        return
    if isinstance(value, torch.nn.Module):
        yield from ((f".{name}", part) for name, part in value.named_children())
    elif str(kind.__module__).partition(".")[0] in (*sys.stdlib_module_names, *_NOT_LOOKED_INTO):
        return
    if hasattr(value, "__dict__") and not isinstance(value, _NO_OBJECTS):
        own = list(vars(value).items())
        yield from ((f".{name}", held) for name, held in own if name not in _OF_MODULES)


def _tensors_of(value: Any) -> list[torch.Tensor]:
    """Of a model, a dict by names, or a list; none of anything else."""
    if isinstance(value, torch.nn.Module):
        return list(value.parameters())
    several: Any = ()
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        several = value.values()
    elif isinstance(value, (list, tuple)):
        several = value
    return list(several) if all(isinstance(each, torch.Tensor) for each in several) else []


def _sample(tensors: Iterable[torch.Tensor]) -> Sample:
    flat = (tensor.detach().reshape(-1)[:_LOOKED_AT] for tensor in tensors)
    return [numbers.float().nan_to_num().tolist() for numbers in flat]


def _all_of(model: torch.nn.Module) -> Iterator[torch.Tensor]:
    yield from model.parameters()
    yield from model.buffers()


def _bare(name: str) -> str:
    """A parameter's name without those of what its model was put into."""
    for wrapper in ("_orig_mod.", "module."):
        name = name.replace(wrapper, "")
    return name
