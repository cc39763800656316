"""YAML without its traps: no aliases, tags, duplicate keys, or words that mean two things."""

from __future__ import annotations

import re
from typing import Any

import yaml

from hadar_cli.config.fields import MAX_DEPTH, Document, Where, field_path
from hadar_cli.errors import InputError

_INTEGER = re.compile(r"[-+]?(0|[1-9]\d{0,17})")
_FLOAT = re.compile(r"[-+]?(0|[1-9]\d{0,17})\.\d{1,30}([eE][-+]\d{1,2})?")
_BOOLEAN = {"true": True, "false": False}
# Text to PyYAML (YAML 1.1), numbers to everyone else (YAML 1.2).
_NUMBER_ELSEWHERE = re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+|0o[0-7]+")
_TAG = "tag:yaml.org,2002:"


class _Loader(yaml.SafeLoader):
    """Composes nodes, refusing what makes YAML surprising."""

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise _refusal(
                event, "anchors and aliases (&, *) are not supported", "Write the value out."
            )
        if getattr(event, "tag", None):
            raise _refusal(event, "tags (!) are not supported", "Remove the tag.")
        if self.depth > MAX_DEPTH:
            raise _refusal(event, "is nested too deeply", "Mixes need four levels.")
        self.depth += 1
        node: yaml.Node | None = super().compose_node(parent, index)
        self.depth -= 1
        return node


def parse_yaml(text: str, file: str) -> Document:
    """The document in ``text``: dicts, lists and plain values, with the line of every field."""
    try:
        root = yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else None
        message = error.problem or error.context or "is not valid YAML"
        fix = error.note or "Check indentation and quotes."
        raise InputError(message, file=file, line=line, fix=fix) from None
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        # ReaderError (control characters), and escapes beyond Unicode that PyYAML lets through.
        position = getattr(error, "position", None)
        line = text.count("\n", 0, position) + 1 if isinstance(position, int) else None
        message = "contains characters that YAML does not allow"
        raise InputError(message, file=file, line=line, fix="Remove them.") from None
    if root is None:
        raise InputError("is empty", file=file, fix="Start from `hadar init` or an example.")
    lines: dict[Where, int] = {}
    return Document(file, _convert(root, (), lines, file), lines)


def _refusal(event: Any, message: str, fix: str) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=message, problem_mark=event.start_mark, note=fix)


def _convert(node: yaml.Node, where: Where, lines: dict[Where, int], file: str) -> Any:
    """Plain Python values from ``node``; notes in ``lines`` where each of them stands."""
    lines.setdefault(where, node.start_mark.line + 1)
    if isinstance(node, yaml.MappingNode):
        table: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key, line = key_node.value, key_node.start_mark.line + 1
            here: Where = (*where, key)
            if not isinstance(key_node, yaml.ScalarNode):
                raise _error("field names must be plain words", where, line, file, "Use a word.")
            if key in table:
                message = f"is given twice, first on line {lines[here]}"
                raise _error(message, here, line, file, "Keep one of them.")
            lines[here] = line
            table[key] = _convert(value_node, here, lines, file)
        return table
    if isinstance(node, yaml.SequenceNode):
        return [_convert(item, (*where, i), lines, file) for i, item in enumerate(node.value)]
    return _scalar(node, where, file)


def _scalar(node: yaml.Node, where: Where, file: str) -> str | bool | int | float | None:
    """The value of a scalar that every reader of YAML takes for the same thing."""
    word = str(node.value)
    kind = node.tag.removeprefix(_TAG)
    if getattr(node, "style", None) or (kind == "str" and not _NUMBER_ELSEWHERE.fullmatch(word)):
        return word
    if kind == "null":
        return None
    if word.lower() in _BOOLEAN:
        return _BOOLEAN[word.lower()]
    if _INTEGER.fullmatch(word):
        return int(word)
    if _FLOAT.fullmatch(word):
        return float(word)
    if kind in ("merge", "value"):
        return word
    line = node.start_mark.line + 1
    if word.lower().lstrip("+-") in (".nan", ".inf"):
        raise _error(f"'{word}' is not a usable number", where, line, file, "Give a finite number.")
    fix = "Write true or false" if kind == "bool" else "Write a plain number like 1000 or 0.5"
    message = f"'{word}' means different things to different readers of YAML"
    raise _error(message, where, line, file, f'{fix}, or for text put it in quotes: "{word}".')


def _error(message: str, where: Where, line: int, file: str, fix: str) -> InputError:
    return InputError(message, file=file, line=line, field=field_path(where) or None, fix=fix)
