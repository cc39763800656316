"""Reads requests to Slurm: the ``slurm`` table of a node, and ``[slurm]`` blocks of many nodes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hadar_cli.config.fields import Reader, Spot, flag, integer, list_of, record, text
from hadar_cli.core.gpu_table import find_gpu
from hadar_cli.core.model import Gpu
from hadar_cli.core.slurm import SlurmRequest, seconds_of

# In single quotes, every login shell reads such a word alike.
_WORD = text(re.compile(r"[^\s'\"\\\\!-][^\s'\"\\\\!]*"), "Give one word, without quotes.")
_PATH = text(re.compile(r"[A-Za-z0-9_./~+-]+"), "Give a plain path, e.g. /opt/slurm/bin.")
_OPTION = text(
    re.compile(r"--[a-z][a-z-]*(=[^\s'\"\\\\!]+)?"), "Write it like --exclusive or --nodelist=n7."
)
# These decide who finds the allocation again and what runs in it.
_OURS = ("job-name", "output", "error", "wrap", "signal", "parsable", "array", "nodes", "ntasks")
_IN_FIELDS = {name: name for name in ("time", "partition", "account", "qos", "gres", "constraint")}
_IN_FIELDS |= {"mem": "mem", "cpus-per-task": "cpus"}


def _time(value: Any, spot: Spot) -> str:
    word = text()(value, spot)
    if not seconds_of(word):
        raise spot.error(
            f"'{word}' is no time as Slurm writes it", "Write it like 4:00:00 or 1-12."
        )
    return word


def _option(value: Any, spot: Spot) -> str:
    word = _OPTION(value, spot)
    if word[2:].partition("=")[0] in _OURS:
        raise spot.error(f"hadar sets '{word}' itself", "Leave it out.")
    if field := _IN_FIELDS.get(word[2:].partition("=")[0]):
        raise spot.error(f"'{word}' has a field of its own", f"Say it there: {field} = …")
    return word


FIELDS: dict[str, Reader[Any]] = {
    "time": _time,
    "partition": _WORD,
    "account": _WORD,
    "qos": _WORD,
    "gres": _WORD,
    "constraint": _WORD,
    "cpus": integer(1, 4096),
    "mem": _WORD,
    "options": list_of(_option),
    "setup": text(),
    "renew": flag,
    "bin": _PATH,
    "conf": _PATH,
}
_REQUEST = record(FIELDS, required=("time",))


def request(value: Any, spot: Spot) -> SlurmRequest:
    return SlurmRequest(**_REQUEST(value, spot))


def gpus_asked_for(wanted: SlurmRequest, listed: tuple[Gpu, ...], spot: Spot) -> tuple[Gpu, ...]:
    """The GPUs of a node: as listed, else as its gres names them."""
    kinds = [(kind, count) for word in (wanted.gres or "").split(",") for kind, count in _gpu(word)]
    total = sum(count for _, count in kinds)
    at = spot.inside("gres")
    if listed:
        if total and total != len(listed):
            raise at.error(
                f"asks for {total} GPUs, and 'gpus' lists {len(listed)}", "Make them agree."
            )
        return listed
    if by_option := [word for word in wanted.options if word.startswith("--gpus")]:
        problem = f"'{by_option[0]}' does not tell hadar what these GPUs are"
        fix = 'Ask by gres = "gpu:a100:2", or list them beside it: gpus = [{ model = "A100" }].'
        raise spot.inside("options").error(problem, fix)
    found: list[Gpu] = []
    for kind, count in kinds:
        known = find_gpu(kind)
        if not known:
            what = (
                f"'{kind}' is not in the table of known GPUs" if kind else "does not say which GPUs"
            )
            raise at.error(what, 'List them beside it: gpus = [{ model = "A100" }].')
        found += [replace(known)] * count
    return tuple(found)


def _gpu(word: str) -> list[tuple[str, int]]:
    """``gpu:a100:2`` as its kind and number; nothing for what is no GPU."""
    name, *rest = re.sub(r"\(.*\)", "", word.strip()).split(":")
    if name != "gpu":
        return []
    count = int(rest.pop()) if rest and rest[-1].isdigit() else 1
    return [(rest[0].replace("_", " ") if rest else "", count)]


def names_of(fields: Mapping[str, Any]) -> list[str]:
    """What the nodes of a block are called."""
    name, count = fields["name"], fields.get("count", 1)
    return [name] if count == 1 else [f"{name}-{number}" for number in range(1, count + 1)]
