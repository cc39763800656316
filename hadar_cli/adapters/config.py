"""Reads the inventory (``nodes.toml``) and the mixes (``*.yaml``) into the nouns of the core."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hadar_cli.adapters.fields import (
    Document,
    Reader,
    Spot,
    choice,
    duration_s,
    either,
    flag,
    integer,
    list_of,
    number,
    read_text,
    record,
    scalar,
    table_of,
    text,
    unknown_name,
)
from hadar_cli.adapters.strict_toml import parse_toml
from hadar_cli.adapters.strict_yaml import parse_yaml
from hadar_cli.core.gpu_table import CPU, find_gpu, nearest_gpu
from hadar_cli.core.model import (
    DATASET_SIZES,
    EVERY_SLOT,
    MODEL_SIZES,
    PAPER_MERGE,
    Gpu,
    Job,
    Launch,
    MergeRules,
    Mix,
    Node,
    OuterStep,
    PolicyChoice,
)
from hadar_cli.workloads import CATALOG, Workload

MAX_JOBS = 10_000
# For scripts that count in steps and say nothing: only the first estimate of speed uses it.
DEFAULT_BATCH_SIZE = 32

_NAME = text(
    re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"),
    "Use up to 64 letters, digits, dots, dashes and underscores, starting with a letter or digit.",
)
# A leading dash would be taken for an option by ssh.
_ADDRESS = text(re.compile(r"[^\s-]\S*"), "Give it without spaces or a leading dash.")
_CLOCK = r"(?:[01]\d|2[0-3]):[0-5]\d"
_HOURS = text(re.compile(rf"{_CLOCK}-{_CLOCK}"), "Write it like 19:00-07:00.")
_ENV = table_of(text(may_be_empty=True), re.compile(r"[A-Za-z_][A-Za-z0-9_]*"))


# --- nodes.toml ---------------------------------------------------------------------------------


def read_nodes(path: Path) -> tuple[Node, ...]:
    """The nodes of the inventory, the disabled ones included."""
    return nodes_of(parse_toml(read_text(path), str(path)))


def nodes_of(document: Document) -> tuple[Node, ...]:
    tables = _INVENTORY(document.root, document.top)
    defaults = tables.get("defaults", {})
    nodes: dict[str, Node] = {}
    for i, fields in enumerate(tables.get("node", ())):
        spot = document.top.inside("node").inside(i)
        node = _node(defaults, fields, spot)
        if node.name in nodes:
            raise spot.inside("name").error(f"'{node.name}' is already taken", "Rename one node.")
        nodes[node.name] = node
    if not any(node.enabled for node in nodes.values()):
        if nodes:
            raise document.top.error("no node is enabled", "Set enabled = true for one of them.")
        raise document.top.error("lists no nodes", 'Add a [[node]] with name and host = "local".')
    return tuple(nodes.values())


def _node(defaults: dict[str, Any], fields: dict[str, Any], spot: Spot) -> Node:
    for key in ("name", "host"):
        if key not in fields and key not in defaults:
            raise spot.error(f"'{key}' is missing", f"Add '{key}'.")
    env = {**defaults.get("env", {}), **fields.get("env", {})}
    return Node(**{**defaults, **fields, "env": env})


def _gpu(value: Any, spot: Spot) -> Gpu:
    if isinstance(value, str):
        raise spot.error("should be a table", f'Write {{ model = "{value}" }}.')
    fields = _GPU(value, spot)
    name = fields.pop("model")
    known = find_gpu(name)
    if known is CPU:
        raise spot.error("a CPU is no GPU", "Leave 'gpus' out for a node that trains on its CPU.")
    if known:
        return replace(known, **fields)
    if "tflops" in fields and "vram_gb" in fields:
        return Gpu(name, **fields)
    close = nearest_gpu(name)
    guess = f"Did you mean '{close}'? If not, give" if close else "Give"
    problem = f"'{name}' is not in the table of known GPUs"
    raise spot.inside("model").error(problem, f"{guess} its tflops and vram_gb as well.")


def _emulated(value: Any, spot: Spot) -> float:
    fields = record({"speed": number(0, 100, above=True)}, required=("speed",))(value, spot)
    return float(fields["speed"])


def _node_fields(value: Any, spot: Spot, fields: dict[str, Reader[Any]]) -> dict[str, Any]:
    values = record(fields)(value, spot)
    if "emulate" in values:
        values["emulated_speed"] = values.pop("emulate")
    return values


def _node_tables(value: Any, spot: Spot) -> tuple[dict[str, Any], ...]:
    if isinstance(value, dict):
        raise spot.error("should be a list of tables", "Write [[node]], with two brackets.")
    return list_of(lambda item, at: _node_fields(item, at, {"name": _NAME, **_DEFAULTS}))(
        value, spot
    )


_GPU = record(
    {
        "model": text(),
        "tflops": number(0, 10**6, above=True),
        "vram_gb": number(0, 10**5, above=True),
        "pcie": integer(1, 6),
    },
    required=("model",),
)

_DEFAULTS: dict[str, Reader[Any]] = {
    "host": _ADDRESS,
    "port": integer(1, 65_535),
    "user": _ADDRESS,
    "identity_file": text(),
    "proxy_jump": _ADDRESS,
    "host_key": text(),
    "known_hosts": text(),
    "python": text(),
    "workdir": text(),
    "env": _ENV,
    "gpus": list_of(_gpu),
    "max_gpu_mem": number(0, 1, above=True),
    "hours": _HOURS,
    "price_per_hour": number(0, 10**6),
    "enabled": flag,
    "emulate": _emulated,
}

_INVENTORY = record(
    {
        "defaults": lambda value, spot: _node_fields(value, spot, _DEFAULTS),
        "node": _node_tables,
    }
)


# --- mixes --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Setting:
    """What a job's fields depend on beside themselves."""

    folder: Path
    accelerators: bool
    data_dir: str | None


