"""``hadar nodes aws``: entries of the inventory from instances that run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hadar_cli.cli.options import stderr
from hadar_cli.errors import InputError


def aws(
    tag: Annotated[
        str,
        typer.Option("--tag", metavar="KEY=VALUE", help="Which instances: those with this tag."),
    ],
    region: Annotated[
        str | None,
        typer.Option(metavar="REGION", help="Where, if not where AWS is configured for."),
    ] = None,
    user: Annotated[
        str | None, typer.Option(metavar="NAME", help="The login there, such as ubuntu.")
    ] = None,
    append: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Add them to this inventory, not to stdout.")
    ] = None,
) -> None:
    """Write inventory entries for running EC2 instances: GPUs, prices and host keys included."""
    from hadar_cli.aws.discovery import as_toml, find_instances
    from hadar_cli.config.inventory import nodes_of
    from hadar_cli.config.strict_toml import parse_toml

    key, equals, value = tag.partition("=")
    if not key or not equals:
        raise InputError(f"{tag!r} is no tag", field="--tag", fix="write it like Project=lab")
    where, instances = find_instances(key, value, region)
    text = as_toml(instances, where, user)
    before = append.read_text() if append and append.exists() else ""
    whole = f"{before.rstrip()}\n\n{text}" if before.strip() else text
    nodes_of(parse_toml(whole, str(append or "what AWS tells")))  # what it writes, it can read
    if append:
        append.write_text(whole)
        stderr().print(f"{append}: {len(instances)} added; see: hadar check -n {append}")
    else:
        print(text, end="")
