"""Asks EC2 which instances run and what their consoles show: as entries of the inventory."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from hadar_cli.aws.account import Account, input_errors
from hadar_cli.aws.machines import address_of, shown_host_key
from hadar_cli.core.gpu_table import PRICED_ON, gpus_of, price_of
from hadar_cli.errors import InputError

_UNFIT = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class Instance:
    """One that runs."""

    id: str
    name: str
    kind: str
    host: str
    is_spot: bool
    host_key: str | None  # as its console shows it; None: it does not, or not yet


def find_instances(key: str, value: str, region: str | None) -> tuple[str, list[Instance]]:
    """The region, and the running instances with that tag; InputError with what to do otherwise."""
    with input_errors():
        client = Account(region, None, None).ec2
        wanted = [
            {"Name": f"tag:{key}", "Values": [value]},
            {"Name": "instance-state-name", "Values": ["running"]},
        ]
        found = [
            _read(client, raw)
            for page in client.get_paginator("describe_instances").paginate(Filters=wanted)
            for reservation in page["Reservations"]
            for raw in reservation["Instances"]
        ]
        region = str(client.meta.region_name)
    if not found:
        raise InputError(
            f"no instance that runs in {region} has the tag {key}={value}",
            field="--tag",
            fix="see `aws ec2 describe-instances`; --region names another region",
        )
    return region, sorted(found, key=lambda one: one.name)


def _read(client: Any, raw: dict[str, Any]) -> Instance:
    tags = {tag["Key"]: tag["Value"] for tag in raw.get("Tags", ())}
    instance = str(raw["InstanceId"])
    return Instance(
        id=instance,
        name=tags.get("Name") or instance,
        kind=str(raw["InstanceType"]),
        host=address_of(raw),
        is_spot=raw.get("InstanceLifecycle") == "spot",
        host_key=shown_host_key(client, instance),
    )


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
