"""Asks EC2 which instances run, and what they show on their consoles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hadar_cli.aws.account import Account, input_errors
from hadar_cli.aws.console import shown_host_key
from hadar_cli.errors import InputError


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


def address_of(raw: dict[str, Any], private: bool = False) -> str:
    """Where an instance is reached; "" while it has no address."""
    public = () if private else ("PublicDnsName", "PublicIpAddress")
    hosts = (raw.get(name) for name in (*public, "PrivateIpAddress"))
    return str(next(filter(None, hosts), ""))


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
