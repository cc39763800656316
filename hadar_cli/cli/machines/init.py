"""``hadar init``: a starter inventory and a starter mix."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hadar_cli.cli.options import flag
from hadar_cli.errors import InputError

_NODES = """\
#:schema ./nodes.schema.json
# The inventory: the machines that hadar may train on.
# These two stand-ins run on this computer at unequal speed, so that a first run needs no GPU.

[[node]]
name = "fast"
host = "local"              # this computer
emulate = { speed = 0.6 }   # paced to this share of one CPU core; leave it out for real machines

[[node]]
name = "slow"
host = "local"
emulate = { speed = 0.3 }

# A real machine with a GPU in it; the name of a known GPU is enough. Without `gpus`, `hadar
# profile nodes` asks the machine and keeps its answer beside this file, in nodes.profile.json.
#
# [[node]]
# name = "workstation"
# host = "local"
# gpus = [{ model = "RTX 3090" }]
"""

_MIX = """\
# yaml-language-server: $schema=mix.schema.json
# Two small jobs, trained together in about half a minute: hadar run mixes/quickstart.yaml

name: quickstart
slot_s: 5          # a round lasts this many seconds; then copies are merged and work is dealt anew
policy: hadare     # forks every job over all machines; `hadar policies` lists what there is
seed: 1

jobs:
  - workload: weather
    epochs: 2
  - workload: recommender
    epochs: 2

# Your own script, with the training API's five lines in it:
#
#  - script: train.py
#    steps: 1000
#    batch_size: 64
#    args: [--lr, "0.1"]
"""

_FILES = {"nodes.toml": _NODES, "mixes/quickstart.yaml": _MIX}
# Named in the first lines of the others: with them, editors complete and check.
_SCHEMAS = {"nodes.schema.json": "nodes", "mixes/mix.schema.json": "mix"}


def init(
    directory: Annotated[
        Path, typer.Argument(metavar="[DIR]", help="Where to write them.")
    ] = Path(),
    yes: Annotated[bool, flag("--yes", "Overwrite files that are there.")] = False,
) -> None:
    """Write a starter nodes.toml and mix."""
    taken = [name for name in _FILES if (directory / name).exists()]
    if taken and not yes:
        raise InputError(
            f"{directory / taken[0]} is already there",
            fix="--yes overwrites it; or name another directory: hadar init DIR",
        )
    from hadar_cli.config.schemas import text

    schemas = {name: text(kind) for name, kind in _SCHEMAS.items()}
    for name, content in {**_FILES, **schemas}.items():
        path = directory / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
        except OSError as error:
            raise InputError(f"cannot be written: {error.strerror}", file=str(path)) from error
        print(f"wrote {path}")
    there = f"cd {directory} && " if directory != Path() else ""
    print(f"next:  {there}hadar run mixes/quickstart.yaml")
