"""What EC2 is told to launch an instance, and whether it would."""

from __future__ import annotations

from typing import Any

from hadar_cli.aws import dead_man_switch
from hadar_cli.aws.account import Account, code_of, input_errors
from hadar_cli.core.model import AwsRequest, Node
from hadar_cli.errors import InputError

RUN, TOKEN, NODE = "hadar:run", "hadar:token", "hadar:node"  # tags of every instance in use
_GONE = ("terminated", "shutting-down")
FOR_OTHERS = "runs already, for somebody else"
NOT_OURS = "stop it first, or list it as a [[node]]: hadar ends only what it started"


def name_of(run: str, node: str) -> str:
    """Of an instance that is made for a run."""
    return f"hadar {run} {node}"


def tags_of(request: AwsRequest, run: str, token: str, node: str) -> list[dict[str, str]]:
    """By these a head finds its instances again, and people find whose they are."""
    named = {"Name": name_of(run, node)} if request.is_ours else {}
    wanted = {**named, **request.tags, RUN: run, TOKEN: token, NODE: node}
    return [{"Key": key, "Value": value} for key, value in wanted.items()]


def template_of(client: Any, request: AwsRequest) -> tuple[dict[str, str], dict[str, Any]]:
    """How the request names its template, and what that says."""
    assert request.template
    key = "LaunchTemplateId" if request.template.startswith("lt-") else "LaunchTemplateName"
    named = {key: request.template}
    told = client.describe_launch_template_versions(**named, Versions=[request.version])
    versions = told["LaunchTemplateVersions"]
    if not versions:
        fix = "`aws ec2 describe-launch-template-versions` shows which there are"
        raise InputError(f"no version {request.version} of {request.template}", fix=fix)
    return {**named, "Version": request.version}, versions[0]["LaunchTemplateData"]


def launch(client: Any, request: AwsRequest, tags: list[dict[str, str]], **more: Any) -> Any:
    """RunInstances, of one; its shutdown is its end, whoever shuts it down."""
    named, template = template_of(client, request)
    wanted: dict[str, Any] = {
        "LaunchTemplate": named,
        "MinCount": 1,
        "MaxCount": 1,
        "InstanceInitiatedShutdownBehavior": "terminate",
        "TagSpecifications": [
            {"ResourceType": kind, "Tags": tags} for kind in ("instance", "volume")
        ],
    }
    ends_itself = dead_man_switch.script(60 * request.idle_minutes)
    if data := dead_man_switch.user_data(template.get("UserData"), ends_itself):
        wanted["UserData"] = data
    if request.type:
        wanted["InstanceType"] = request.type
    if request.spot:
        once = {"SpotInstanceType": "one-time", "InstanceInterruptionBehavior": "terminate"}
        wanted["InstanceMarketOptions"] = {"MarketType": "spot", "SpotOptions": once}
    return client.run_instances(**wanted, **more)


def has_switch(client: Any, request: AwsRequest) -> bool:
    """Whether what is launched ends by itself when no head is heard of."""
    _, template = template_of(client, request)
    return dead_man_switch.user_data(template.get("UserData"), "#!/bin/sh\n") is not None


def check_launch(node: Node) -> str:
    """What would be started, in words; InputError, with the fix, if AWS would not."""
    request = node.aws
    assert request
    field = f"node {node.name}"
    with input_errors(field):
        client = Account.of(request).ec2
        if request.instance:
            return _check_own(client, request, field)
        _check_dry(client, request, node.name)
        kind = request.type or template_of(client, request)[1].get("InstanceType", "")
    bought = "spot" if request.spot else "on demand"
    return f"{kind} of template {request.template}, {bought}, to be launched"


def _check_dry(client: Any, request: AwsRequest, name: str) -> None:
    """AWS checks rights and words so; whether there is room, it tells only in earnest."""
    from botocore.exceptions import ClientError  # type: ignore[import-untyped]

    try:
        launch(client, request, tags_of(request, "check", "check", name), DryRun=True)
    except ClientError as error:
        if code_of(error) != "DryRunOperation":
            raise


def _check_own(client: Any, request: AwsRequest, field: str) -> str:
    told = client.describe_instances(InstanceIds=[request.instance])
    [raw] = [one for group in told["Reservations"] for one in group["Instances"]]
    state, kind = raw["State"]["Name"], raw["InstanceType"]
    if state in _GONE:
        raise InputError(f"{request.instance} is {state}", field=field, fix="name another one")
    if state == "running" and TOKEN not in {tag["Key"] for tag in raw.get("Tags", ())}:
        raise InputError(f"{request.instance} {FOR_OTHERS}", field=field, fix=NOT_OURS)
    if request.type and request.type != kind:
        fix = f'write type = "{kind}"'
        raise InputError(f"{request.instance} is of type {kind}", field=field, fix=fix)
    return f"{kind} {request.instance}, {state}" + ("" if state == "running" else ", to be started")
