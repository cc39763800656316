"""Instances as entries of the inventory."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence

from hadar_cli.aws.discovery import Instance
from hadar_cli.core.gpu_table import PRICED_ON, gpus_of, price_of

_UNFIT = re.compile(r"[^A-Za-z0-9._-]+")


def as_toml(instances: Sequence[Instance], region: str, user: str | None) -> str:
    """Entries to append to nodes.toml; what could not be found out is said in comments."""
    lines: list[str] = []
    for instance, name in zip(instances, _names(instances), strict=True):
        lines += ["[[node]]", *_entry(instance, name, region, user), ""]
    return "\n".join(lines)


def _names(instances: Sequence[Instance]) -> Iterator[str]:
    """Fit for an inventory, and each once."""
    taken: set[str] = set()
    for one in instances:
        name = _UNFIT.sub("-", one.name).strip("-._")[:64] or one.id
        yield one.id if name in taken else name
        taken.add(name)


def _entry(instance: Instance, name: str, region: str, user: str | None) -> Iterator[str]:
    bought = "spot" if instance.is_spot else "on demand"
    yield f"name = {json.dumps(name)}  # {instance.id}, {instance.kind}, {bought}, {region}"
    yield f"host = {json.dumps(instance.host)}"
    if user:
        yield f"user = {json.dumps(user)}"
    if instance.host_key:
        yield f"host_key = {json.dumps(instance.host_key)}  # as its console shows it"
    else:
        yield "# no host key on its console, or not yet: hadar nodes trust"
    if gpus := gpus_of(instance.kind):
        model, count = gpus
        listed = ", ".join([f"{{ model = {json.dumps(model)} }}"] * count)
        yield f"gpus = [{listed}]"
    price = price_of(instance.kind, region)
    if price is None:
        yield "# price_per_hour = ?  # not in hadar's table"
    elif instance.is_spot:
        yield f"price_per_hour = {price}  # on demand, as of {PRICED_ON}; spot is less"
    else:
        yield f"price_per_hour = {price}  # as of {PRICED_ON}"
