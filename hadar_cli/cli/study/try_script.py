"""``hadar try``: whether a script, or a job of a mix, can be forked, merged and resumed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hadar_cli.cli.options import AsJson, print_json, require_file, stdout
from hadar_cli.errors import InputError

if TYPE_CHECKING:
    from rich.console import Group

    from hadar_cli.core.model import Launch
    from hadar_cli.trial.words import Check

_MARKS = {"passed": ("✓", "green"), "warned": ("·", "yellow"), "failed": ("✗", "bold red")}
_NAMES_WIDE = 36
_MIXES = (".yaml", ".yml")
_HOW = "hadar try SCRIPT -- ARGS, or hadar try MIX --job NAME"


def try_script(
    script: Annotated[
        Path, typer.Argument(metavar="SCRIPT|MIX", help="A training script, or a mix with one.")
    ],
    args: Annotated[
        list[str] | None, typer.Argument(metavar="[-- ARGS]", help="The script's own arguments.")
    ] = None,
    job: Annotated[
        str | None, typer.Option(metavar="NAME", help="Which job, where the mix has several.")
    ] = None,
    steps: Annotated[
        int, typer.Option(metavar="N", min=2, help="Steps of each copy in each round.")
    ] = 8,
    patience_s: Annotated[
        float,
        typer.Option(
            "--patience", metavar="SECONDS", min=1, help="How long to wait for a next step."
        ),
    ] = 60.0,
    as_json: AsJson = False,
) -> None:
    """Try a training script on this machine, and say what to change before a run.

    It is run in copies of its folder: by hand, then under hadar with two copies, a merge, an
    interruption and a resume, and to its end. Ends with 0 if nothing is wrong, else 2.
    """
    from hadar_cli.trial.findings import Patience
    from hadar_cli.trial.trial import Trial
    from hadar_cli.trial.words import Status

    require_file(script)
    launch = _launch(script, job, args or ())
    console = stdout()
    if not as_json:
        told = f", {launch.code}" if script.suffix in _MIXES else ""
        console.print(f"trying {script}{told}", highlight=False)
    trial = Trial(
        launch,
        (lambda check: None) if as_json else (lambda check: console.print(_line(check))),
        steps,
        Patience(start_s=patience_s),
    )
    checks = trial.run()
    failed = [check for check in checks if check.status is Status.FAILED]
    if as_json:
        _print_json(checks, failed, trial.unseen)
    else:
        console.print(f"  not looked at: {'; '.join(trial.unseen)}", style="dim", highlight=False)
        console.print(_summary(script, launch, failed), highlight=False)
    raise typer.Exit(InputError.exit_code if failed else 0)


def _print_json(checks: list[Check], failed: list[Check], unseen: Sequence[str]) -> None:
    import msgspec

    found = msgspec.to_builtins(checks)
    print_json({"ok": not failed, "checks": found, "not_looked_at": unseen})


def _launch(path: Path, wanted: str | None, args: list[str] | tuple[str, ...]) -> Launch:
    """How the script is started: as it is, or as a job of a mix says."""
    from hadar_cli.trial.trial import launch_of

    if path.suffix not in _MIXES:
        if wanted:
            raise InputError(f"{path} is a script, of which there is no job '{wanted}'", fix=_HOW)
        return launch_of(path, args)
    from hadar_cli.config.mixes import read_mix

    if args:
        raise InputError(
            "a job's arguments are in its mix", fix=f"write them there as 'args'; {_HOW}"
        )
    jobs = {each.name: each for each in read_mix(path).jobs}
    own = [name for name, each in jobs.items() if each.launch.code]
    if wanted is None and len(own) == 1:
        (wanted,) = own
    if wanted not in own:
        problem = f"which job? {path} has {', '.join(own) or 'none with a script of its own'}"
        if wanted is not None:
            why = "is one of hadar's own workloads" if wanted in jobs else "is not there"
            problem = f"{path}: job '{wanted}' {why}"
        raise InputError(problem, fix=f"name one with --job: {', '.join(own)}" if own else _HOW)
    return jobs[wanted].launch


def _line(check: Check) -> Group:
    from rich.console import Group
    from rich.padding import Padding
    from rich.text import Text

    from hadar_cli.report.format import plain

    mark, style = _MARKS[check.status.value]
    line = Text.assemble("  ", (mark, style), f" {check.name:<{_NAMES_WIDE}}")
    line.append(plain(check.what, 300), "" if check.fix else "dim")
    first, *printed = check.fix.splitlines() or [""]
    fix = Text.assemble(("fix: ", "green"), first) if first else None
    log = [Text(f"| {plain(text, 200)}", "dim") for text in printed]
    return Group(line, *(Padding(text, (0, 0, 0, 4), expand=False) for text in (fix, *log) if text))


def _summary(path: Path, launch: Launch, failed: list[Check]) -> str:
    name = Path(launch.script).name if launch.script else launch.code
    if failed:
        count = "one thing" if len(failed) == 1 else f"{len(failed)} things"
        return f"{name} is not ready: {count} to mend"
    if path.suffix in _MIXES:
        return f"{name} is ready: hadar run {path}"
    return f"{name} is ready: name it as `script` in a mix, then hadar run"
