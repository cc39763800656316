"""``hadar try SCRIPT``: whether a script can be forked, merged, interrupted and resumed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hadar_cli.cli.options import AsJson, print_json, require_file, stdout
from hadar_cli.errors import InputError

if TYPE_CHECKING:
    from rich.console import Group

    from hadar_cli.adapters.trial_words import Check

_MARKS = {"passed": ("✓", "green"), "warned": ("·", "yellow"), "failed": ("✗", "bold red")}
_NAMES_WIDE = 36


def try_script(
    script: Annotated[Path, typer.Argument(metavar="SCRIPT", help="A training script.")],
    args: Annotated[
        list[str] | None, typer.Argument(metavar="[-- ARGS]", help="What the script is given.")
    ] = None,
    steps: Annotated[
        int, typer.Option(metavar="N", min=2, help="Of each copy, in each round.")
    ] = 8,
    patience_s: Annotated[
        float,
        typer.Option("--patience", metavar="SECONDS", min=1, help="For a copy's first steps."),
    ] = 60.0,
    as_json: AsJson = False,
) -> None:
    """Try a training script on this machine: two rounds of two copies, a merge, an interruption
    and a resume. Says what is wrong with it and what to change; ends with 0 if nothing is, else 2.
    """
    from hadar_cli.adapters.trial import Patience, Trial
    from hadar_cli.adapters.trial_words import Status

    require_file(script)
    console = stdout()
    if not as_json:
        console.print(f"trying {script}")
    trial = Trial(
        script,
        args or (),
        (lambda check: None) if as_json else (lambda check: console.print(_line(check))),
        steps,
        Patience(start_s=patience_s),
    )
    checks = trial.run()
    failed = [check for check in checks if check.status is Status.FAILED]
    if as_json:
        print_json({"ok": not failed, "checks": [_as_json(check) for check in checks]})
    else:
        console.print(_summary(script, failed))
    raise typer.Exit(InputError.exit_code if failed else 0)


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


def _summary(script: Path, failed: list[Check]) -> str:
    if not failed:
        return f"{script.name} is ready: name it as `script` in a mix, then hadar run"
    count = "one thing" if len(failed) == 1 else f"{len(failed)} things"
    return f"{script.name} is not ready: {count} to mend"


def _as_json(check: Check) -> dict[str, str]:
    return {
        "name": check.name,
        "status": check.status.value,
        "what": check.what,
        "fix": check.fix,
    }
