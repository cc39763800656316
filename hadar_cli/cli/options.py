"""What several commands share: their options, the files they read, the ways they print."""

from __future__ import annotations

import json
import sys
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hadar_cli.errors import HadarError, InputError, nearest

if TYPE_CHECKING:
    from rich.console import Console

    from hadar_cli.config.settings import Channel
    from hadar_cli.core.model import Device, Mix, Node
    from hadar_cli.observers.catalog import Choice
    from hadar_cli.visits.profile_cache import Cached


def flag(name: str, about: str, **options: Any) -> Any:
    """An option without a value, shown as such in the help."""
    return typer.Option(name, metavar="", help=about, **options)


NodesFile = Annotated[
    Path, typer.Option("--nodes", "-n", metavar="FILE", help="The inventory of machines.")
]
RunsDir = Annotated[
    Path, typer.Option("--runs-dir", metavar="DIR", help="Where runs keep their state and models.")
]
AsJson = Annotated[bool, flag("--json", "Print JSON, and nothing else, on stdout.")]
Timeout = Annotated[
    float,
    typer.Option(
        "--timeout", metavar="SECONDS", min=1, help="How long to wait for a machine's first answer."
    ),
]
Observe = Annotated[
    list[str] | None,
    typer.Option(
        "--observe",
        metavar="NAME[:field=value,...]",
        help="Give its curves to tensorboard, wandb or mlflow while it runs.",
    ),
]
Notify = Annotated[
    list[str] | None,
    typer.Option(
        "--notify",
        metavar="WAY",
        help="Tell of its end, trouble, promotions: desktop, command:WORDS, webhook:FILE.",
    ),
]
NoLive = Annotated[bool, flag("--no-live", "Plain lines in place of the live view.")]

DEFAULT_NODES = Path("nodes.toml")
DEFAULT_RUNS = Path("runs")

_PIPE_WIDTH = 120  # of tables that no terminal limits
_PLAIN: dict[str, Any] = {"highlight": False, "markup": False}  # what is printed is data


def read_inventory(path: Path) -> tuple[Node, ...]:
    """The enabled nodes of ``path``, with the GPUs that ``hadar profile nodes`` found."""
    from hadar_cli.visits.profile_cache import fill

    return fill(read_enabled(path), cached_profile(path))


def read_enabled(path: Path) -> tuple[Node, ...]:
    """The enabled nodes of ``path`` as it lists them."""
    from hadar_cli.config.inventory import read_nodes

    fix = "hadar init writes a starter; -n FILE names another" if path == DEFAULT_NODES else None
    require_file(path, fix)
    return tuple(node for node in read_nodes(path) if node.enabled)


def cached_profile(path: Path) -> Cached:
    """What is known of the inventory's machines; a damaged file costs a warning only."""
    from hadar_cli.visits.profile_cache import load

    try:
        return load(path)
    except InputError as error:
        stderr().print(f"warning: {error}\n  fix: {error.fix}")
        return {}


def require_file(path: Path, fix: str | None = None) -> None:
    """Refuses a file that is not there, naming the nearest one beside it."""
    if path.exists():
        return
    beside = path.parent.glob(f"*{path.suffix}") if path.parent.is_dir() else ()
    hint = nearest(path.name, [other.name for other in beside])
    if hint:
        fix = f"did you mean {path.parent / hint}?"
    raise InputError("there is no such file", file=str(path), fix=fix or "check the path")


def preset_note(mix: Mix, devices: list[Device]) -> str | None:
    """What ``preset: auto`` came to, if a job of the mix may have used it."""
    from hadar_cli.core.model import are_accelerators

    real = are_accelerators(devices)
    taken = "paper" if real else "tiny"
    if not any(job.launch.workload and job.launch.preset == taken for job in mix.jobs):
        return None
    if real:
        return "preset auto: the paper's models, as every device is a GPU"
    return "preset auto: tiny models on synthetic data, as not every device is a GPU"


def observers(words: list[str] | None) -> list[Choice]:
    """What ``--observe`` names, with its library there."""
    from hadar_cli.observers.catalog import parse, require_installed

    choices = parse(words or [], "--observe")
    for choice in choices:
        require_installed(choice)
    return choices


def channels(words: list[str] | None) -> list[Channel]:
    """What ``--notify`` names, and the user's settings."""
    from hadar_cli.config.settings import parse_channel, read_channels, settings_path

    return [*read_channels(settings_path()), *map(parse_channel, words or [])]


def finite(value: float | None) -> float | None:
    """Neither ``nan`` nor ``inf``, which pass as numbers and every limit."""
    if value is not None and not isfinite(value):
        raise typer.BadParameter(f"{value} is not a finite number.")
    return value


def print_json(content: Any) -> None:
    print(json.dumps(content, indent=2))


def stdout() -> Console:
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else _PIPE_WIDTH, **_PLAIN)


def stderr() -> Console:
    from rich.console import Console

    return Console(stderr=True, soft_wrap=True, **_PLAIN)


def can_show_live() -> bool:
    """Whether stdout is a terminal on which one can paint."""
    return sys.stdout.isatty() and not stdout().is_dumb_terminal


def complain(node: Node, error: Exception) -> bool:
    """Says what went wrong on one machine; always True, for it failed."""
    from hadar_cli.report.format import plain

    what = f"no answer within {error}" if isinstance(error, TimeoutError) else str(error)
    stderr().print(f"{node.name}: {plain(what, 300)}")
    if isinstance(error, HadarError) and error.fix:
        stderr().print(f"    fix: {plain(error.fix, 300)}")
    return True