def read_mix(path: Path, *, accelerators: bool = False, data_dir: str | Path | None = None) -> Mix:
    """The mix in ``path``.

    ``accelerators`` says that every device is a real GPU, which turns ``preset: auto`` into
    ``paper``; ``data_dir`` is for the jobs that name none.
    """
    setting = Setting(path.parent, accelerators, str(data_dir) if data_dir else None)
    return mix_of(parse_yaml(read_text(path), str(path)), setting)


def mix_of(document: Document, setting: Setting) -> Mix:
    fields = _MIX(document.root, document.top)
    rows, spot = fields.pop("jobs"), document.top.inside("jobs")
    fields.setdefault("name", _as_name(Path(document.file).stem))
    if fields.setdefault("slot_s", "auto") == "auto":
        del fields["slot_s"]
        fields["chooses_slot"] = True
    return Mix(**fields, jobs=_jobs(rows, spot, setting), source=document.file)


def _jobs(rows: tuple[dict[str, Any], ...], spot: Spot, setting: Setting) -> tuple[Job, ...]:
    jobs: dict[str, Job] = {}
    for i, row in enumerate(rows):
        at = spot.inside(i)
        job = _job(row, at, setting)
        names = [job.name]
        if "count" in row:
            names = [f"{job.name}-{n + 1}" for n in range(row["count"])]
        if taken := next((name for name in names if name in jobs), None):
            at = at.inside("name") if "name" in row else at
            raise at.error(f"the name '{taken}' is already taken", "Give this job another 'name'.")
        for name in names:
            jobs[name] = replace(job, id=len(jobs), name=name)
        if len(jobs) > MAX_JOBS:
            raise at.error(f"makes more than {MAX_JOBS} jobs", "Split the mix.")
    if not jobs:
        raise spot.error("lists no jobs", "Add one, e.g. - {workload: weather, epochs: 2}.")
    return tuple(jobs.values())


def _job(row: dict[str, Any], spot: Spot, setting: Setting) -> Job:
    """One job of the mix, its gaps filled from the catalog of workloads."""
    _exactly_one(row, "workload", "script", spot)
    if "script" in row or {"epochs", "steps"} <= row.keys():
        _exactly_one(row, "epochs", "steps", spot)
    preset = row.get("preset", "auto")
    if preset == "auto":
        preset = "paper" if setting.accelerators else "tiny"
    if "workload" in row:
        row = {**_from_catalog(CATALOG[row["workload"]], preset), **row}
    else:
        row = {"name": _as_name(Path(row["script"]).stem), **row}
    return Job(
        id=0,
        name=row["name"],
        target_steps=_target_steps(row, spot),
        batch_size=row.get("batch_size", DEFAULT_BATCH_SIZE),
        max_duration_s=row.get("max_duration"),
        launch=_launch(row, spot, setting, preset),
        **{key: row[key] for key in _TAKEN_AS_GIVEN if key in row},
    )


def _from_catalog(workload: Workload, preset: str) -> dict[str, Any]:
    return {
        "name": workload.name,
        "batch_size": workload.batch_size[preset],
        "samples": workload.train_samples[preset],
        "epochs": workload.epochs[preset],
        "model_size": workload.model_size[preset],
        "dataset_size": workload.dataset_size,
    }


