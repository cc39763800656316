"""The reference part of the documentation, made from the code when the site is built.

An mkdocs hook (see mkdocs.yml); `scripts/schemas` writes the same pages to docs/reference, for
readers of the repository. Names, types, limits, defaults and exit codes are asked of the
program itself; the meaning of fields is in `hadar_cli/config/meanings.py`, and a field without one,
or a meaning without its field, stops the build.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click
import typer
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from hadar_cli import errors  # noqa: E402
from hadar_cli import policies as registry  # noqa: E402
from hadar_cli.cli.main import app  # noqa: E402
from hadar_cli.cli.schemas import outputs  # noqa: E402
from hadar_cli.config import aws, inventory, ray, slurm  # noqa: E402
from hadar_cli.config import mixes as config  # noqa: E402
from hadar_cli.config.fields import Document, Spot  # noqa: E402
from hadar_cli.config.meanings import (  # noqa: E402
    AWS_FIELDS,
    GPU_FIELDS,
    INSTANCE_FIELDS,
    JOB_FIELDS,
    MERGE_FIELDS,
    MIX_FIELDS,
    NODE_FIELDS,
    RAY_FIELDS,
    SLURM_FIELDS,
)
from hadar_cli.core import model  # noqa: E402
from hadar_cli.core.model import AwsRequest  # noqa: E402
from hadar_cli.core.ray import RayRequest  # noqa: E402
from hadar_cli.core.slurm import SlurmRequest  # noqa: E402
from hadar_cli.workloads import CATALOG  # noqa: E402


def on_files(files: Files, config: Any) -> Files:
    """mkdocs calls this when it has found all pages: here are more."""
    for name, make in PAGES.items():
        page = File.generated(config, f"reference/{name}.md", content=make())
        if written := files.get_file_from_path(page.src_uri):
            files.remove(written)
        files.append(page)
    for script in sorted((ROOT / "examples").rglob("*.py")):
        files.append(
            File.generated(config, str(script.relative_to(ROOT)), abs_src_path=str(script))
        )
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Links that lead out of docs/, as the repository shows them, lead to the site's own copies."""
    inside = {"../examples/": "examples/", "../hadar_cli/node/contract.md": "reference/contract.md"}
    for outside, target in inside.items():
        markdown = markdown.replace(f"]({outside}", f"]({target}")
    return markdown


# -- commands --------------------------------------------------------------------------------


def commands() -> str:
    parts = ["# Commands\n", "Everything that `hadar --help` tells, on one page.\n"]
    for path, command in _walk(typer.main.get_command(app), "hadar"):
        parts.append(_command(path, command))
    return "\n".join(parts)


