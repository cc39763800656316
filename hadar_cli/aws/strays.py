"""Instances that carry a run's tags, of runs that this computer does not know.

Somebody else's head may be at work on them, with the same account: they are listed, and ended only
by their run's name.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from hadar_cli.aws.account import Account, input_errors
from hadar_cli.aws.launching import NODE, RUN, TOKEN, name_of
from hadar_cli.core.model import AwsRequest, Node
from hadar_cli.nodes.wire import said

_THERE = ("pending", "running")


@dataclass(frozen=True, slots=True)
class Stray:
    """One that is there, and costs."""

    id: str
    run: str
    node: str
    since: str
    is_ours: bool  # launched by hadar, so that its end is its end for good
    request: AwsRequest  # whose account it is in


def find_strays(nodes: Sequence[Node], known: Collection[str], run: str | None) -> list[Stray]:
    """In the accounts of these nodes; those with ``known`` tokens, or of other runs, are left out.

    Raises InputError where AWS does not answer.
    """
    requests = {(r.region, r.profile, r.config): r for node in nodes if (r := node.aws)}
    found = [stray for request in requests.values() for stray in _listed(request, known)]
    return [stray for stray in found if run in (None, stray.run)]


def _listed(request: AwsRequest, known: Collection[str]) -> Iterator[Stray]:
    filters = [
        {"Name": "tag-key", "Values": [TOKEN]},
        {"Name": "instance-state-name", "Values": list(_THERE)},
    ]
    with input_errors("aws"):
        pages = Account.of(request).ec2.get_paginator("describe_instances").paginate
        for page in pages(Filters=filters):
            for group in page["Reservations"]:
                for raw in group["Instances"]:
                    tags = {tag["Key"]: tag["Value"] for tag in raw.get("Tags", ())}
                    if tags[TOKEN] not in known:
                        yield _read(raw, tags, request)


def _read(raw: dict[str, Any], tags: dict[str, str], request: AwsRequest) -> Stray:
    run, node = tags.get(RUN, ""), tags.get(NODE, "")
    return Stray(
        id=str(raw["InstanceId"]),
        run=said(run),
        node=said(node),
        since=f"{raw['LaunchTime']:%Y-%m-%d %H:%M} UTC" if raw.get("LaunchTime") else "unknown",
        is_ours=tags.get("Name") == name_of(run, node),
        request=request,
    )


def end_strays(strays: Sequence[Stray]) -> None:
    """Terminates what hadar launched, stops all others; they lose hadar's tags."""
    with input_errors("aws"):
        for stray in strays:
            client = Account.of(stray.request).ec2
            if stray.is_ours:
                client.terminate_instances(InstanceIds=[stray.id])
            else:
                client.stop_instances(InstanceIds=[stray.id])
                tags = [{"Key": key} for key in (RUN, TOKEN, NODE)]
                client.delete_tags(Resources=[stray.id], Tags=tags)
