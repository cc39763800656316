"""Policies as the command line names them: ``--policy hadare:stickiness=0.1,gavel``."""

from __future__ import annotations

from typing import Any

from hadar_cli import policies
from hadar_cli.core.model import Mix, PolicyChoice
from hadar_cli.errors import InputError


def parse_policy(text: str) -> PolicyChoice:
    """``hadare:stickiness=0.1,crumb_s=2`` as a choice; the registry checks names and types."""
    name, _, rest = text.partition(":")
    fields: dict[str, Any] = {}
    for part in filter(None, rest.split(",")):
        field, equals, value = part.partition("=")
        if not equals:
            raise InputError(f"{part!r} is not field=value", field="--policy")
        fields[field.strip()] = _scalar(value.strip())
    return PolicyChoice(name.strip(), fields)


def _scalar(word: str) -> bool | int | float | str:
    if word in ("true", "false"):
        return word == "true"
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            continue
    return word


def choose_policies(text: str | None, mix: Mix) -> list[tuple[str, PolicyChoice]]:
    """The policies asked for, checked, with the labels they go by."""
    if text is None:
        is_trace = mix.source is not None and not mix.source.endswith((".yaml", ".yml"))
        chosen = [("hadar", PolicyChoice("hadar"))]
        if not is_trace:
            chosen = [(mix.policy.name, mix.policy)]
    elif text.strip() == "all":
        chosen = [(name, PolicyChoice(name)) for name in policies.names()]
    else:
        chosen = [(one, parse_policy(one)) for one in split_policies(text)]
    for _, choice in chosen:
        policies.create(choice)
    return chosen


def split_policies(text: str) -> list[str]:
    """``hadar:reserve=0,prices=paper,gavel`` is ``hadar:reserve=0,prices=paper`` and ``gavel``."""
    found: list[str] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, _ = part.partition("=")
        if equals and ":" not in name and found:
            found[-1] += f",{part}"
        else:
            found.append(part)
    return found
