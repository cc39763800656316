"""Keeps a run's directory tidy while it trains: old checkpoints go, finished models are put out."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from hadar_cli.adapters.safetensors_file import DTYPES, Array, Checkpoint, Tensor, write
from hadar_cli.adapters.store import RunStore, replace_durably
from hadar_cli.app.ports import Progressed
from hadar_cli.core import events
from hadar_cli.core.state import RunState

KEPT_GENERATIONS = 3
_BLOCK = 1 << 20  # elements


class Housekeeper:
    """Watches a run. What a copy handed in is garbage once merged, and so are old generations."""

    def __init__(self, store: RunStore, state: RunState) -> None:
        self._store, self._state = store, state
        self._inputs: dict[int, set[str]] = defaultdict(set)
        self._given: dict[str, str] = {}  # attempt under way -> the weights it was sent off with
        self._generations: dict[int, list[str]] = {
            number: [digest for digest in (job.rival, job.weights) if digest]
            for number, job in state.jobs.items()
        }
        for number, job in state.jobs.items():  # what the head before this one had still to merge
            self._inputs[number] = {c.weights for c in job.handed_in.values() if c.weights}
        held = [*self._generations.values(), *self._inputs.values()]
        store.collect_garbage(digest for digests in held for digest in digests)

    def happened(self, event: events.Event) -> None:
        match event:
            case events.HeadStarted():
                for number in self._state.jobs:
                    self._put_out_if_trained(number)
            case events.CopyStarted():
                if weights := self._state.jobs[event.job].weights:
                    self._given[event.attempt] = weights
            case events.CopyFinished():
                self._given.pop(event.attempt, None)
                job = self._state.started[event.attempt].job
                if event.weights:
                    self._inputs[job].add(event.weights)
                self._put_out_if_trained(job)
            case events.CopyLost():
                self._given.pop(event.attempt, None)
            case events.WeightsMerged():
                self._tidy(event)
                self._put_out_if_trained(event.job)
            case events.JobCutShort():
                self._put_out_if_trained(event.job)

    def progressed(self, report: Progressed) -> None: ...

    def tick(self) -> None: ...

    def _tidy(self, event: events.WeightsMerged) -> None:
        kept = self._generations[event.job]
        kept += [digest for digest in (event.rival, event.weights) if digest]
        # A copy that starts slowly may still have to read weights that others have left behind.
        old = [digest for digest in kept[:-KEPT_GENERATIONS] if digest not in self._given.values()]
        stale = self._inputs.pop(event.job, set()) | set(old)
        kept[:] = [digest for digest in kept if digest not in old]
        for digest in stale.difference(*self._generations.values()):
            self._store.object_path(digest).unlink(missing_ok=True)

    def _put_out_if_trained(self, number: int) -> None:
        job = self._state.jobs[number]
        path = self._store.directory / "models" / f"{job.job.name}.safetensors"
        if job.is_trained and job.weights and not job.rival and not path.exists():
            part = path.with_name(path.name + ".part")
            export_model(self._store.object_path(job.weights), part)
            replace_durably(part, path)


def export_model(checkpoint: Path, out: Path) -> None:
    """The model's weights alone, under their own names, as ``load_state_dict`` wants them.

    A script with several models has them in one file, each name led by its model's number.
    """
    with Checkpoint(checkpoint) as source, out.open("wb") as file:
        tied = json.loads(source.metadata.get("hadar", "{}")).get("tied", {})
        sources = {name: name for name in source.tensors if name.startswith("model/")} | tied
        prefix = "model/" if any(name.startswith("model/1/") for name in sources) else "model/0/"
        named = {name.removeprefix(prefix): held for name, held in sources.items()}
        tensors = [replace(source.tensors[held], name=name) for name, held in named.items()]
        write(file, tensors, {"format": "pt"}, _blocks(source, tensors, named))


def _blocks(source: Checkpoint, tensors: list[Tensor], held: dict[str, str]) -> Iterator[Array]:
    for tensor in tensors:
        for start in range(0, tensor.size, _BLOCK):
            size = min(_BLOCK, tensor.size - start)
            block = np.empty(size, DTYPES[tensor.dtype])
            source.read_into(held[tensor.name], start, block)
            yield block
