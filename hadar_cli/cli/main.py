"""The command line's entry: finds the command, and turns errors into messages and exit codes."""

from __future__ import annotations

import sys
import traceback
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from hadar_cli import __version__
from hadar_cli.cli.examples import epilog
from hadar_cli.cli.machines import (
    attach,
    aws,
    check,
    clean,
    init,
    nodes,
    profile,
    schema,
    selftest,
    trust,
)
from hadar_cli.cli.options import flag
from hadar_cli.cli.runs import add, cancel, explain, logs, queue, report, resume, run, status
from hadar_cli.cli.study import policies, replay, simulate, try_script
from hadar_cli.errors import HadarError

_SWITCHES = ("help", "install_completion", "show_completion")


class _Command(TyperCommand):
    """Shows --help without a type."""

    def get_help_option(self, ctx: Any) -> Any:
        return _without_type(super().get_help_option(ctx))


class _InOrder(TyperGroup):
    """Lists the user's three commands first, whether they are commands or groups."""

    def list_commands(self, ctx: Any) -> list[str]:
        first = ["run", "profile", "report"]
        return first + [name for name in super().list_commands(ctx) if name not in first]

    def get_params(self, ctx: Any) -> list[Any]:
        return [_without_type(param) for param in super().get_params(ctx)]


def _without_type(option: Any) -> Any:
    """A switch as the help shows it: Typer would call it a <bool>."""
    if getattr(option, "is_flag", False) or option.name in _SWITCHES:
        option.metavar = ""
    return option


# Command modules import what they need when called: `hadar --help` must not wait for numpy.
app = typer.Typer(
    name="hadar",
    cls=_InOrder,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)

_shows_tracebacks = False
_TRAIN, _RUNS, _MACHINES, _MORE = "Train and look", "Runs", "Machines", "More"
app.command("run", rich_help_panel=_TRAIN)(run.run)
app.add_typer(profile.app, name="profile", rich_help_panel=_TRAIN)
app.command("report", rich_help_panel=_TRAIN)(report.report)
app.command("status", rich_help_panel=_RUNS)(status.status)
app.command("watch", rich_help_panel=_RUNS)(status.watch)
app.command("explain", rich_help_panel=_RUNS)(explain.explain)
app.command("logs", rich_help_panel=_RUNS)(logs.logs)
app.command("add", rich_help_panel=_RUNS)(add.add)
app.command("pause", rich_help_panel=_RUNS)(queue.pause)
app.command("continue", rich_help_panel=_RUNS)(queue.continue_)
# So that -5 is a number and no option.
_NUMBERS = {"ignore_unknown_options": True}
app.command("priority", rich_help_panel=_RUNS, context_settings=_NUMBERS)(queue.priority)
app.command("close", rich_help_panel=_RUNS)(queue.close)
app.command("cancel", rich_help_panel=_RUNS)(cancel.cancel)
app.command("resume", rich_help_panel=_RUNS)(resume.resume)
app.command("check", rich_help_panel=_MACHINES)(check.check)
app.command("selftest", rich_help_panel=_MACHINES)(selftest.selftest)
nodes.app.command("trust")(trust.trust)
nodes.app.command("aws")(aws.aws)
nodes.app.command("add")(attach.add_nodes)
nodes.app.command("drain")(attach.drain)
app.add_typer(nodes.app, name="nodes", rich_help_panel=_MACHINES)
app.command("clean", rich_help_panel=_MACHINES)(clean.clean)
app.command("try", rich_help_panel=_MORE)(try_script.try_script)
app.command("init", rich_help_panel=_MORE)(init.init)
app.command("schema", rich_help_panel=_MORE)(schema.schema)
app.command("simulate", rich_help_panel=_MORE)(simulate.simulate)
app.command("replay", rich_help_panel=_MORE)(replay.replay)
app.command("policies", rich_help_panel=_MORE)(policies.policies)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"hadar {__version__}")
        raise typer.Exit


def _finish_help() -> None:
    """Gives every command its examples; groups within groups are not looked into."""
    for prefix, group in (("", app), ("profile ", profile.app), ("nodes ", nodes.app)):
        for command in group.registered_commands:
            command.cls = _Command
            command.epilog = epilog(f"{prefix}{command.name}")


_finish_help()


@app.callback(epilog=epilog(""))
def hadar(
    version: Annotated[
        bool, flag("--version", "Print the version.", callback=_print_version, is_eager=True)
    ] = False,
    debug: Annotated[bool, flag("--debug", "Show a traceback when something goes wrong.")] = False,
) -> None:
    """Train a batch of models on mismatched GPU machines, over plain SSH."""
    global _shows_tracebacks
    _shows_tracebacks = debug


def main() -> None:
    """Runs the command line and exits with the code that the error tree draws."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]  # ASCII terminals
    try:
        app(prog_name="hadar")
    except HadarError as error:
        _explain(str(error), error.fix)
        sys.exit(error.exit_code)
    except Exception as error:  # the last resort: no user should meet a traceback unasked
        _explain(
            f"unexpected {type(error).__name__}: {error}",
            "this is a bug in hadar; --debug (hadar --debug ...) shows where",
        )
        sys.exit(1)


def _explain(message: str, fix: str | None) -> None:
    from rich.text import Text

    from hadar_cli.cli.options import stderr
    from hadar_cli.report.format import plain

    if _shows_tracebacks:
        traceback.print_exc()
    console = stderr()
    for word, style, text in (("error", "bold red", message), ("fix", "bold green", fix or "")):
        lines = [plain(line, 2000) for line in text.splitlines() if line.strip()]
        if lines:
            console.print(Text.assemble((f"{word}: ", style), "\n     ".join(lines)))


if __name__ == "__main__":
    main()
