"""Reads a mix, ``mixes/*.yaml``, into jobs and the rules that they train by."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from hadar_cli.config.fields import (
    ENVIRONMENT,
    NAME,
    Document,
    Reader,
    Spot,
    arguments,
    choice,
    duration_s,
    either,
    flag,
    integer,
    list_of,
    number,
    number_or_range,
    one_or_more,
    read_text,
    record,
    scalar,
    text,
    unknown_name,
)
from hadar_cli.config.strict_yaml import parse_yaml
from hadar_cli.config.sweeps import SWEEP_FIELDS, unfold
from hadar_cli.core.estimates.gangs import PROPORTIONAL, SHARES
from hadar_cli.core.estimates.merging import LR_SCALES
from hadar_cli.core.model import (
    DATASET_SIZES,
    EVERY_SLOT,
    MODEL_SIZES,
    MODES,
    PAPER_MERGE,
    Job,
    Launch,
    MergeRules,
    Mix,
    OuterStep,
    PolicyChoice,
)
from hadar_cli.project.data import place_of
from hadar_cli.project.folder import find_module, find_project
from hadar_cli.project.requirements import read_requirements
from hadar_cli.workloads import CATALOG

MAX_JOBS = 10_000
MAX_GPUS = 1024  # of a gang
MAX_BATCHES = 1024  # of a script's own, joined to one
# For scripts that count in steps and say nothing: only the first estimate of speed uses it.
DEFAULT_BATCH_SIZE = 32


@dataclass(frozen=True, slots=True)
class Setting:
    """What a job's fields depend on beside themselves."""

    folder: Path
    accelerators: bool
    data_dir: str | None
    data: tuple[str, ...] = ()  # of jobs that name none
    seed: int = 0  # of the mix


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
    if "data" in fields:
        data = _data(fields.pop("data"), document.top.inside("data"), setting.folder)
        setting = replace(setting, data=data)
    setting = replace(setting, seed=fields.get("seed", 0))
    return Mix(**fields, jobs=_jobs(rows, spot, setting), source=document.file)


def _jobs(rows: tuple[dict[str, Any], ...], spot: Spot, setting: Setting) -> tuple[Job, ...]:
    jobs: dict[str, Job] = {}
    for i, row in enumerate(rows):
        at = spot.inside(i)
        metric = CATALOG[row["workload"]].metric if "workload" in row else None
        more = unfold(_job(row, at, setting), row, at, setting.seed, metric)
        if taken := next((job.name for job in more if job.name in jobs), None):
            at = at.inside("name") if "name" in row else at
            raise at.error(f"the name '{taken}' is already taken", "Give this job another 'name'.")
        for job in more:
            jobs[job.name] = replace(job, id=len(jobs))
        if len(jobs) > MAX_JOBS:
            raise at.error(f"makes more than {MAX_JOBS} jobs", "Split the mix.")
    if not jobs:
        raise spot.error("lists no jobs", "Add one, e.g. - {workload: weather, epochs: 2}.")
    return tuple(jobs.values())


def _job(row: dict[str, Any], spot: Spot, setting: Setting) -> Job:
    """One job of the mix, its gaps filled from the catalog of workloads."""
    _exactly_one(row, ("workload", "script", "module"), spot)
    if "workload" not in row or {"epochs", "steps"} <= row.keys():
        _exactly_one(row, ("epochs", "steps"), spot)
    preset = row.get("preset", "auto")
    if preset == "auto":
        preset = "paper" if setting.accelerators else "tiny"
    if "workload" in row:
        row = {**CATALOG[row["workload"]].fields(preset), **row}
    else:
        row = {"name": _as_name(row.get("module") or Path(row["script"]).stem), **row}
    return Job(
        id=0,
        name=row["name"],
        target_steps=_target_steps(row, spot),
        **_batches(row.get("batch_size", DEFAULT_BATCH_SIZE), spot),
        max_duration_s=row.get("max_duration"),
        shares=row.get("shares", PROPORTIONAL),
        launch=_launch(row, spot, setting, preset),
        **_gang(row.get("gpus", 1)),
        **{key: row[key] for key in _TAKEN_AS_GIVEN if key in row},
    )


