"""JSON Schemas of mixes and of nodes.toml, for editors: made of the strict readers themselves.

Readers that are combined (``record``, ``list_of``, ``integer`` …) are looked into, so that names,
limits and words are the readers' own. Those that are functions have their shape in ``_SHAPES``; one
that has none may be anything, for an editor. What depends on two fields at once is for the readers
to say, but for ``_RULES``.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from hadar_cli.config import aws, inventory, meanings, mixes, ray, slurm, sweeps
from hadar_cli.config import fields as basic
from hadar_cli.workloads import CATALOG

Schema: TypeAlias = dict[str, Any]
_DIALECT = "http://json-schema.org/draft-07/schema#"  # the newest that editors of TOML know

_TEXT: Schema = {"type": "string", "pattern": r"\S"}
_TEXTS: Schema = {"type": "array", "items": _TEXT}
_NUMBER: Schema = {"type": "number"}
_SCALAR: Schema = {"type": ["string", "boolean", "number"]}
_RANGE: Schema = {"type": "array", "items": _NUMBER, "minItems": 2, "maxItems": 2}
_VALUES: Schema = {"type": "array", "items": {"type": ["string", "number"]}, "minItems": 1}


def _any(*options: Schema) -> Schema:
    return {"anyOf": list(options)}


def _one_of(*names: str) -> Schema:
    return {"oneOf": [{"required": [name]} for name in names]}


def _table(properties: Mapping[str, Schema], *required: str) -> Schema:
    found: Schema = {
        "type": "object",
        "properties": dict(properties),
        "additionalProperties": False,
    }
    return found | ({"required": list(required)} if required else {})


def _needs(name: str, *wanted: str) -> Schema:
    return {"if": {"required": [name]}, "then": {"anyOf": [{"required": [w]} for w in wanted]}}


def _clash(*names: str) -> Schema:
    return {"not": {"required": list(names)}}


_RULES: dict[int, list[Schema]] = {
    id(mixes._JOB_FIELDS): [
        _one_of("workload", "script", "module"),
        {
            "if": {"not": {"required": ["workload"]}},
            "then": _one_of("epochs", "steps"),
            "else": _clash("epochs", "steps"),
        },
        _needs("trials", "sample"),
        _needs("sample", "trials"),
        _needs("promote", "grid", "sample"),
        _needs("optuna", "sample"),
        *(_clash("optuna", name) for name in ("grid", "promote")),
        *(_clash("count", name) for name in ("grid", "sample")),
        {"properties": {name: {"minProperties": 1} for name in ("grid", "sample")}},
        _clash("data", "data_dir"),
    ],
}


def _record(told: Mapping[str, Any]) -> Schema:
    fields = told["fields"]
    about = _MEANINGS.get(id(fields), {})
    properties = {
        name: of(reader) | ({"description": about[name]} if name in about else {})
        for name, reader in fields.items()
    }
    rules = _RULES.get(id(fields))
    return _table(properties, *told["required"]) | ({"allOf": rules} if rules else {})


def _words(told: Mapping[str, Any]) -> Schema:
    if pattern := told.get("pattern"):
        return {"type": "string", "pattern": f"^(?:{pattern.pattern})$"}
    return {"type": "string"} if told.get("may_be_empty") else _TEXT


def _number(told: Mapping[str, Any]) -> Schema:
    least = "exclusiveMinimum" if told["above"] else "minimum"
    return {"type": "number", least: told["low"], "maximum": told["high"]}


# By the name of the function that made the reader: what its closure holds, as a schema.
_COMBINED: dict[str, Callable[[Mapping[str, Any]], Schema]] = {
    "record": _record,
    "list_of": lambda told: {"type": "array", "items": of(told["item"])},
    "table_of": lambda told: {
        "type": "object",
        "propertyNames": {"pattern": f"^(?:{told['key'].pattern})$"},
        "additionalProperties": of(told["item"]),
    },
    "text": _words,
    "choice": lambda told: {"enum": list(told["options"])},
    "either": lambda told: _any({"enum": list(told["words"])}, of(told["other"])),
    "integer": lambda told: {"type": "integer", "minimum": told["low"], "maximum": told["high"]},
    "number": _number,
    "number_or_range": lambda told: _any(
        {"type": "integer", "minimum": 1, "maximum": told["most"]},
        *([{"enum": ["auto"]}] if told["has_auto"] else []),
        {"type": "string", "pattern": r"^[0-9]+\.\.[0-9]+$"},
    ),
}
_SHAPES: dict[Any, Callable[[], Schema]] = {
    basic.flag: lambda: {"type": "boolean"},
    basic.scalar: lambda: _SCALAR,
    basic.duration_s: lambda: _any(
        {"type": "number", "exclusiveMinimum": 0},
        {"type": "string", "pattern": r"^\s*(?=\d)(\d{1,4}h)?(\d{1,5}m)?(\d{1,7}s)?\s*$"},
    ),
    inventory._host: lambda: of(inventory._ADDRESS),
    inventory._gpu: lambda: of(inventory._GPU),
    inventory._emulated: lambda: _table({"speed": of(basic.number(0, 100, above=True))}, "speed"),
    slurm._time: lambda: _TEXT,
    slurm._option: lambda: of(slurm._OPTION),
    slurm.request: lambda: of(slurm._REQUEST),
    ray.request: lambda: of(ray._REQUEST),
    ray._resources: lambda: {
        "type": "object",
        "additionalProperties": {"type": "number", "exclusiveMinimum": 0},
    },
    mixes._workload: lambda: {"enum": [*CATALOG, *(one.short for one in CATALOG.values())]},
    mixes._policy: lambda: _any(
        of(basic.NAME),
        {
            "type": "object",
            "properties": {"name": of(basic.NAME)},
            "required": ["name"],
            "additionalProperties": _SCALAR,
        },
    ),
    mixes._merge: lambda: _any({"enum": ["paper"]}, of(basic.record(mixes._MERGE_FIELDS))),
    mixes._fork: lambda: _any(
        {"enum": ["auto", "never"]}, {"type": "integer", "minimum": 1, "maximum": 10**6}
    ),
    mixes._outer_step: lambda: _table(
        {"lr": of(basic.number(0.001, 10)), "momentum": of(basic.number(0, 0.999))}
    ),
    basic.one_or_more: lambda: _any(_TEXT, _TEXTS),
    basic.arguments: lambda: _any(
        {"type": "string"}, {"type": "array", "items": {"type": ["string", "number"]}}
    ),
    sweeps._values: lambda: _VALUES,
    sweeps._different: lambda: {**_VALUES, "uniqueItems": True},
    sweeps._drawn: lambda: _any(
        _VALUES, *(_table({kind: _RANGE}, kind) for kind in ("uniform", "log", "int"))
    ),
}


def of(reader: Any) -> Schema:
    """What the reader takes, as far as a schema can tell."""
    if shape := _SHAPES.get(reader):
        return shape()
    made_by = re.match(r"(\w+)\.<locals>", getattr(reader, "__qualname__", ""))
    if made_by and made_by[1] in _COMBINED:
        return _COMBINED[made_by[1]](inspect.getclosurevars(reader).nonlocals)
    return {}


def _closed(reader: Any) -> Any:
    return inspect.getclosurevars(reader).nonlocals["fields"]


_MEANINGS: dict[int, Mapping[str, str]] = {
    id(mixes._JOB_FIELDS): meanings.JOB_FIELDS,
    id(mixes._MERGE_FIELDS): meanings.MERGE_FIELDS,
    id(_closed(mixes._MIX)): meanings.MIX_FIELDS,
    id(_closed(inventory._GPU)): meanings.GPU_FIELDS,
    id(slurm.FIELDS): meanings.SLURM_FIELDS,
    id(ray.FIELDS): meanings.RAY_FIELDS,
}


def mix_schema() -> Schema:
    found = of(mixes._MIX)
    found["properties"]["jobs"]["minItems"] = 1
    return {"$schema": _DIALECT, "title": "A mix of hadar: jobs to train together"} | found


def _told(readers: Mapping[str, Any], about: Mapping[str, str]) -> dict[str, Schema]:
    """Fields with what they mean."""
    return {
        name: of(reader) | ({"description": about[name]} if name in about else {})
        for name, reader in readers.items()
    }


def _blocks(own: Mapping[str, Any], about: Mapping[str, str], *required: str) -> Schema:
    """One block of nodes and their request, or several."""
    name = {"name": basic.NAME, "count": basic.integer(1, 10_000)}
    fields = _told({**name, **inventory._PLAIN_NODE}, meanings.NODE_FIELDS)
    block = _table({**fields, **_told(own, about)}, *required)
    return _any(block, {"type": "array", "items": block, "minItems": 1})


def nodes_schema() -> Schema:
    shared = _told(inventory._DEFAULTS, meanings.NODE_FIELDS)
    name = {"name": of(basic.NAME)}
    plain = _told(inventory._PLAIN_NODE, meanings.NODE_FIELDS)
    instance = _table({**name, **plain, **_told(aws.INSTANCE, meanings.INSTANCE_FIELDS)}, "name")
    rented = {
        **_told(aws.ACCOUNT, meanings.AWS_FIELDS),
        "instances": {"type": "array", "items": instance, "minItems": 1},
    }
    places = {
        "node": {"type": "array", "items": _table({**name, **shared}), "minItems": 1},
        "slurm": _blocks(slurm.FIELDS, meanings.SLURM_FIELDS, "name", "time"),
        "ray": _blocks(ray.FIELDS, meanings.RAY_FIELDS, "name"),
        "aws": _table(rented, "instances"),
    }
    top = _table({"defaults": _table(shared), **places})
    rule = {"anyOf": [{"required": [place]} for place in places]}
    return {"$schema": _DIALECT, "title": "hadar's inventory of machines"} | top | rule


SCHEMAS: dict[str, Callable[[], Schema]] = {"mix": mix_schema, "nodes": nodes_schema}


def text(kind: str) -> str:
    """A schema as it is published."""
    return json.dumps(SCHEMAS[kind](), indent=1, ensure_ascii=False) + "\n"