def _walk(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    children = getattr(command, "commands", {})
    if not children:
        yield path, command
    for name in command.list_commands(click.Context(command)) if children else ():
        yield from _walk(children[name], f"{path} {name}")


def _command(path: str, command: Any) -> str:
    context = click.Context(command, info_name=path)
    usage = " ".join(command.collect_usage_pieces(context))
    lines = [f"## {path}\n", f"    {path} {usage}\n", _prose(command.help), ""]
    rows = [row for param in command.params if (row := _parameter(param))]
    if rows:
        lines += ["| option | what it does |", "| --- | --- |", *rows, ""]
    return "\n".join(lines)


def _prose(text: str | None) -> str:
    """A docstring as Markdown; what its examples say stays as it is written."""
    text = inspect.cleandoc(text or "").replace("\f", "")
    return re.sub(r"^Example: (.*)$", r"Example: `\1`", text, flags=re.MULTILINE)


def _parameter(param: Any) -> str | None:
    if param.name in ("help", "install_completion", "show_completion"):
        return None
    metavar = (param.metavar or "").strip()
    names = ", ".join(f"`{name}`" for name in param.opts)
    if isinstance(param, click.Argument) or param.param_type_name == "argument":
        names, metavar = f"`{metavar or param.name.upper()}`", ""
    shown = f"{names} `{metavar}`" if metavar else names
    default = param.default
    words = getattr(param, "help", "") or ""
    if isinstance(default, (str, int, float, Path)) and not isinstance(default, bool):
        words += f" Default: `{default}`."
    return f"| {shown.replace('|', chr(92) + '|')} | {words.replace('|', chr(92) + '|')} |"


# -- files -----------------------------------------------------------------------------------


def nodes() -> str:
    top = """# nodes.toml

The inventory: which machines hadar may train on. `hadar init` writes a starter. Every machine is a
`[[node]]`; what is the same for all of them may stand once under `[defaults]`.
"""
    fields = {"name": inventory.NAME, **inventory._DEFAULTS}
    node = _table(fields, NODE_FIELDS, _defaults(model.Node))
    gpu = _table(_inside(inventory._GPU), GPU_FIELDS, _defaults(model.Gpu))
    request = _table(slurm.FIELDS, SLURM_FIELDS, _defaults(SlurmRequest))
    actor = _table(ray.FIELDS, RAY_FIELDS, _defaults(RayRequest))
    rented = _defaults(AwsRequest)
    account = _table(aws.ACCOUNT, AWS_FIELDS, rented)
    instance = _table(aws.INSTANCE, INSTANCE_FIELDS, rented)
    return f"""{top}
## A node

{node}

## An entry of `gpus`

{gpu}

## Slurm

Either as the table `slurm` of a node, or in a block that is many nodes: `[slurm]`, or several
`[[slurm]]`. A block has a `name`, a `count` (with more than one, nodes are `name-1`, `name-2`, …),
these fields, and those of a node. [The guide](../guide/slurm.md).

{request}

## Ray

Either as the table `ray` of a node whose `host` is a cluster, or in a block that is many nodes:
`[ray]`, or several `[[ray]]`, as for Slurm. Nodes that ask for the same are one machine each, by
their addresses. [The guide](../guide/ray.md).

{actor}

## AWS

`[aws]` says how instances of EC2 are rented, `[[aws.instances]]` which.
[The guide](../guide/aws.md).

{account}

An entry of `instances` has a `name`, these fields, and those of a node. `host` may name another
address than the instance's own.

{instance}
"""


def mixes() -> str:
    top = """# Mixes

A batch of jobs to train together, in YAML, read strictly: unknown or doubled fields, wrong types
and words that YAML would quietly turn into something else are refused, with their line.
"""
    merge = _table(config._MERGE_FIELDS, MERGE_FIELDS, _defaults(model.MergeRules))
    mix = _table(_inside(config._MIX), MIX_FIELDS, _defaults(model.Mix))
    own = _defaults(model.Job)
    del own["workload"]  # a script's, inside the program
    job = _table(config._JOB_FIELDS, JOB_FIELDS, own)
    built_in = "\n".join(f"| `{w.name}` | {w.short} | {w.title} |" for w in CATALOG.values())
    return f"""{top}
## The mix

{mix}

## A job

Each has a `workload` or a `script`, and `epochs` or `steps`.

{job}

## `merge`

{merge}

`merge: paper` is the paper's plain mean: {_as_words(model.PAPER_MERGE)}.

## Workloads

| name | short | what it trains |
| --- | --- | --- |
{built_in}
"""


def _inside(reader: Callable[..., Any]) -> dict[str, Callable[..., Any]]:
    """The fields that a ``record`` reads."""
    return dict(inspect.getclosurevars(reader).nonlocals["fields"])


def _defaults(kind: type[Any]) -> dict[str, Any]:
    return {f.name: f.default for f in dataclasses.fields(kind)}


def _table(
    fields: Mapping[str, Callable[..., Any]], about: Mapping[str, str], defaults: Mapping[str, Any]
) -> str:
    if fields.keys() != about.keys():
        strange = sorted(fields.keys() ^ about.keys())
        raise SystemExit(f"config/meanings.py: no field, or no meaning: {', '.join(strange)}")
    rows = ["| field | value | meaning |", "| --- | --- | --- |"]
    for name, reader in fields.items():
        default = defaults.get(name)
        words = about[name]
        if isinstance(default, (str, int, float)) and not isinstance(default, bool):
            words += f" Default: `{default}`."
        rows.append(f"| `{name}` | {allowed(reader)} | {words} |")
    return "\n".join(rows)


def allowed(reader: Callable[..., Any]) -> str:
    """What a reader takes, in the words with which it refuses everything else."""
    found: list[str] = []
    for bad in (object(), "§", -(10**20)):
        try:
            reader(bad, Spot(Document("", None, {}), ("field",)))
        except errors.InputError as error:
            found += _wanted(error)
        except Exception:  # noqa: S112 - a reader may stumble over such values
            continue
    if len(found) > 1 and found[0] == "text":
        del found[0]  # which text, says the rest
    return ", ".join(dict.fromkeys(found)) or "text"


def _wanted(error: errors.InputError) -> Iterator[str]:
    if match := re.match(r"should be (.+), not ", error.message):
        yield match[1]
    fix = error.fix or ""
    if match := re.match(r"Give a (?:whole )?number ((?:from|above) .+)\.", fix):
        yield match[1]
    if match := re.match(r"Choose from: (.+)\.", fix):
        yield " · ".join(f"`{word}`" for word in match[1].split(", "))
    if match := re.match(r"Write it like (.+)\.", fix):
        yield f"like `{match[1]}`"


# -- policies, exit codes, JSON --------------------------------------------------------------


def policies() -> str:
    parts = [
        "# Policy fields\n",
        "Set them in the mix (`policy: {name: hadar, reserve: 0.1}`) or as",
    ]
    parts.append("`--policy hadar:reserve=0.1`. [Which policy does what](../policies.md).\n")
    for name in registry.names():
        policy = registry.find(name)
        about = inspect.getdoc(inspect.getmodule(policy)) or ""
        own = inspect.cleandoc(policy.__doc__ or "")
        own = "" if own.startswith(f"{policy.__name__}(") else own.replace("``", "`") + "\n"
        parts += [f"## {name}\n", about.replace("``", "`") + "\n", own]
        fields = dataclasses.fields(policy)
        if fields:
            parts += ["| field | default | meaning |", "| --- | --- | --- |"]
            notes = _comments(policy)
            parts += [f"| `{f.name}` | `{f.default}` | {notes.get(f.name, '')} |" for f in fields]
        parts.append("")
    return "\n".join(parts)


def _comments(kind: type[Any]) -> dict[str, str]:
    """The remark behind each field, as its class has it."""
    lines = [line for base in reversed(kind.__mro__[:-1]) for line in _source(base)]
    found = (re.match(r"\s+(\w+): .*?#\s*(.+)", line) for line in lines)
    return {match[1]: match[2] for match in found if match}


def _source(kind: type[Any]) -> list[str]:
    try:
        return inspect.getsource(kind).splitlines()
    except (OSError, TypeError):
        return []


def exit_codes() -> str:
    rows = re.findall(r"(\w+Error)\s+exit (\d)\s+(.+)", errors.__doc__ or "")
    table = "\n".join(f"| {code} | {meaning} | `{name}` |" for name, code, meaning in rows)
    return f"""# Exit codes

| code | what happened | in the code |
| --- | --- | --- |
| 0 | done | |
{table}
| 130 | Ctrl-C: copies handed in what they had; `hadar resume` goes on | |

Every message on stderr starts with `error:`; the line below it, `fix:`, says what to do.
"""


def json_outputs() -> str:
    rows = "\n".join(
        f"| `{command}` | [{name}.json](../schemas/{name}.json) |"
        for name, (command, _) in outputs().items()
    )
    return f"""# JSON

With `--json`, stdout holds one JSON document and nothing else. These schemas (JSON Schema 2020-12)
are made from the records that the program prints, and tested against its output.

| command | schema |
| --- | --- |
{rows}
"""


def contract() -> str:
    return (ROOT / "hadar_cli/node/contract.md").read_text(encoding="utf-8")


def _as_words(record: Any) -> str:
    values = dataclasses.asdict(record).items()
    return ", ".join(f"`{name}: {value}`" for name, value in values if value is not None)


PAGES: dict[str, Callable[[], str]] = {
    "commands": commands,
    "nodes": nodes,
    "mixes": mixes,
    "policies": policies,
    "exit-codes": exit_codes,
    "json": json_outputs,
    "contract": contract,
}


WRITTEN = [name for name in PAGES if name != "contract"]  # which is a page of its own

if __name__ == "__main__":
    for name in WRITTEN:
        (ROOT / "docs" / "reference" / f"{name}.md").write_text(PAGES[name](), encoding="utf-8")