def _gang(gpus: int | tuple[int, int]) -> dict[str, Any]:
    """Policies that choose no sizes take the widest of a range, and one device for ``auto``."""
    if isinstance(gpus, int):
        return {"gpus": gpus}
    return {"sizes": gpus} if gpus[1] == MAX_GPUS else {"gpus": gpus[1], "sizes": gpus}


def _batches(size: int | tuple[int, int], spot: Spot) -> dict[str, Any]:
    """A script's own mini-batch is the smallest of a range: some of them may be joined to one."""
    least, most = (size, size) if isinstance(size, int) else size
    if least == most:
        return {"batch_size": least}
    if most < 2 * least:
        fix = f"Let the range reach {2 * least}, two of the script's own mini-batches, or more."
        raise spot.inside("batch_size").error(f"{least}..{most} has but one size", fix)
    return {"batch_size": least, "most_batches": min(most // least, MAX_BATCHES)}


def _target_steps(row: dict[str, Any], spot: Spot) -> int:
    """The paper's φ × epochs, with φ = samples / batch size rounded up."""
    if "steps" in row:
        return int(row["steps"])
    for key in ("samples", "batch_size"):
        if row.get(key) is None:
            raise spot.error(f"'epochs' needs '{key}' here", f"Add '{key}', or give 'steps'.")
    size = row["batch_size"]
    steps_per_epoch = -(-row["samples"] // (size if isinstance(size, int) else size[0]))
    return int(steps_per_epoch * row["epochs"])


def _launch(row: dict[str, Any], spot: Spot, setting: Setting, preset: str) -> Launch:
    paths = {
        key: _local_path(row[key], spot.inside(key), setting.folder)
        for key in ("script", "sync", "data_dir", "venv")
        if key in row
    }
    module = row.get("module")
    if module:
        paths["sync"] = _folder_of_module(module, paths.get("sync"), spot, setting.folder)
    elif "script" in paths and "sync" not in paths:
        project = find_project(Path(paths["script"]))
        paths |= {"sync": str(project.folder)} if project else {}
    if "data" in row and "data_dir" in row:
        problem = "cannot stand beside 'data', which is sent"
        raise spot.inside("data_dir").error(problem, "Keep one of the two.")
    data = setting.data if "data_dir" not in row else ()
    if "data" in row:
        data = _data(row["data"], spot.inside("data"), setting.folder)
    if "venv" in paths:
        read_requirements(Path(paths["venv"]))
    _check_places(data, paths.get("sync"), spot)
    return Launch(
        workload=row.get("workload"),
        script=paths.get("script"),
        module=module,
        preset=preset,
        args=row.get("args", ()),
        sync=paths.get("sync"),
        setup=row.get("setup"),
        env=row.get("env", {}),
        data_dir=paths.get("data_dir", None if data else setting.data_dir),
        data=data,
        venv=paths.get("venv"),
    )


def _data(names: tuple[str, ...], spot: Spot, folder: Path) -> tuple[str, ...]:
    return tuple(_local_path(name, spot.inside(i), folder) for i, name in enumerate(names))


def _check_places(data: tuple[str, ...], project: str | None, spot: Spot) -> None:
    """Each data path has a place of its own in the working directory."""
    folder = Path(project) if project else None
    taken: dict[str, str] = {}
    for path in data:
        place = place_of(Path(path), folder)
        if folder and folder.is_relative_to(path):
            raise spot.error(f"the data '{path}' holds the project folder", "Name what is in it.")
        other = taken.get(place) or next((p for p in data if p != path and _is_in(path, p)), None)
        if not other and folder and not _is_in(path, str(folder)) and _exists(folder / place):
            other = str(folder / place)
        if other:
            problem = f"the data '{path}' has no place of its own beside '{other}'"
            raise spot.error(problem, "Rename one of them, or list the folder of both.")
        taken[place] = path


def _is_in(path: str, folder: str) -> bool:
    return Path(path).is_relative_to(folder)


def _folder_of_module(module: str, sync: str | None, spot: Spot, folder: Path) -> str:
    """Where ``python -m MODULE`` is to run: ``sync``, or the project of the mix, or of here."""
    beside = [find_project(place.absolute() / "mix") for place in (folder, Path())]
    places = [Path(sync)] if sync else [project.folder for project in beside if project]
    for place in places:
        if find_module(module, place):
            return str(place)
    looked = ", ".join(dict.fromkeys(str(place) for place in places)) or "a project folder"
    problem = f"there is no module '{module}' in {looked}"
    raise spot.inside("module").error(problem, "Give the folder that it lies in as 'sync'.")


def _local_path(name: str, spot: Spot, folder: Path) -> str:
    """``name`` beside the mix if it is there, else in the working directory."""
    for path in (folder / name, Path(name)):
        if _exists(path):
            return os.path.abspath(path)  # noqa: PTH100 - without '..', and links as they are
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


def _exactly_one(row: dict[str, Any], names: tuple[str, ...], spot: Spot) -> None:
    given = [name for name in names if name in row]
    if len(given) > 1:
        problem = f"cannot stand beside '{given[0]}'"
        raise spot.inside(given[1]).error(problem, "Keep one of the two.")
    if not given:
        listed = " or ".join(f"'{name}'" for name in names)
        raise spot.error(f"{listed} is missing", f"Add {listed}.")


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
        return PolicyChoice(NAME(value, spot), line=spot.line)
    if "name" not in value:
        raise spot.error("'name' is missing", "Add 'name'.")
    name = NAME(value["name"], spot.inside("name"))
    fields = {
        NAME(key, spot.inside(key)): scalar(item, spot.inside(key))
        for key, item in value.items()
        if key != "name"
    }
    return PolicyChoice(name, fields, spot.line)


def _merge(value: Any, spot: Spot) -> MergeRules:
    if isinstance(value, dict):
        return MergeRules(**record(_MERGE_FIELDS)(value, spot))
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
    "lr_scale": choice(*LR_SCALES),
    "warmup": number(0, 1),
    "solo": number(0, 1),
    "optimizer_state": choice("average", "leader", "reset"),
    "outer": _outer_step,
    "every_s": either(number(0.1, 10**6), "auto", EVERY_SLOT),
    "hand_in": choice("full", "bf16", "int8", "int4"),
    "optimizer_every": integer(1, 10**6),
}

_JOB_FIELDS: dict[str, Reader[Any]] = {
    "workload": _workload,
    "script": text(),
    "module": text(re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*"), "Name it as after python -m."),
    "name": NAME,
    "count": integer(1, MAX_JOBS),
    "epochs": integer(1, 10**6),
    "steps": integer(1, 10**12),
    "samples": integer(1, 10**12),
    "batch_size": number_or_range(10**7, "128..2048"),
    "model_size": choice(*MODEL_SIZES),
    "dataset_size": choice(*DATASET_SIZES),
    "gpus": number_or_range(MAX_GPUS, "1..8", has_auto=True),
    "elastic": flag,
    "shares": choice(*SHARES),
    "mode": choice(*MODES),
    "arrives_s": number(0, 10**8),
    "preset": choice("auto", "tiny", "paper"),
    "args": arguments,
    "sync": text(),
    "setup": text(),
    "env": ENVIRONMENT,
    "priority": integer(-1000, 1000),
    "user": NAME,
    "retry": integer(0, 1000),
    "min_vram_gb": number(0, 10**6, above=True),
    "higher_is_better": flag,
    "fork": _fork,
    "max_duration": duration_s,
    "data_dir": text(),
    "data": one_or_more,
    "venv": text(),
    **SWEEP_FIELDS,
}

_TAKEN_AS_GIVEN = {field.name for field in fields(Job)} & _JOB_FIELDS.keys() - {
    *("name", "batch_size", "shares", "gpus", "promote", "stop"),  # which have other shapes here
}

_MIX = record(
    {
        "name": NAME,
        "slot_s": either(number(0, 10**6, above=True), "auto"),
        "policy": _policy,
        "merge": _merge,
        "seed": integer(0, 2**63 - 1),
        "data": one_or_more,
        "jobs": list_of(record(_JOB_FIELDS)),
    },
    required=("jobs",),
)
