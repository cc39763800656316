"""What a script keeps by itself from one turn of its loop to the next: the best loss so far, a
patience, a count. It begins anew in every process, so it is named where somebody may see it.

Read from the source of the loop: a name carries something over if a turn reads it before it sets
it. Objects of the project's own classes carry what their methods set.
"""

from __future__ import annotations

import ast
import inspect
import sys
import sysconfig
import textwrap
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import torch

_PACKAGE = str(Path(__file__).parents[3])
_NOT_THE_SCRIPTS = (f"{_PACKAGE}/node/", sysconfig.get_path("stdlib"), "<")
_PLAIN = (int, float, str, bool, type(None))
_GROWING = (list, dict, set, deque)
_TO_GROW = ("append", "appendleft", "extend", "add", "update", "insert", "pop", "popleft", "clear")
_OF_TORCH = (torch.nn.Module, torch.utils.data.Dataset, torch.utils.data.Sampler)
_DEEPEST = 3  # attributes of attributes
_A_DAY = 86_400.0
_ANYWHERE = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)

Function = ast.FunctionDef | ast.AsyncFunctionDef


def script_frames(frame: FrameType | None) -> Iterator[FrameType]:
    """Those of the script's own code, from here outwards."""
    while frame:
        file = frame.f_code.co_filename
        if not file.startswith(_NOT_THE_SCRIPTS) and "site-packages" not in file:
            yield frame
        frame = frame.f_back


def carried_names(frames: Iterable[FrameType], kept: Iterable[object]) -> list[str]:
    """What the outermost loop around these frames carries from turn to turn, and is not kept."""
    known = {id(each) for each in kept}
    for frame in reversed(list(frames)):
        with suppress(OSError, SyntaxError, ValueError):  # there is no source to be read
            if loop := _outermost_loop(frame):
                return list(dict.fromkeys(_carried(frame, loop, known)))
    return []


def _carried(frame: FrameType, loop: ast.For | ast.While, known: set[int]) -> Iterator[str]:
    there = {**frame.f_globals, **frame.f_locals}
    held = {name: value for name, value in there.items() if id(value) not in known}
    turn = _Turn(loop)
    for name in turn.carried:
        if name in held and _is_value(held[name]):
            yield name
    for name in turn.grown:
        if isinstance(held.get(name), _GROWING):
            yield name
    for function, names in _set_by_functions(frame.f_code.co_filename):
        if function in turn.read:
            yield from (name for name in names if _is_value(held.get(name, loop)))
    for name in sorted(turn.read):
        if name in held:
            yield from _changing(name, held[name], known, _DEEPEST)


def _is_value(value: Any) -> bool:
    """Numbers, texts, lists of them, tensors; no model, data set or file, and not the time."""
    if isinstance(value, torch.Tensor):
        return value.grad_fn is None and not value.requires_grad
    if isinstance(value, float) and abs(value - time.time()) < _A_DAY:
        return False
    return isinstance(value, (*_PLAIN, *_GROWING, tuple)) or type(value).__module__ == "numpy"


def _is_of_the_project(value: Any) -> bool:
    kind = type(value)
    file = getattr(sys.modules.get(kind.__module__), "__file__", None) or "<"
    is_own = not file.startswith(_NOT_THE_SCRIPTS) and "site-packages" not in file
    return is_own and hasattr(value, "__dict__") and not isinstance(value, _OF_TORCH)


def _changing(name: str, value: Any, known: set[int], deep: int) -> Iterator[str]:
    """Attributes that a method other than ``__init__`` sets, and that are there by now."""
    if not deep or id(value) in known or not _is_of_the_project(value):
        return
    kind: Any = type(value)
    changing = _set_by_methods(kind)
    for attribute, held in vars(value).items():
        if attribute in changing and _is_value(held) and id(held) not in known:
            yield f"{name}.{attribute}"
        else:
            yield from _changing(f"{name}.{attribute}", held, known, deep - 1)


# -- source -----------------------------------------------------------------------------------


@cache
def _tree(file: str) -> ast.Module:
    return ast.parse(Path(file).read_text(encoding="utf-8"))


def _outermost_loop(frame: FrameType) -> ast.For | ast.While | None:
    """The loop that a function, or a module, is in."""
    scope: ast.AST = _tree(frame.f_code.co_filename)
    if frame.f_code.co_name != "<module>":
        first = frame.f_code.co_firstlineno
        found = (n for n in ast.walk(scope) if isinstance(n, Function) and _first(n) == first)
        scope = next(found, ast.Module([], []))
    return _loop_at(ast.iter_child_nodes(scope), frame.f_lineno)


