"""Who of a sweep trains on: successive halving by held-out quality at equal counted steps.

Of the trials that reach a rung, one in ``keep`` goes on. A trial is promoted as soon as no result
that is still missing could change that, and ends as soon as enough others are better: so devices
need not wait for the last result, and yet the outcome is that of waiting for all of them. It
follows from the scores alone, not from who was measured first: the machines' speeds cannot change
it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from hadar_cli.core import events
from hadar_cli.core.estimates.quality import higher_is_better
from hadar_cli.core.job_state import JobState
from hadar_cli.core.model import Plateau, Promotion


def decide(jobs: Iterable[JobState], now: float) -> list[events.Event]:
    """What is certain by now about jobs that wait at a milestone."""
    waiting = [job for job in jobs if job.is_at_milestone and job.is_measured]
    sweeps: dict[str, list[JobState]] = {}
    for job in jobs:
        if job.job.trial and job.job.promote:
            sweeps.setdefault(job.job.trial.sweep, []).append(job)
    decided: list[events.Event] = []
    for job in waiting:
        step, promote, stop = job.limit, job.job.promote, job.job.stop
        why, passes = "", True
        if stop and step % stop.every == 0 and _is_flat(job, stop):
            why = f"no better {stop.metric} in {stop.patience} measurements"
        elif promote and job.job.trial and step in promote.rungs:
            passes, why = _verdict(job, sweeps[job.job.trial.sweep], promote)
        number = job.job.id
        if why:
            decided.append(events.JobCutShort(now, number, why, is_planned=True))
        elif passes:
            decided.append(events.MilestonePassed(now, number, step, job.score_at(step)))
    return decided


def _verdict(job: JobState, trials: list[JobState], promote: Promotion) -> tuple[bool, str]:
    """Whether the trial passes its rung; why not, if that is certain."""
    step = job.limit
    place = promote.rungs.index(step)
    expected = promote.contenders(len(trials), place)
    keeps = promote.contenders(len(trials), place + 1)
    known = [
        one for one in trials if _has_come(one, promote.rungs[:place]) and _is_known(one, step)
    ]
    if all(one.score_at(step) is None for one in known):  # nobody tells: nobody is judged
        return len(known) >= expected, ""
    better = sum(_rank(one, step) < _rank(job, step) for one in known)
    missing = expected - len(known)
    if better >= keeps:
        return False, f"not among the best {keeps} of {expected} at step {step:,}"
    return better + missing < keeps, ""


def _has_come(job: JobState, rungs: tuple[int, ...]) -> bool:
    return not rungs or rungs[-1] in job.passed


def _is_known(job: JobState, step: int) -> bool:
    """Whether what it came to at that step is certain; who ended before has come to nothing."""
    has_left = job.is_over or job.is_cancelled
    return step in job.scores or step in job.passed or has_left


def _rank(job: JobState, step: int) -> tuple[float, int]:
    score, promote, trial = job.score_at(step), job.job.promote, job.job.trial
    assert promote and trial
    if score is None:
        return math.inf, trial.number
    sign = -1 if higher_is_better(promote.metric, job.job.higher_is_better) else 1
    return sign * score, trial.number


def _is_flat(job: JobState, stop: Plateau) -> bool:
    """Whether the newest measurements are no better than the best before them."""
    sign = -1 if higher_is_better(stop.metric, job.job.higher_is_better) else 1
    steps = sorted(step for step in job.scores if step % stop.every == 0)
    scores = [job.score_at(step, stop.metric) for step in steps]
    if any(score is None for score in scores) or len(scores) <= stop.patience:
        return False
    signed = [sign * score for score in scores if score is not None]
    return min(signed[-stop.patience :]) >= min(signed[: -stop.patience])
