"""How a run was set up, and everything needed to do it again. Secrets stay out of the page."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from hadar_cli.core.model import DEFAULT_TURN_S, Job, Mix, Node
from hadar_cli.report.format import plain
from hadar_cli.report.page.markup import table, text
from hadar_cli.report.record import RunRecord

_SAME_IN_JOB = ("batch_size", "model_size", "dataset_size", "gpus", "elastic", "arrives_s", "retry")
_HIDDEN = "hidden"


def configuration(record: RunRecord) -> Iterator[str]:
    yield "<h2>Configuration</h2>"
    yield table(("setting", "value"), _settings(record).items())
    yield "<h3>Jobs</h3>"
    yield table(
        ("job", "workload", "preset", "steps", "batch size", "model", "data", "devices", "arrives"),
        [_job_row(job) for job in record.facts.mix.jobs],
    )
    yield "<h3>Nodes</h3>"
    yield table(
        ("node", "host", "devices", "emulated speed", "hours", "price per hour"),
        [_node_row(node) for node in record.facts.nodes if node.enabled],
    )


def reproduction(record: RunRecord) -> Iterator[str]:
    facts = record.facts
    versions = {"hadar": facts.hadar_version} | record.versions
    yield f"<h2>Do it again: {text(facts.id)}</h2>"
    yield '<p class="soft">Save the two files, then:</p>'
    yield "<pre>hadar run mix.yaml -n nodes.toml</pre>"
    for name, content in (
        ("mix.yaml", mix_text(facts.mix)),
        ("nodes.toml", nodes_text(facts.nodes)),
    ):
        yield f"<details open><summary>{name}</summary>"
        yield f'<pre class="log">{_escaped(content)}</pre></details>'
    yield "<h3>Versions and seed</h3>"
    yield table(("what", "value"), [*versions.items(), ("seed", str(facts.mix.seed))])
    yield "<h3>SHA-256</h3>"
    yield table(("what", "hash"), list(_hashes(record)), code=(1,))


def differences(records: Sequence[RunRecord]) -> Iterator[str]:
    """The settings in which the runs differ, then those they share."""
    each = [_settings(record) for record in records]
    names = dict.fromkeys(name for settings in each for name in settings)
    rows = [[name, *(settings.get(name, "–") for settings in each)] for name in names]
    runs = [record.summary.run for record in records]
    yield "<h2>Settings that differ</h2>"
    yield table(("setting", *runs), [row for row in rows if len(set(row[1:])) > 1])
    yield "<h3>The same in all runs</h3>"
    yield table(("setting", "value"), [row[:2] for row in rows if len(set(row[1:])) == 1])


def _settings(record: RunRecord) -> dict[str, str]:
    mix = record.facts.mix
    policy = {f"policy.{name}": str(value) for name, value in mix.policy.fields.items()}
    merge = {f"merge.{name}": str(v) for name, v in dataclasses.asdict(mix.merge).items()}
    return {
        "mix": mix.name,
        "policy": mix.policy.name,
        **policy,
        "slot": f"{mix.slot_s:g} s",
        "seed": str(mix.seed),
        "jobs": str(len(mix.jobs)),
        "devices": ", ".join(device.name for device in record.devices),
        **merge,
        "hadar": record.facts.hadar_version,
    }


def _job_row(job: Job) -> list[str]:
    script = Path(job.launch.code).name if job.launch.code else job.workload
    return [
        job.name,
        plain(script, 40),
        job.launch.preset,
        f"{job.target_steps:,}",
        str(job.batch_size),
        job.model_size,
        job.dataset_size,
        f"{job.least_gpus} to {job.most_gpus}" if job.sizes or job.elastic else str(job.gpus),
        f"{job.arrives_s:g} s",
    ]


def _node_row(node: Node) -> list[str]:
    speed, price = node.emulated_speed, node.price_per_hour
    return [
        node.name,
        node.host,
        ", ".join(device.kind for device in node.devices),
        "–" if speed is None else f"{speed:g} of a core",
        node.hours or "always",
        "–" if price is None else f"{price:g}",
    ]


def _hashes(record: RunRecord) -> Iterator[tuple[str, str]]:
    for name in ("run.json", "journal.jsonl"):
        try:
            yield name, hashlib.sha256((record.store.directory / name).read_bytes()).hexdigest()
        except OSError:
            continue  # a run without a journal is a run all the same
    for history in record.histories:
        if history.weights:
            yield f"weights of {history.job.name}", history.weights


def _escaped(words: str) -> str:
    return "\n".join(text(line, 10_000).replace("\0", " ") for line in words.splitlines())


# -- the files of a run --------------------------------------------------------------------------


def mix_text(mix: Mix) -> str:
    """The mix as a file; environments and setup commands may hold secrets and are left out."""
    content: dict[str, Any] = {
        "name": mix.name,
        "slot_s": mix.slot_s,
        "policy": {"name": mix.policy.name, **mix.policy.fields},
        "merge": {k: v for k, v in dataclasses.asdict(mix.merge).items() if v is not None},
        "seed": mix.seed,
        "jobs": [_job_fields(job) for job in mix.jobs],
    }
    dumped: str = yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=100)
    return dumped


def _job_fields(job: Job) -> dict[str, Any]:
    launch = job.launch
    what = {"workload": launch.workload} if launch.workload else {}
    if launch.script:
        what = {"script": Path(launch.script).name}
    elif launch.module:
        what = {"module": launch.module}
    fields = {name: getattr(job, name) for name in _SAME_IN_JOB}
    more = {
        "fork": job.fork,
        "max_duration": None if job.max_duration_s is None else f"{job.max_duration_s:g}s",
        "args": list(launch.args),
        "sync": Path(launch.sync).name if launch.sync else None,
        "setup": _HIDDEN if launch.setup else None,
        "env": dict.fromkeys(launch.env, _HIDDEN),
        "data_dir": launch.data_dir,
        "data": [Path(path).name for path in launch.data],
        "venv": Path(launch.venv).name if launch.venv else None,
    }
    return {
        **what,
        "name": job.name,
        "steps": job.target_steps,
        "preset": launch.preset,
        **fields,
        **{name: value for name, value in more.items() if value},
    }


def nodes_text(nodes: Sequence[Node]) -> str:
    """The inventory as a file: the machines and their devices, without how to log in."""
    return "\n".join(_node_text(node) for node in nodes if node.enabled)


def _node_text(node: Node) -> str:
    gpus = ", ".join(
        f"{{ model = {json.dumps(gpu.model)}, tflops = {gpu.tflops:g}, vram_gb = {gpu.vram_gb:g}, "
        f"pcie = {gpu.pcie} }}"
        for gpu in node.gpus
    )
    fields = {
        "name": json.dumps(node.name),
        "host": json.dumps(node.host),
        "gpus": f"[{gpus}]" if gpus else None,
        "emulate": f"{{ speed = {node.emulated_speed:g} }}" if node.emulated_speed else None,
        "hours": json.dumps(node.hours) if node.hours else None,
        "turn_s": f"{node.turn_s:g}" if node.turn_s != DEFAULT_TURN_S else None,
        "price_per_hour": None if node.price_per_hour is None else f"{node.price_per_hour:g}",
    }
    return "\n".join(
        ["[[node]]", *(f"{name} = {value}" for name, value in fields.items() if value), ""]
    )
