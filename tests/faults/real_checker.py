"""The invariants of a real run, recounted from its directory and its nodes."""

from __future__ import annotations

import hashlib
import signal
import time
from collections.abc import Collection
from pathlib import Path

import numpy as np

from hadar_cli.core import events
from hadar_cli.core.model import MergeRules
from hadar_cli.runs.store import read_journal
from tests.faults import weights
from tests.faults.checker import Claims, Recount, check_models, demand, recount_all
from tests.faults.real_run import RealRun
from tests.faults.real_site import Site

LEASE_S = 20.0
_KILLED = -signal.SIGKILL


class RealRecount(Recount):
    """Every accepted copy's weights are those of its own steps on the weights before them."""

    def __init__(self, run: RealRun) -> None:
        super().__init__()
        self._places = (run.store.object_path(""), run.directory / "kept")
        self._size = run.floats

    def _load(self, digest: str) -> weights.Vector:
        paths = [place / digest for place in self._places if (place / digest).is_file()]
        demand(paths, f"I8: {digest[:8]} is neither in the store nor among what was removed")
        found = hashlib.sha256()
        with paths[0].open("rb") as file:
            while block := file.read(1 << 24):
                found.update(block)
        demand(found.hexdigest() == digest, f"I2: {digest[:8]} has other bytes than its name says")
        return weights.load(paths[0])

    def _check_weights(self, event: events.WeightsMerged, claims: Claims) -> weights.Vector:
        untrained, copies, late = np.zeros(self._size), [], []
        for attempt, (finished, claimed) in claims.items():
            copy = self._started[attempt]
            before = self.past[event.job, copy.generation]
            before = untrained if before is None else before
            made = self._load(finished.weights or "")
            expected = before.copy()
            for step in claimed:
                expected[step % self._size] += 1.0 + step / 1000
            is_right = np.allclose(made, expected, rtol=1e-9)
            demand(is_right, f"I8: {attempt} did not train the weights it was given by its steps")
            trained = weights.Trained(before, made, len(claimed))
            if copy.generation < event.generation - 1:
                late.append((copy, trained))
            else:
                copies.append(trained)
        base = self.weights.get(event.job)
        mean_of = weights.average(base, copies, MergeRules(rule="mean")) if copies else base
        assert mean_of is not None, "nobody is late before there are weights"
        for copy, trained in late:
            assert base is not None
            merges = event.generation - 1 - copy.generation
            mean_of = mean_of + weights.late_update(base, trained, merges, copy.lr_scale)[0]
        found = self._load(event.weights)
        demand(np.allclose(found, mean_of, rtol=1e-9), f"I8: job {event.job}, not the average")
        return found


def check_run(run: RealRun, is_finished: bool = True) -> None:
    """All that must hold of the run's directory once no head drives it."""
    journal = read_journal(run.store.journal_path)
    jobs = run.store.facts.mix.jobs
    recount = RealRecount(run)
    recount_all(recount, journal, jobs)
    if is_finished:
        check_models(recount, run.store, jobs)
        demand(isinstance(journal[-1], events.RunFinished), "I4: no record of the run's end")
    check_exits(run)
    check_nothing_else_was_touched(run)


def check_exits(run: RealRun) -> None:
    """Every head ended with a code that means something, and a message where there is a need."""
    for code, said in run.exits:
        demand("Traceback" not in said, f"I6: a traceback: {said[-500:]}")
        demand(code in (0, 3, 4, 5, 6, 130, _KILLED), f"I6: exit code {code}: {said[-300:]}")
        if code in (3, 4, 5, 6):
            demand(said.strip() and "hadar" in said, f"I6: no next step in: {said[-300:]}")


def check_no_process(site: Site, within_s: float = 3.0) -> None:
    """Nothing that was started on any node through its server is left."""
    deadline = time.monotonic() + within_s
    while left := [pid for node in site.lab.nodes for pid in node.sessions()]:
        if time.monotonic() > deadline:
            words = [Path(f"/proc/{pid}/cmdline").read_bytes()[-80:] for pid in left[:3]]
            demand(False, f"I3: {len(left)} processes left on the nodes: {words}")
        time.sleep(0.05)
    demand(True, "I3")


def check_nothing_else_was_touched(run: RealRun, also: Collection[str] = ()) -> None:
    here = {path.name for path in run.directory.iterdir()}
    allowed = {"runs", "kept", "job.py", "mix.yaml", "nodes.toml", "stderr", "calls", *also}
    demand(here <= allowed, f"I7: beside the run there is {here - allowed}")
    for node in run.site.lab.nodes:
        there = {path.name for path in node.home.iterdir()}
        allowed = {".hadar", "trained", "canary", *run.site.furniture}
        demand(there <= allowed, f"I7: on {node.name} there is {there - allowed}")
        canary = node.home / "canary"
        is_alive = not canary.exists() or canary.read_text() == "sings"
        demand(is_alive, f"I7: a file of {node.name}'s user was changed")
