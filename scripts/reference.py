"""The reference part of the documentation, made from the code when the site is built.

An mkdocs hook (see mkdocs.yml); `scripts/schemas` writes the same pages to docs/reference, for
readers of the repository. Names, types, limits, defaults and exit codes are asked of the
program itself; only the meaning of fields is written here, and a field without one, or a meaning
without its field, stops the build.
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
from hadar_cli.core import model  # noqa: E402
from hadar_cli.core.model import AwsRequest  # noqa: E402
from hadar_cli.core.ray import RayRequest  # noqa: E402
from hadar_cli.core.slurm import SlurmRequest  # noqa: E402
from hadar_cli.workloads import CATALOG  # noqa: E402

NODE_FIELDS = {
    "name": "What the node is called, in every table and log.",
    "host": "`local` for this computer, an ssh_config name, `user@host`, `kubectl:POD` for a "
    "pod of Kubernetes, or `ray://auto` and the like for a machine of a [Ray cluster](#ray).",
    "port": "Its SSH port; else what ssh_config says, or 22.",
    "user": "The login there; else what ssh_config says, or yours.",
    "identity_file": "The private key to log in with; else the agent's and the usual files.",
    "proxy_jump": "A gateway on the way, as in ssh_config.",
    "host_key": "A pin: the node's public key, or its SHA256 fingerprint. Then this alone decides.",
    "known_hosts": "A known_hosts file that alone decides, in place of yours.",
    "python": "The Python with torch and safetensors on the node.",
    "workdir": "Where the node keeps hadar's files; `~/.hadar` by default.",
    "env": "Environment variables of the copies there, on top of the mix's.",
    "gpus": "What it has, one entry a GPU. Left out, `hadar profile nodes` asks the machine.",
    "max_gpu_mem": "Leave a GPU alone while others hold more than this share of its memory; 0.1.",
    "hours": "Only train within these hours, by the node's own clock.",
    "turn_s": "How long the run keeps a device of this node that other runs want, too; 120.",
    "price_per_hour": "What the node costs, in any currency: forecasts then tell the cost.",
    "enabled": "`false` leaves the node out.",
    "network": "Jobs of several devices may span the nodes with the same name here, whose network "
    "is trusted; else only devices of one machine.",
    "address": "Where the others of its network reach the node; `host` by default.",
    "slurm": "Slurm allots the node, by [this request](#slurm); `host` is then the login node, or "
    "`local` on it.",
    "ray": "What Ray is [asked for](#ray), where `host` is a Ray cluster.",
    "emulate": "`{ speed = 0.5 }` paces training to this share of one core: for trying out only.",
}
RAY_FIELDS = {
    "node": "Which machine: its address, host name, Ray's name or id for it, or a label, "
    "`key=value`. Left out: any that fits.",
    "num_gpus": "GPUs of the actor; as many as `gpus` lists.",
    "num_cpus": "CPUs of the actor.",
    "resources": "Custom resources of the actor: `{ big_disk = 1 }`.",
}
SLURM_FIELDS = {
    "time": "The time limit of an allocation. Shorter ones start sooner, and are renewed.",
    "partition": "sbatch's `--partition`.",
    "account": "sbatch's `--account`.",
    "qos": "sbatch's `--qos`.",
    "gres": "sbatch's `--gres`. GPUs of a known type (`gpu:a100:2`) need no `gpus`.",
    "constraint": "sbatch's `--constraint`.",
    "cpus": "sbatch's `--cpus-per-task`.",
    "mem": "sbatch's `--mem`.",
    "options": 'More options of sbatch, as they are: `["--exclusive"]`.',
    "setup": "Shell lines that run in a login shell before Python is started: `module load cuda`.",
    "renew": "Ask for another allocation when one ends; on unless `false`.",
    "bin": "Where Slurm's commands are on the login node, if not in its PATH.",
    "conf": "The slurm.conf that they are to use, if not the usual one.",
}
AWS_FIELDS = {
    "region": "Where; else as AWS is configured.",
    "profile": "Which of AWS's profiles; else as AWS is configured.",
    "config": "A file to read in place of `~/.aws/config` and `~/.aws/credentials`.",
    "budget": "Dollars that all instances of a run may cost together; no limit without it.",
    "idle_minutes": "An instance that hears of no head for so long ends itself.",
    "tags": "Further tags of all instances.",
    "private": "Reach instances by their private addresses.",
}
INSTANCE_FIELDS = {
    "type": "The instance type, in place of the template's; with it, known GPUs need no `gpus`.",
    "template": "Launch instances from this template, by its id or name; they are terminated.",
    "version": "The version of the template.",
    "ids": "Or start these instances, which are stopped now; they are stopped again.",
    "spot": "Launch spot instances.",
    "count": "So many of the template; nodes are `name-1`, `name-2`, …",
}
GPU_FIELDS = {
    "model": "Its name. For known models nothing else is needed.",
    "tflops": "Tensor TFLOPS, for a model that is not in the table.",
    "vram_gb": "Memory in GB, for a model that is not in the table.",
    "pcie": "The PCIe generation.",
    "index": "Which card of the machine, as nvidia-smi counts; by default its place in this list.",
    "uuid": "Which card, or which part of one (MIG), by the name that `nvidia-smi -L` shows.",
}
MIX_FIELDS = {
    "name": "What the mix is called; the file's name by default.",
    "slot_s": "How long a round lasts, in seconds; `auto` goes by what a hand-in takes.",
    "policy": "Who decides: a name, or a table of `name` and the policy's fields.",
    "merge": "How copies become one model: a table, or `paper`.",
    "seed": "Orders the data and seeds the models.",
    "data": "The data of jobs that name none.",
    "jobs": "The jobs, a list.",
}
JOB_FIELDS = {
    "workload": "One of the built-in workloads, by its name or the paper's short one.",
    "script": "Your own training script instead, relative to the mix.",
    "module": "Or a module of your project, run as by `python -m`: `package.train`.",
    "name": "What the job is called; the workload's or the script's name by default.",
    "count": "So many jobs alike, named `name-1`, `name-2`, …",
    "epochs": "How long to train, in passes over the data.",
    "steps": "How long to train, in mini-batches, instead.",
    "samples": "The size of the data set: with it, epochs become steps.",
    "batch_size": "Samples in a mini-batch.",
    "model_size": "For the first estimate of speed only.",
    "dataset_size": "For the first estimate of speed only.",
    "gpus": "How many devices it takes at once, under policies that do not fork. A range such as "
    "`1..8`, or `auto`, lets the policy `hadar` choose, and change that where it pays.",
    "elastic": "It may also run on fewer.",
    "shares": "What each of them takes of a mini-batch: `proportional` to what it can do, or "
    "`equal`.",
    "mode": "How `hadare` uses many devices: `share` every step among those that reach each other, "
    "`merge` copies that train apart, `alone`, or `auto`: where that makes them shorter, "
    "steps are shared by the devices of one node, and, while a job is not to be forked yet, by "
    "all that reach each other; other copies are merged.",
    "arrives_s": "It comes so many seconds after the start.",
    "preset": "`paper` is the paper's model and data, `tiny` a small one on synthetic data.",
    "args": "Arguments of the script: a list of words and numbers, or one line as in a shell.",
    "sync": "The folder that travels and is the working directory; by default the script's project "
    "folder: the nearest one above it with a `.git` or `pyproject.toml`, else its own.",
    "setup": "A shell command that runs once on each node before the job's first copy.",
    "env": "Environment variables of its copies.",
    "priority": "Jobs of a higher one are given devices first; 0 by default. `hadar priority` "
    "changes it while the run goes on.",
    "grid": "A sweep: a trial for every combination of these values of arguments, or of variables "
    "(`env.NAME`). See [Sweeps](../guide/sweeps.md).",
    "sample": "A sweep of drawn values: `{log: [a, b]}`, `{uniform: [a, b]}`, `{int: [a, b]}`, or "
    "a list.",
    "trials": "How many to draw.",
    "promote": "`{metric, keep: 3, rungs}`: of the trials that reach a rung, one in `keep` trains "
    "on.",
    "stop": "`{metric, patience, every}`: ends the job when it has not become better for so many "
    "measurements.",
    "retry": "How often in a row it may fail on a device before it is no longer given to it. It "
    "has failed when no device is left: the others go on, and the run exits with 3.",
    "min_vram_gb": "GPUs with less memory are not given the job. Without it, a job that runs out "
    "of memory is tried there with smaller micro-batches, then not at all.",
    "higher_is_better": "Whether more of the first figure that its evaluation returns is better. "
    "Without it, the script says so, or else known names (`accuracy`, `f1`, `loss`, `wer` …) do, "
    "as whole words; of others nothing is concluded.",
    "fork": "How many copies may train at once: `auto` (those worth their merges), `never`, "
    "or a number, which is not weighed against what the copies cost.",
    "max_duration": "How long it may train, not counting the time it waits. Then it ends with what "
    "it has: the report says so, and the run exits with 3.",
    "data": "Paths here, files or folders, that are sent once to every node and found at the same "
    "place in the working directory, and in `HADAR_DATA`; several are divided by a colon.",
    "venv": "A requirements file or pyproject.toml: every node makes a virtual environment of it, "
    "once, on top of its own Python, and the job's copies run with that.",
    "data_dir": "Where its data is, on the nodes; a script finds it in `HADAR_DATA`.",
}
MERGE_FIELDS = {
    "rule": "`progress`, which goes as far as the copy with most steps, or the `mean` by steps.",
    "lr_scale": "How the learning rate grows with the number of effective copies.",
    "warmup": "The first share of the steps, in which that factor, and the length that `progress` "
    "adds to a merge, rise to their full size.",
    "solo": "The first share of the steps, which one device does alone; where others would idle "
    "meanwhile, 250 steps of it, or 1.25 % of it if that is more.",
    "optimizer_state": "Averaged, the busiest copy's, or begun anew.",
    "outer": "An outer Nesterov step of `lr` and `momentum`, as in DiLoCo.",
    "hand_in": "`full`, or what forked copies that use `training` hand in updates as: `bf16`, or "
    "`int8` or `int4` with a scale for every 128 weights; what these two round off is added to the "
    "copy's next update. The head still pushes whole checkpoints.",
    "optimizer_every": "The optimizer's state travels with every so many merges of forked copies, "
    "up and down; in between each copy keeps its own, and one that starts gets the last.",
    "every_s": "Between merges: seconds, `auto`, or `slot` for its end only.",
}


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
        raise SystemExit(f"scripts/reference.py: no field, or no meaning: {', '.join(strange)}")
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
