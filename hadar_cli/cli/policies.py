"""``hadar policies``: who may decide what trains where."""

from __future__ import annotations

import dataclasses
import inspect
from typing import TYPE_CHECKING

from hadar_cli.cli.options import AsJson, print_json, stdout

if TYPE_CHECKING:
    from hadar_cli.cli.records import PolicyOutline


def policies(as_json: AsJson = False) -> None:
    """List the scheduling policies and their fields."""
    known = _describe_all()
    if as_json:
        print_json([dataclasses.asdict(policy) for policy in known])
        return
    console = stdout()
    for policy in known:
        console.print(policy.name, style="bold")
        console.print(f"    {policy.about}")
        for field in policy.fields:
            console.print(f"    {field.name}: {field.type} = {field.default}")
    console.print("\nChoose one in the mix (policy: NAME), or with --policy NAME:field=value,...")


def _describe_all() -> list[PolicyOutline]:
    from hadar_cli.cli.records import PolicyField, PolicyOutline
    from hadar_cli.core.policies import registry

    described = []
    for name in registry.names():
        policy = registry.find(name)
        about = _first_sentence(inspect.getdoc(inspect.getmodule(policy)) or "")
        fields = tuple(
            PolicyField(f.name, type(f.default).__name__, f.default)
            for f in dataclasses.fields(policy)
        )
        described.append(PolicyOutline(name, about, fields))
    return described


def _first_sentence(text: str) -> str:
    """The first sentence of a docstring, on one line."""
    paragraph = " ".join(text.partition("\n\n")[0].split())
    return paragraph.partition(". ")[0]
