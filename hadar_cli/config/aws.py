"""Reads ``[aws]``: the account, the budget, and ``[[aws.instances]]`` that are nodes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from hadar_cli.config.fields import (
    Reader,
    Spot,
    flag,
    integer,
    list_of,
    number,
    record,
    table_of,
    text,
)
from hadar_cli.core.gpu_table import find_gpu, gpus_of
from hadar_cli.core.model import AWS, AwsRequest, Gpu

_WORD = text(re.compile(r"[^\s]+"), "Give one word.")
_TYPE = text(re.compile(r"[a-z0-9-]+\.[a-z0-9-]+"), "Write it like g5.xlarge.")
_REGION = text(re.compile(r"[a-z]{2}(-[a-z]+)+-\d"), "Write it like us-east-1.")
_ID = text(re.compile(r"i-[0-9a-f]{8,17}"), "Write it like i-0123456789abcdef0.")
_VERSION = text(re.compile(r"\d+|\$Default|\$Latest"), 'Write "3", "$Default" or "$Latest".')
_TAG = re.compile(r"[A-Za-z0-9_.:/=+@-]{1,120}")

ACCOUNT: dict[str, Reader[Any]] = {
    "region": _REGION,
    "profile": _WORD,
    "config": text(),
    "budget": number(0, 10**7, above=True),
    "idle_minutes": number(5, 24 * 60),
    "tags": table_of(text(), _TAG),
    "private": flag,
}
INSTANCE: dict[str, Reader[Any]] = {
    "type": _TYPE,
    "template": _WORD,
    "version": _VERSION,
    "ids": list_of(_ID),
    "spot": flag,
    "count": integer(1, 1000),
}


def block(node_fields: Mapping[str, Reader[Any]]) -> Reader[list[dict[str, Any]]]:
    """Reads the table into the fields of its nodes, each with its request."""
    instance = record({**node_fields, **INSTANCE}, required=("name",))

    def read(value: Any, spot: Spot) -> list[dict[str, Any]]:
        table = record({**ACCOUNT, "instances": list_of(instance)}, required=("instances",))
        fields = table(value, spot)
        listed = fields.pop("instances")
        if not listed:
            raise spot.inside("instances").error("lists none", "Add [[aws.instances]].")
        return [
            one
            for place, block in enumerate(listed)
            for one in _nodes(block, fields, spot.inside("instances").inside(place))
        ]

    return read


def _nodes(fields: dict[str, Any], account: dict[str, Any], spot: Spot) -> Iterator[dict[str, Any]]:
    """The nodes of one entry."""
    own = {key: fields.pop(key) for key in INSTANCE if key in fields}
    places = _places(own, spot)
    if len(places) > 1:
        for key in ("host", "host_key", "address"):
            if key in fields:
                raise spot.inside(key).error("cannot be that of several", "Give each its own.")
    if "emulate" in fields:
        fields["emulated_speed"] = fields.pop("emulate")
    if "gpus" not in fields:
        fields["gpus"] = _gpus(own.get("type"), spot)
    for number_, place in enumerate(places, 1):
        name = fields["name"] if len(places) == 1 else f"{fields['name']}-{number_}"
        request = AwsRequest(instance=place, **own, **account)
        yield {"host": AWS, **fields, "name": name, "aws": request, "spot": spot}


def _places(own: dict[str, Any], spot: Spot) -> list[str | None]:
    """The id of each instance, None for one that is to be launched."""
    ids, count = own.pop("ids", ()), own.pop("count", None)
    if bool(ids) == ("template" in own):
        fix = 'Give template = "lt-…" to launch some, or ids = ["i-…"] to start your own.'
        raise spot.error("needs either 'template' or 'ids'", fix)
    if ids:
        for key in ("spot", "version"):
            if key in own:
                raise spot.inside(key).error("is for those of a template", "Leave it out.")
        if count not in (None, len(ids)):
            raise spot.inside("count").error(f"and 'ids' lists {len(ids)}", "Leave it out.")
        if len(set(ids)) < len(ids):
            raise spot.inside("ids").error("names an instance twice", "Name each once.")
    return list(ids) or [None] * (count or 1)


def _gpus(kind: str | None, spot: Spot) -> tuple[Gpu, ...]:
    fix = 'List its GPUs: gpus = [{ model = "A10G" }], or gpus = [] for none.'
    if not kind:
        raise spot.error("neither 'type' nor 'gpus' says what it trains on", fix)
    held = gpus_of(kind)
    gpu = find_gpu(held[0]) if held else None
    if not held or not gpu:
        raise spot.inside("type").error(f"no GPU of '{kind}' is known", fix)
    return (gpu,) * held[1]
