"""Keeps a run's directory tidy while it trains: old checkpoints go, finished models are put out."""

from __future__ import annotations

from collections import defaultdict

from hadar_cli.core import events
from hadar_cli.core.state import JobState, RunState
from hadar_cli.engine.ports import Observer
from hadar_cli.runs.finished_models import export_model, export_pretrained
from hadar_cli.runs.store import RunStore, replace_durably

KEPT_GENERATIONS = 3


class Housekeeper(Observer):
    """Watches a run. What a copy handed in is garbage once merged, and so are old generations."""

    def __init__(self, store: RunStore, state: RunState) -> None:
        self._store, self._state = store, state
        self._inputs: dict[int, set[str]] = defaultdict(set)
        self._generations = {number: _needed(job) for number, job in state.jobs.items()}
        for number, job in state.jobs.items():  # what the head before this one had still to merge
            self._inputs[number] = {c.weights for c in job.handed_in.values() if c.weights}
        self._collect(any(job.active for job in state.jobs.values()))

    def _collect(self, arriving: bool) -> None:
        held = [*self._generations.values(), *self._inputs.values()]
        self._store.collect_garbage((digest for digests in held for digest in digests), arriving)

    def happened(self, event: events.Event) -> None:
        match event:
            case events.CopyFinished():
                job = self._state.started[event.attempt].job
                if event.weights:
                    self._inputs[job].add(event.weights)
                self._put_out_if_trained(job)
            case events.WeightsMerged():
                self._tidy(event)
                self._put_out_if_trained(event.job)
            case events.JobCutShort():
                self._put_out_if_trained(event.job)
            case events.RunFinished():
                self._collect(arriving=False)

    def put_out_trained(self) -> None:
        """What the head before this one left to put out, once its bytes are known to be whole."""
        for number in self._state.jobs:
            self._put_out_if_trained(number)

    def _tidy(self, event: events.WeightsMerged) -> None:
        kept = self._generations[event.job]
        kept += [event.weights] if event.weights else []
        needed = _needed(self._state.jobs[event.job])
        old = [digest for digest in kept[:-KEPT_GENERATIONS] if digest not in needed]
        stale = self._inputs.pop(event.job, set()) | set(old)
        kept[:] = [digest for digest in kept if digest not in old]
        for digest in stale.difference(*self._generations.values()):
            self._store.object_path(digest).unlink(missing_ok=True)

    def _put_out_if_trained(self, number: int) -> None:
        job = self._state.jobs[number]
        path = self._store.directory / "models" / f"{job.job.name}.safetensors"
        if job.is_trained and job.weights and not path.exists():
            checkpoint, part = self._store.object_path(job.weights), path.with_suffix(".part")
            export_pretrained(checkpoint, path.with_suffix(""))
            export_model(checkpoint, part)
            replace_durably(part, path)


def _needed(job: JobState) -> list[str]:
    """What its next copies start from; and what others started from, as who starts slowly may still
    have to read it, and who hands in late is judged by it."""
    begun = (digest for generation in job.generations.values() for digest in generation.files)
    return list(dict.fromkeys([*begun, *job.files]))
