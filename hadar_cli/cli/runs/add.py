"""``hadar add RUN MIX``: more jobs for a run, whether or not somebody drives it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hadar_cli.cli.completion import ThisRun
from hadar_cli.cli.options import (
    DEFAULT_RUNS,
    AsJson,
    RunsDir,
    flag,
    preset_note,
    require_file,
    stderr,
)

if TYPE_CHECKING:
    from hadar_cli.core.model import Mix


def add(
    run: ThisRun,
    mix: Annotated[Path, typer.Argument(metavar="MIX", help="The jobs to add, a YAML file.")],
    rename: Annotated[bool, flag("--rename", "Number jobs whose names are taken.")] = False,
    runs_dir: RunsDir = DEFAULT_RUNS,
    as_json: AsJson = False,
) -> None:
    """Add the jobs of a mix to a run.

    A run that is stopped takes them up when it is resumed.
    """
    from hadar_cli.cli.requests import ask, require_grantable
    from hadar_cli.cli.uploads import lines, uploads
    from hadar_cli.config.mixes import read_mix
    from hadar_cli.core.estimates.suitability import require_room
    from hadar_cli.core.model import are_accelerators, devices_of
    from hadar_cli.runs.requests import AddJobs
    from hadar_cli.runs.store import find_run

    store = find_run(runs_dir, run)
    facts = store.facts
    devices = devices_of(facts.nodes)
    require_file(mix)
    batch = read_mix(mix, accelerators=are_accelerators(devices))
    require_room(batch.jobs, devices, str(mix))
    request = AddJobs(batch.jobs, renames=rename)
    require_grantable(store, request)
    for note in (preset_note(batch, devices), _left_out(batch, facts.mix)):
        if note:
            stderr().print(note)
    for line in lines(batch, uploads(batch)):
        stderr().print(line)
    ask(store, request, as_json)


def _left_out(added: Mix, running: Mix) -> str | None:
    """What the mix says for all its jobs does not come with them."""
    named = ("policy", "merge", "seed")
    others = [name for name in named if getattr(added, name) != getattr(running, name)]
    if not added.chooses_slot and added.slot_s != running.slot_s:
        others.insert(0, "slot_s")
    if not others:
        return None
    return f"the run keeps its own {', '.join(others)}; the mix's are left out"
