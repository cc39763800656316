"""The observers by name: what each may be told, and what it needs."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hadar_cli.errors import InputError, unknown

if TYPE_CHECKING:
    from hadar_cli.observers.sink import Sink, Subject


@dataclass(frozen=True, slots=True)
class Kind:
    """``package`` is what the extra of the same name as the observer brings."""

    package: str
    fields: Mapping[str, str]


KINDS: dict[str, Kind] = {
    "tensorboard": Kind("tensorboard", {"dir": "the folder for event files"}),
    "wandb": Kind(
        "wandb",
        {
            "project": "the project; the mix's name by default",
            "entity": "whose project it is",
            "mode": "offline (by default) or online",
            "dir": "the folder for what wandb keeps here",
        },
    ),
    "mlflow": Kind(
        "mlflow",
        {
            "uri": "where it tracks; a folder beside the runs by default",
            "experiment": "the experiment; the mix's name by default",
        },
    ),
}


@dataclass(frozen=True, slots=True)
class Choice:
    """An observer as a user asks for it: ``wandb:project=vision,mode=online``."""

    name: str
    fields: Mapping[str, str]


def parse(words: Iterable[str], option: str) -> list[Choice]:
    """The observers asked for, each checked; ``option`` is where they were named."""
    chosen: dict[str, Choice] = {}
    for word in words:
        choice = _parse(word, option)
        if choice.name in chosen:
            raise InputError(f"{choice.name} is named twice", field=option, fix="name it once")
        chosen[choice.name] = choice
    return list(chosen.values())


def _parse(word: str, option: str) -> Choice:
    name, _, rest = word.strip().partition(":")
    if name not in KINDS:
        raise unknown(f"there is no observer {name!r}", name, KINDS, field=option)
    fields: dict[str, str] = {}
    for part in filter(None, rest.split(",")):
        field, equals, value = (each.strip() for each in part.partition("="))
        if not equals or not value:
            fix = f"write it like {name}:{next(iter(KINDS[name].fields))}=VALUE"
            raise InputError(f"{part!r} is not field=value", field=option, fix=fix)
        if field not in KINDS[name].fields:
            raise unknown(f"{name} has no {field!r}", field, KINDS[name].fields, field=option)
        fields[field] = value
    if fields.get("mode", "offline") not in ("offline", "online"):
        raise unknown(
            f"{fields['mode']!r} is no mode", fields["mode"], ("offline", "online"), field=option
        )
    return Choice(name, fields)


def require_installed(choice: Choice) -> None:
    spec = importlib.util.find_spec(KINDS[choice.name].package)
    if spec is None or spec.origin is None:  # a folder of that name, as wandb leaves, is no package
        raise InputError(
            f"{choice.name} is not installed beside hadar",
            field=choice.name,
            fix=f"pip install 'hadar[{choice.name}]'",
        )


def open_sink(choice: Choice, subject: Subject) -> Sink:
    """Imports the library, which takes a second or more."""
    match choice.name:
        case "tensorboard":
            from hadar_cli.observers.tensorboard import TensorBoard

            return TensorBoard(subject, choice.fields)
        case "wandb":
            from hadar_cli.observers.wandb import Wandb

            return Wandb(subject, choice.fields)
    from hadar_cli.observers.mlflow import Mlflow

    return Mlflow(subject, choice.fields)