def _target_steps(row: dict[str, Any], spot: Spot) -> int:
    """The paper's φ × epochs, with φ = samples / batch size rounded up."""
    if "steps" in row:
        return int(row["steps"])
    for key in ("samples", "batch_size"):
        if row.get(key) is None:
            raise spot.error(f"'epochs' needs '{key}' here", f"Add '{key}', or give 'steps'.")
    steps_per_epoch = int(-(-row["samples"] // row["batch_size"]))
    return steps_per_epoch * int(row["epochs"])


def _launch(row: dict[str, Any], spot: Spot, setting: Setting, preset: str) -> Launch:
    paths = {
        key: _local_path(row[key], spot.inside(key), setting.folder)
        for key in ("script", "sync", "data_dir")
        if key in row
    }
    return Launch(
        workload=row.get("workload"),
        script=paths.get("script"),
        preset=preset,
        args=row.get("args", ()),
        sync=paths.get("sync"),
        setup=row.get("setup"),
        env=row.get("env", {}),
        data_dir=paths.get("data_dir", setting.data_dir),
    )


def _local_path(name: str, spot: Spot, folder: Path) -> str:
    """``name`` beside the mix if it is there, else in the working directory."""
    for path in (folder / name, Path(name)):
        if _exists(path):
            return str(path.absolute())
    if spot.where[-1] == "data_dir":
        return name  # data may lie on the nodes only
    fix = "The path is relative to the mix file, or to the working directory."
    raise spot.error(f"there is no file '{name}'", fix)


def _as_name(stem: str) -> str:
    """A job's or mix's name made of a file's."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip("-._")[:64] or "unnamed"


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # a name too long for the file system
        return False


def _exactly_one(row: dict[str, Any], one: str, other: str, spot: Spot) -> None:
    if one in row and other in row:
        raise spot.inside(other).error(f"cannot stand beside '{one}'", "Keep one of the two.")
    if one not in row and other not in row:
        raise spot.error(f"'{one}' or '{other}' is missing", f"Add '{one}' or '{other}'.")


def _workload(value: Any, spot: Spot) -> str:
    """A workload's name, also given by the paper's short one (``MM``)."""
    name = text()(value, spot)
    short = {workload.short: workload.name for workload in CATALOG.values()}
    if name not in CATALOG and name not in short:
        fix = unknown_name(name, [*CATALOG, *short])
        raise spot.error(f"there is no workload '{name}'", fix)
    return short.get(name, name)


def _policy(value: Any, spot: Spot) -> PolicyChoice:
    """A name, or a table of the name and the policy's fields (checked by the registry)."""
    if not isinstance(value, dict):
        return PolicyChoice(_NAME(value, spot), line=spot.line)
    if "name" not in value:
        raise spot.error("'name' is missing", "Add 'name'.")
    name = _NAME(value["name"], spot.inside("name"))
    fields = {
        _NAME(key, spot.inside(key)): scalar(item, spot.inside(key))
        for key, item in value.items()
        if key != "name"
    }
    return PolicyChoice(name, fields, spot.line)


def _merge(value: Any, spot: Spot) -> MergeRules:
    if isinstance(value, dict):
        rules = MergeRules(**record(_MERGE_FIELDS)(value, spot))
        if rules.keep == "better" and rules.hand_in != "full":
            problem = "cannot stand beside 'keep: better', which keeps a copy as it is handed in"
            raise spot.inside("hand_in").error(problem, "Keep one of the two.")
        return rules
    choice("paper")(value, spot)
    return PAPER_MERGE


def _fork(value: Any, spot: Spot) -> int | None:
    """How many copies may train at once: ``auto``, ``never`` or a number."""
    most = either(integer(1, 10**6), "auto", "never")(value, spot)
    return {"auto": None, "never": 1}[most] if isinstance(most, str) else most


def _outer_step(value: Any, spot: Spot) -> OuterStep:
    return OuterStep(**record({"lr": number(0.001, 10), "momentum": number(0, 0.999)})(value, spot))


_MERGE_FIELDS: dict[str, Reader[Any]] = {
    "rule": choice("mean", "progress"),
    "lr_scale": choice("none", "sqrt", "linear"),
    "warmup": number(0, 1),
    "solo": number(0, 1),
    "optimizer_state": choice("average", "leader", "reset"),
    "outer": _outer_step,
    "keep": choice("merged", "better"),
    "every_s": either(number(0.1, 10**6), "auto", EVERY_SLOT),
    "hand_in": choice("full", "bf16"),
}

_JOB_FIELDS: dict[str, Reader[Any]] = {
    "workload": _workload,
    "script": text(),
    "name": _NAME,
    "count": integer(1, MAX_JOBS),
    "epochs": integer(1, 10**6),
    "steps": integer(1, 10**12),
    "samples": integer(1, 10**12),
    "batch_size": integer(1, 10**7),
    "model_size": choice(*MODEL_SIZES),
    "dataset_size": choice(*DATASET_SIZES),
    "gpus": integer(1, 1024),
    "elastic": flag,
    "arrives_s": number(0, 10**8),
    "preset": choice("auto", "tiny", "paper"),
    "args": list_of(text(may_be_empty=True)),
    "sync": text(),
    "setup": text(),
    "env": _ENV,
    "retry": integer(0, 1000),
    "fork": _fork,
    "max_duration": duration_s,
    "data_dir": text(),
}

_TAKEN_AS_GIVEN = (
    *("workload", "model_size", "dataset_size", "gpus"),
    *("elastic", "arrives_s", "retry", "fork"),
)

_MIX = record(
    {
        "name": _NAME,
        "slot_s": either(number(0, 10**6, above=True), "auto"),
        "policy": _policy,
        "merge": _merge,
        "seed": integer(0, 2**63 - 1),
        "jobs": list_of(record(_JOB_FIELDS)),
    },
    required=("jobs",),
)
