"""What a run sends to every node before it trains: told by ``run`` and its dry run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from rich.markup import escape

from hadar_cli.cli import records
from hadar_cli.core.model import Launch, Mix
from hadar_cli.errors import InputError
from hadar_cli.project.data import list_files
from hadar_cli.project.folder import find_project
from hadar_cli.project.porting import seems_ported, seems_to_share
from hadar_cli.project.selection import LeftOut, Selection, select
from hadar_cli.report.format import bytes, count, plain

_NAMED = 3  # of what is left out by one rule
_MOST_LISTED = 100  # as JSON
_LONGEST_NAME = 200


@dataclass(frozen=True, slots=True)
class Upload:
    """A project folder, or a script alone, and the jobs that use it."""

    jobs: tuple[str, ...]
    found_by: str
    selection: Selection


def uploads(mix: Mix) -> list[Upload]:
    """Everything that travels; raises InputError for what cannot."""
    users: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    launches: dict[tuple[str, tuple[str, ...]], Launch] = {}
    for job in mix.jobs:
        if source := job.launch.sync or job.launch.script:
            users.setdefault((source, job.launch.data), []).append(job.name)
            launches.setdefault((source, job.launch.data), job.launch)
    found = []
    for (source, data), names in users.items():
        try:
            selection = select(Path(source), [Path(path) for path in data])
        except InputError as error:
            raise InputError(
                error.message, file=mix.source, field=error.field, fix=error.fix
            ) from error
        found.append(Upload(tuple(names), _found_by(launches[source, data]), selection))
    return found


def _found_by(launch: Launch) -> str:
    if not launch.sync:
        return "alone"
    project = find_project(Path(launch.script)) if launch.script else None
    return project.found_by if project and str(project.folder) == launch.sync else "sync"


def data_sets(mix: Mix) -> list[tuple[Path, int, int]]:
    """Each path of the mix's data, its files and bytes; raises InputError for what cannot go."""
    found = []
    for path in dict.fromkeys(path for job in mix.jobs for path in job.launch.data):
        try:
            files = list_files(Path(path))
        except InputError as error:
            raise InputError(
                error.message, file=mix.source, field=error.field, fix=error.fix
            ) from error
        found.append((Path(path), len(files), sum(file.bytes for file in files)))
    return found


# -- on the terminal -------------------------------------------------------------------------


def lines(mix: Mix, found: list[Upload]) -> Iterator[str]:
    """What goes and what stays behind, in lines that are safe to print as markup."""
    for path, files, total in data_sets(mix):
        yield _safe(f"data {path}: {count(files, 'file')}, {bytes(total)}, sent once to every node")
    for file in dict.fromkeys(job.launch.venv for job in mix.jobs if job.launch.venv):
        yield _safe(f"packages of {file}: a virtual environment, made once on every node")
    for upload in found:
        chosen = upload.selection
        size = f"{count(len(chosen.files), 'file')}, {bytes(chosen.bytes)}"
        if upload.found_by == "alone":
            yield _safe(f"{chosen.files[0]} travels alone, {bytes(chosen.bytes)}: it lies in no")
            yield "    folder of its own; give one as 'sync' if it needs more"
            continue
        known = {"sync": "sync", "the script": "the script's own"}
        how = known.get(upload.found_by, f"by its {upload.found_by}")
        yield _safe(f"project folder {chosen.root} ({how}): {size} for every node")
        yield from _left_behind(chosen)
    yield from _unported(found)
    yield from _unshared(mix, found)


def _unported(found: list[Upload]) -> Iterator[str]:
    for upload in found:
        if not seems_ported(upload.selection.files):
            where = upload.selection.root
            yield "[yellow]warning:[/] " + _safe(f"{', '.join(upload.jobs)}: nothing in {where}")
            yield "    imports hadar_cli or keeps its contract: steps would be neither counted nor"
            yield "    handed in. 'hadar try' tells what it lacks, docs/own-script.md how to add it"


def _unshared(mix: Mix, found: list[Upload]) -> Iterator[str]:
    """A gang whose processes know nothing of each other trains every step that many times."""
    wide = {job.name: job.most_gpus for job in mix.jobs if job.most_gpus > 1}
    for upload in found:
        names = [name for name in upload.jobs if name in wide]
        files = upload.selection.files
        if names and seems_ported(files) and not seems_to_share(files):
            where, most = upload.selection.root, max(wide[name] for name in names)
            yield "[yellow]warning:[/] " + _safe(
                f"{', '.join(names)}: nothing in {where} speaks of"
            )
            yield f"    hadar_cli or torch.distributed. On {most} devices, each would train every"
            yield "    batch whole, all but one in vain: port it to training, or ask for gpus: 1"


def _left_behind(chosen: Selection) -> Iterator[str]:
    by_rule = sorted(chosen.left_out, key=lambda one: one.rule)
    for rule, group in groupby(by_rule, key=lambda one: one.rule):
        largest = sorted(group, key=lambda one: -one.bytes)
        files, size = sum(one.files for one in largest), sum(one.bytes for one in largest)
        names = ", ".join(_sized(one, chosen.root) for one in largest[:_NAMED])
        more = f" and {len(largest) - _NAMED} more" if len(largest) > _NAMED else ""
        yield _safe(f"    left out, {rule}: {count(files, 'file')}, {bytes(size)}: {names}{more}")
    if any(one.rule == ".gitignore" for one in chosen.left_out):
        yield "    a script that needs them: say so in .hadarignore, e.g. !meta.pkl"


def _sized(one: LeftOut, root: Path) -> str:
    slash = "/" if one.path.is_dir() else ""
    return f"{one.path.relative_to(root)}{slash} {bytes(one.bytes)}"


def _safe(line: str) -> str:
    indent = line[: len(line) - len(line.lstrip())]
    return indent + escape(plain(line, 1000))


# -- as JSON ---------------------------------------------------------------------------------


def as_records(found: list[Upload]) -> tuple[records.PlannedProject, ...]:
    return tuple(
        records.PlannedProject(
            folder=str(upload.selection.root),
            found_by=upload.found_by,
            jobs=upload.jobs,
            files=len(upload.selection.files),
            bytes=upload.selection.bytes,
            left_out=tuple(
                records.LeftBehind(
                    str(one.path.relative_to(upload.selection.root)), one.bytes, one.files, one.rule
                )
                for one in sorted(upload.selection.left_out, key=lambda one: -one.bytes)
            )[:_MOST_LISTED],
        )
        for upload in found
    )
