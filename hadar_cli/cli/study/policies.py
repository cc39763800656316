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
    from rich.padding import Padding

    console = stdout()
    for policy in known:
        console.print(policy.name, style="bold")
        console.print(Padding(policy.about, (0, 0, 0, 4), expand=False))
        for field in policy.fields:
            console.print(f"    {field.name}: {field.type} = {field.default}")
    console.print("\nChoose one in the mix (policy: NAME), or with --policy NAME:field=value,...")


def _describe_all() -> list[PolicyOutline]:
    from hadar_cli import policies
    from hadar_cli.cli.records import PolicyField, PolicyOutline

    described = []
    for name in policies.names():
        policy = policies.find(name)
        about = _first_sentence(inspect.getdoc(inspect.getmodule(policy)) or "")
        own = _first_sentence(policy.__doc__ or "")
        if "`" not in own and not own.startswith(f"{policy.__name__}("):  # what dataclasses write
            about = f"{about} {own}"  # one of several policies of its module
        fields = tuple(
            PolicyField(f.name, type(f.default).__name__, f.default)
            for f in dataclasses.fields(policy)
        )
        described.append(PolicyOutline(name, about, fields))
    return described


def _first_sentence(text: str) -> str:
    """The first sentence of a docstring, on one line."""
    paragraph = " ".join(text.partition("\n\n")[0].split())
    return f"{paragraph.partition('. ')[0].rstrip('.')}."