def _first(function: Function) -> int:
    return min([function.lineno, *(d.lineno for d in function.decorator_list)])


def _loop_at(nodes: Iterable[ast.AST], line: int) -> ast.For | ast.While | None:
    for node in nodes:
        if isinstance(node, (ast.For, ast.While)) and node.lineno <= line <= (node.end_lineno or 0):
            return node
        if not isinstance(node, _ANYWHERE) and (
            found := _loop_at(ast.iter_child_nodes(node), line)
        ):
            return found
    return None


@cache
def _set_by_functions(file: str) -> list[tuple[str, list[str]]]:
    """The functions that set names of the module, and which."""
    found = []
    for node in ast.walk(_tree(file)):
        if isinstance(node, Function):
            inside = list(ast.walk(node))
            said = [each.names for each in inside if isinstance(each, ast.Global)]
            shared = {name for names in said for name in names}
            found.append((node.name, sorted(shared & _stored_in(node))))
    return found


def _stored_in(node: ast.AST) -> set[str]:
    names = (each for each in ast.walk(node) if isinstance(each, ast.Name))
    return {name.id for name in names if isinstance(name.ctx, ast.Store)}


@cache
def _set_by_methods(kind: type) -> frozenset[str]:
    """Attributes that methods of a class set or let grow, once an object is there."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(kind)))
    except (OSError, TypeError, SyntaxError):
        return frozenset()
    methods = [n for n in ast.walk(tree) if isinstance(n, Function) and n.name != "__init__"]
    return frozenset(name for method in methods for name in _set_on_self(method))


def _set_on_self(method: Function) -> Iterator[str]:
    for node in ast.walk(method):
        is_set = isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
        match node if is_set else _grown(node):
            case ast.Attribute(ast.Name("self"), name):
                yield name


def _grown(node: ast.AST) -> ast.expr | None:
    """What ``x.append(…)``, ``x[…] = …`` or ``x[…].append(…)`` changes."""
    grown: ast.expr | None = None
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        grown = node.func.value if node.func.attr in _TO_GROW else None
    elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
        grown = node.value
    while isinstance(grown, ast.Subscript):
        grown = grown.value
    return grown


class _Turn:
    """A turn of a loop: the names that it reads before it sets them, and sets."""

    def __init__(self, loop: ast.For | ast.While) -> None:
        self._early: dict[str, None] = {}
        self.read: set[str] = set()
        self.grown: dict[str, None] = {}
        is_set = _stored_in(loop.target) if isinstance(loop, ast.For) else set()
        if isinstance(loop, ast.While):
            self._expression(loop.test, is_set)
        self._block(loop.body, is_set)
        stored = {name for statement in loop.body for name in _stored_in(statement)}
        self.carried = [name for name in self._early if name in stored]

    def _block(self, statements: Iterable[ast.stmt], is_set: set[str]) -> set[str]:
        """Names that are surely set when it is through, of those and ``is_set``."""
        for statement in statements:
            is_set = self._statement(statement, is_set)
        return is_set

    def _statement(self, node: ast.stmt, is_set: set[str]) -> set[str]:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                return is_set | {node.name}
            case ast.If():
                self._expression(node.test, is_set)
                return self._block(node.body, is_set) & self._block(node.orelse, is_set)
            case ast.For() | ast.AsyncFor():
                self._expression(node.iter, is_set)
                done = self._block(node.body, is_set | _stored_in(node.target))
                return self._block(node.orelse, done)  # it is hardly ever empty
            case ast.While():
                self._expression(node.test, is_set)
                return self._block(node.orelse, self._block(node.body, is_set))
            case ast.With() | ast.AsyncWith():
                for item in node.items:
                    self._expression(item, is_set)
                bound = (_stored_in(item) for item in node.items)
                return self._block(node.body, is_set.union(*bound))
            case ast.Try():
                for handler in node.handlers:
                    self._block(handler.body, is_set)
                done = self._block(node.orelse, self._block(node.body, is_set))
                return self._block(node.finalbody, is_set if node.handlers else done)
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            self._reads(node.target.id, is_set)
        self._expression(node, is_set)
        return is_set | _stored_in(node)

    def _expression(self, node: ast.AST, is_set: set[str]) -> None:
        for each in ast.walk(node):
            if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load):
                self._reads(each.id, is_set)
            if isinstance(grown := _grown(each), ast.Name) and grown.id not in is_set:
                self.grown[grown.id] = None

    def _reads(self, name: str, is_set: set[str]) -> None:
        self.read.add(name)
        if name not in is_set:
            self._early[name] = None
