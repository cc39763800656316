"""What a script counts by itself, as a state: dictionaries and objects that have no state_dict.

Of an object those attributes are kept that a checkpoint can hold; what else it has, such as a
function or a model, the script builds itself.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import torch

_PLAIN = (str, int, float, bool, type(None))
_NO_STATE = (type, FunctionType, BuiltinFunctionType, MethodType, ModuleType)


def with_state_dict(name: str, value: Any) -> Any:
    """The value itself if it has a state_dict, or else what keeps it in that way."""
    if hasattr(value, "state_dict") and hasattr(value, "load_state_dict"):
        return value
    if isinstance(value, dict):
        return DictState(name, value)
    if hasattr(value, "__dict__") and not isinstance(value, _NO_STATE):
        return ObjectState(value)
    raise TypeError(
        f"state={{{name!r}: ...}} is a {type(value).__name__}, into which nothing can be put back: "
        "give a dict, or an object that has the values as attributes, such as "
        "progress = {'best': 0.0} and training(..., state={'progress': progress})"
    )


class DictState:
    """A script's dictionary: all of it is kept, or it is refused by its key."""

    def __init__(self, name: str, source: dict[Any, Any]) -> None:
        self._name, self.source = name, source

    def state_dict(self) -> dict[Any, Any]:
        try:
            return {key: _storable(value) for key, value in self.source.items()}
        except _NotStorable as error:
            raise TypeError(
                f"state={{{self._name!r}: ...}} holds a {error}: a checkpoint holds numbers, "
                "texts, tensors, arrays, and lists and dicts of these"
            ) from None

    def load_state_dict(self, state: Mapping[Any, Any]) -> None:
        _put_back(self.source, state)


class ObjectState:
    """An object's attributes, as far as a checkpoint can hold them."""

    def __init__(self, source: Any) -> None:
        self.source = source

    def state_dict(self) -> dict[str, Any]:
        return _storable_of(vars(self.source))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        own = vars(self.source)
        for name, value in state.items():
            own[name] = _put_back(own.get(name), value)


class DeclaredState:
    """The state that a framework's object declares, as far as a checkpoint can hold it."""

    def __init__(self, source: Any) -> None:
        self.source = source

    def state_dict(self) -> dict[str, Any]:
        return _storable_of(self.source.state_dict())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        own = self.source.state_dict()
        self.source.load_state_dict({**own, **{n: _put_back(own.get(n), state[n]) for n in state}})


def _storable_of(values: Mapping[str, Any]) -> dict[str, Any]:
    found = {}
    for name, value in values.items():
        with suppress(_NotStorable):
            found[name] = _storable(value)
    return found


class _NotStorable(Exception):
    """By the name of its type."""


def _storable(value: Any) -> Any:
    """The value as a checkpoint takes it."""
    if isinstance(value, (torch.Tensor, *_PLAIN)):
        return value
    if isinstance(value, Mapping) and all(isinstance(key, _PLAIN) for key in value):
        return {key: _storable(each) for key, each in value.items()}
    if isinstance(value, (list, tuple, deque)):
        return [_storable(each) for each in value]
    if numpy := sys.modules.get("numpy"):
        if isinstance(value, numpy.generic) and isinstance(value.item(), _PLAIN):
            return value.item()
        if isinstance(value, numpy.ndarray) and value.dtype.kind in "fiub":
            return torch.from_numpy(value.copy())
    raise _NotStorable(type(value).__name__)


def _put_back(own: Any, value: Any) -> Any:
    """What stands in the place of ``own``: itself where it can be changed, as others may hold it,
    and of its type where a checkpoint knows no such type."""
    numpy = sys.modules.get("numpy")
    if isinstance(value, torch.Tensor) and isinstance(own, torch.Tensor):
        if own.shape != value.shape:
            return value.to(own.device, own.dtype)
        with torch.no_grad():
            return own.copy_(value)
    if isinstance(value, torch.Tensor) and numpy and isinstance(own, numpy.ndarray):
        return value.numpy().astype(own.dtype)
    if isinstance(value, dict) and isinstance(own, dict):
        items = {key: _put_back(own.get(key), each) for key, each in value.items()}
        own.clear()
        own.update(items)
        return own
    if isinstance(value, list) and isinstance(own, (list, tuple, deque)):
        held = [*own, *[None] * len(value)]
        found = [_put_back(a, b) for a, b in zip(held, value, strict=False)]
        if isinstance(own, tuple):
            return tuple(found)
        own.clear()
        own.extend(found)
        return own
    return value
