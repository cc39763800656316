"""Asks EC2 which instances run, and what they show on their consoles."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from hadar_cli.errors import InputError

# cloud-init prints them so at the first boot.
_KEYS = re.compile(r"-----BEGIN SSH HOST KEY KEYS-----(.*?)-----END SSH HOST KEY KEYS-----", re.S)
_KEY = re.compile(r"((?:ssh-(?:ed25519|rsa)|ecdsa-sha2-nistp(?:256|384|521)) [A-Za-z0-9+/=]+)")
_PREFERRED = ("ssh-ed25519", "ecdsa-sha2", "ssh-rsa")


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
    with _as_input_errors():
        boto3 = _boto3()
        client = boto3.client("ec2", region_name=region)
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
    hosts = (raw.get(name) for name in ("PublicDnsName", "PublicIpAddress", "PrivateIpAddress"))
    instance = str(raw["InstanceId"])
    told = client.get_console_output(InstanceId=instance).get("Output", "")
    return Instance(
        id=instance,
        name=tags.get("Name") or instance,
        kind=str(raw["InstanceType"]),
        host=str(next(filter(None, hosts), "")),
        is_spot=raw.get("InstanceLifecycle") == "spot",
        host_key=read_host_key(told),
    )


def read_host_key(console: str) -> str | None:
    """The best of the keys that cloud-init printed last; boto3 has decoded the output, or not."""
    for text in (console, _decoded(console)):
        if blocks := _KEYS.findall(text):
            keys = _KEY.findall(blocks[-1])
            ranked = [key for kind in _PREFERRED for key in keys if key.startswith(kind)]
            return ranked[0] if ranked else None
    return None


def _decoded(text: str) -> str:
    try:
        return base64.b64decode(text, validate=True).decode(errors="replace")
    except (binascii.Error, ValueError):
        return ""


def _boto3() -> Any:
    try:
        import boto3  # type: ignore[import-untyped]
    except ImportError:
        fix = "pip install 'hadar[aws]'"
        raise InputError("asking AWS needs boto3, which is not installed", fix=fix) from None
    return boto3


_FIXES = {
    "NoCredentialsError": "run `aws configure`, or set AWS_PROFILE or AWS_ACCESS_KEY_ID",
    "NoRegionError": "name a region: --region us-east-1",
    "ProfileNotFound": "`aws configure list-profiles` shows what AWS_PROFILE may be",
    "EndpointConnectionError": "see whether the region is right and the network is up",
    "ClientError": "see whether your account may call DescribeInstances there",
}


@contextmanager
def _as_input_errors() -> Iterator[None]:
    """The one place where botocore's errors become ours."""
    _boto3()
    from botocore.exceptions import (  # type: ignore[import-untyped]
        BotoCoreError,
        ClientError,
    )

    try:
        yield
    except (BotoCoreError, ClientError) as error:
        fix = _FIXES.get(type(error).__name__, "see whether `aws sts get-caller-identity` works")
        raise InputError(f"AWS: {error}", fix=fix) from error
