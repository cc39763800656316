"""All policies by name: our own, and those that installed packages bring."""

from __future__ import annotations

import dataclasses
from functools import cache
from importlib.metadata import entry_points
from typing import Any

from hadar_cli.core.model import PolicyChoice
from hadar_cli.core.policies import hadare  # noqa: F401 - policies register themselves
from hadar_cli.core.policies.baselines import gavel, tiresias, yarn_cs  # noqa: F401
from hadar_cli.core.policies.gangs import hadar  # noqa: F401
from hadar_cli.core.policies.gangs.scheduler import GangScheduler
from hadar_cli.core.policies.port import REGISTERED, Policy, register
from hadar_cli.errors import HadarError, InputError, unknown

ENTRY_POINTS = "hadar.policies"  # where installed packages offer policies of their own


def names() -> list[str]:
    _load_installed()
    return sorted(REGISTERED)


def find(name: str) -> type[Any]:
    """The class of a policy that exists."""
    _load_installed()
    return REGISTERED[name]


def create(choice: PolicyChoice, file: str | None = None) -> Policy:
    """The chosen policy with its fields set; unknown names and fields are the user's to mend."""
    try:
        made = _create(choice)
    except InputError as error:  # a policy knows its values, not where they stand
        error.file, error.line = file, choice.line
        raise
    if hasattr(made, "allocate"):
        return GangScheduler(made)
    forking: Policy = made
    return forking


def _create(choice: PolicyChoice) -> Any:
    _load_installed()
    if choice.name not in REGISTERED:
        problem = f"there is no policy {choice.name!r}"
        raise unknown(problem, choice.name, sorted(REGISTERED), field="policy")
    policy = REGISTERED[choice.name]
    known = {f.name: f for f in dataclasses.fields(policy)}
    for name, value in choice.fields.items():
        field = f"policy.{name}"
        if name not in known:
            problem = f"policy {choice.name!r} has no field {name!r}"
            fix = f"its fields are: {', '.join(known) or 'none'}"
            raise unknown(problem, name, known, field=field, fix=fix)
        default = known[name].default
        if type(value) not in ((float, int) if type(default) is float else (type(default),)):
            problem = f"{value!r} is not a {type(default).__name__}"
            raise InputError(problem, field=field, fix=f"its default is {default!r}")
    return policy(**choice.fields)


@cache
def _load_installed() -> None:
    for entry in entry_points(group=ENTRY_POINTS):
        try:
            register(entry.load())
        except Exception as error:  # other people's code: anything may be wrong with it
            raise HadarError(
                f"the policy {entry.name!r} of {entry.value!r} cannot be loaded: {error!r}",
                fix="mend or uninstall the package that brings it",
            ) from error
