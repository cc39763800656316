"""``hadar try``: two small rounds of a script with two copies, an interruption, a merge, a resume.

The rounds are a real run's, on this machine. The probes after them start the script anew with a
checkpoint that is altered in one respect: what it makes of it shows what it restores.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hadar_cli.adapters import trial_words as words
from hadar_cli.adapters.trial_stage import DEVICES, Ended, Stage, open_stage
from hadar_cli.adapters.trial_weights import (
    describe,
    distances,
    has_optimizer_state,
    is_of_training,
)
from hadar_cli.adapters.trial_words import Check, Fault, Status
from hadar_cli.app.ports import CopyOrder, CopyResult

_ALIKE = 1e-6  # of an update's length: two results closer than this are the same
_NOISY = 0.01  # of it: a script that repeats itself no better than this cannot be compared
_KEPT = 0.3  # of an alteration must be left in the result, if the script took it over
_MANY = 100_000  # steps that nobody does within a few seconds

Tell = Callable[[Check], None]


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a trial waits, in seconds."""

    start_s: float = 60.0  # for a copy's first steps
    deadline_s: float = 2.0  # of the order that is too long for it
    grace_s: float = 5.0  # past a deadline
    leave_s: float = 8.0  # after SIGTERM; two more, and its node kills it


class _Over(Exception):
    """Nothing more can be found out."""


class Trial:
    """One script on trial; ``tell`` hears of every check as soon as it is made."""

    def __init__(
        self,
        script: Path,
        args: Sequence[str],
        tell: Tell,
        steps: int = 8,
        patience: Patience | None = None,
    ) -> None:
        self._script, self._args, self._steps = script, args, steps
        self._patience = patience or Patience()
        self._hear = tell
        self._checks: list[Check] = []
        self._first: list[CopyResult] = []
        self._losses: list[float] = []
        self._took_s = 0.0

    def run(self) -> list[Check]:
        with open_stage(self._script, self._args) as stage:
            try:
                self._rounds(stage)
                self._interruption(stage)
                self._resume(stage)
            except _Over:
                pass
        return self._checks

    def _tell(self, name: str, what: str = "", status: Status = Status.PASSED) -> None:
        self._add(Check(name, status, what))

    def _add(self, check: Check) -> None:
        self._checks.append(check)
        self._hear(check)

    # -- rounds ------------------------------------------------------------------------------

    def _rounds(self, stage: Stage) -> None:
        ends = self._round(stage, "starts and hands in")
        self._first = [end.handed_in.result for end in ends if end.handed_in]
        self._took_s = max(end.after_s for end in ends)
        self._tell("starts and hands in", f"two copies, done after {self._took_s:.1f} s")
        self._tell("does the steps it is given", f"{self._steps} + {self._steps} of them")
        self._merge(stage, "leaves weights that can be merged")
        merged = describe(stage.path(stage.weights)) if stage.weights else ""
        self._tell("leaves weights that can be merged", merged)

        ends = self._round(stage, "goes on after a merge")
        self._merge(stage, "goes on after a merge")
        stays = all(end.handed_in and end.handed_in.stays for end in ends)
        how = "in the same process" if stays else "started anew for every round"
        self._tell("goes on after a merge", how)

    def _round(self, stage: Stage, name: str) -> list[Ended]:
        """Both copies do their steps; anything else ends the trial."""
        stage.begin_round()
        seconds = self._patience.start_s
        orders = [stage.hand_out(device, self._steps, seconds) for device in DEVICES]
        ends = stage.await_all(orders, seconds + self._patience.grace_s)
        for end in ends:
            self._demand(name, words.explain_end(end, stage.accept(end), self._steps))
        losses = [end.handed_in.result.loss for end in ends if end.handed_in]
        self._losses.append(statistics.fmean([loss for loss in losses if loss is not None] or [0]))
        return ends

    def _merge(self, stage: Stage, name: str) -> None:
        merged = stage.merge()
        for _, why in merged.refused if merged else ():
            self._demand(name, words.explain_refusal(why))

    def _demand(self, name: str, fault: Fault | None) -> None:
        if fault:
            self._add(fault.at(name))
            raise _Over

    # -- an interruption ---------------------------------------------------------------------

    def _interruption(self, stage: Stage) -> None:
        """More steps than can be done: one copy must stop by itself, the other when told to."""
        patience = self._patience
        stage.begin_round()
        limit = patience.deadline_s + self._took_s + patience.grace_s
        timed = stage.hand_out(DEVICES[0], _MANY, patience.deadline_s)
        told = stage.hand_out(DEVICES[1], _MANY, patience.start_s + limit)
        ends = self._recall_one(stage, timed, told, limit)
        self._judge_deadline(stage, ends[0])
        self._judge_leaving(stage, ends[1])
        self._merge(stage, "merges after an interruption")

    def _recall_one(
        self, stage: Stage, timed: CopyOrder, told: CopyOrder, limit_s: float
    ) -> list[Ended]:
        """Recalls ``told`` once it trains. Waits for ``timed`` up to its limit, then for both."""
        began, recalled_at = stage.executor.now(), None
        standing: dict[str, Ended] = {}
        for standing in stage.watch([timed, told], limit_s + self._patience.leave_s):
            now = stage.executor.now()
            trains = standing[told.attempt].progressed or now > began + 1.0 + 1.5 * self._took_s
            if trains and recalled_at is None:
                recalled_at = now
                stage.executor.recall([told.attempt])
            late = now > began + limit_s and not standing[timed.attempt].is_over
            left = recalled_at and now > recalled_at + self._patience.leave_s
            if late and (left or standing[told.attempt].is_over):
                break
        return [standing[timed.attempt], standing[told.attempt]]

    def _judge_deadline(self, stage: Stage, end: Ended) -> None:
        name = "stops at its deadline"
        if not end.is_over:
            self._add(words.PAST_DEADLINE.at(name))
        elif fault := self._fault_of_part(stage, end):
            self._add(fault.at(name))
        else:
            assert end.handed_in
            self._tell(name, f"{end.handed_in.result.steps} steps in {end.order.seconds:.0f} s")

    def _judge_leaving(self, stage: Stage, end: Ended) -> None:
        name = "leaves when told to"
        if not end.is_over:
            self._add(words.DEAF.at(name))
        elif fault := self._fault_of_part(stage, end):
            self._add(fault.at(name))
        else:
            self._tell(name, "SIGTERM: saved, reported, gone")

    def _fault_of_part(self, stage: Stage, end: Ended) -> Fault | None:
        """As for a whole order, except that it need not be done in full."""
        return words.explain_end(end, stage.accept(end), 0)

    # -- a resume ----------------------------------------------------------------------------

    def _resume(self, stage: Stage) -> None:
        """New processes, from a checkpoint that is altered in one respect at a time."""
        base = stage.weights
        assert base
        name, n = "restores its weights", self._steps
        plain, again = self._probe(stage, name, (base, (0, 1)), (base, (0, 1)))
        other = stage.altered(base, optimizer=False)
        moved, elsewhere = self._probe(stage, name, (other, (0, 1)), (base, (n, n + 1)))
        spent = stage.altered(base, optimizer=True)
        tired, longer = self._probe(stage, name, (spent, (0, 1)), (base, (0, n)))
        fresh, likewise = self._probe(stage, name, (None, (0, 1)), (None, (0, 1)))

        def far(one: str, two: str) -> float:
            return sum(distances(stage.path(one), stage.path(two)).values())

        update, noise = far(plain.weights, base), far(plain.weights, again.weights)
        self._judge_beginning(far(fresh.weights, likewise.weights), update, noise)
        self._judge_weights(stage, base, other, plain.weights, moved.weights)
        self._judge_optimizer(stage, base, update, noise, far(tired.weights, plain.weights))
        self._judge_data(update, noise, far(elsewhere.weights, plain.weights), plain, elsewhere)
        self._judge_schedule(longer.result)
        self._judge_learning(update)

    def _probe(
        self, stage: Stage, name: str, *wanted: tuple[str | None, tuple[int, int]]
    ) -> list[_Probed]:
        seconds = self._patience.start_s
        orders = [
            stage.probe(device, steps, weights, seconds)
            for device, (weights, steps) in zip(DEVICES, wanted, strict=True)
        ]
        probed = []
        for end in stage.await_all(orders, seconds + self._patience.grace_s):
            self._demand(name, words.explain_end(end, None, len(end.order.steps)))
            assert end.handed_in
            if not end.handed_in.weights:
                self._demand(name, words.NO_CHECKPOINT)
            probed.append(_Probed(str(end.handed_in.weights), end.handed_in.result))
        return probed

    def _judge_beginning(self, apart: float, update: float, noise: float) -> None:
        name, fault = "begins with the same weights", words.BEGINNINGS
        if apart > max(_NOISY * update, 2 * noise):
            self._add(Check(name, Status.WARNED, fault.what, fault.fix))
        else:
            self._tell(name, "in every copy")

    def _judge_weights(self, stage: Stage, base: str, other: str, plain: str, moved: str) -> None:
        altered = distances(stage.path(other), stage.path(base))
        kept = distances(stage.path(moved), stage.path(plain))
        lost = [group for group, by in altered.items() if kept.get(group, 0.0) < _KEPT * by]
        if lost:
            fault = words.WEIGHTS
            self._add(
                Fault(f"{fault.what}: {', '.join(lost[:3])}", fault.fix).at("restores its weights")
            )
        else:
            self._tell("restores its weights", "in a new process")

    def _judge_optimizer(
        self, stage: Stage, base: str, update: float, noise: float, moved: float
    ) -> None:
        name = "restores its optimizer"
        if not has_optimizer_state(stage.path(base)):
            if is_of_training(stage.path(base)):
                self._tell(name, "it has no state to restore")
            else:
                self._tell(
                    name,
                    "no optimizer/... in its checkpoint: right for plain SGD only",
                    Status.WARNED,
                )
        elif update == 0 or noise > _NOISY * update:
            self._tell(
                name, "cannot tell: the same order gives other weights every time", Status.WARNED
            )
        elif moved <= _ALIKE * update:
            self._add(words.OPTIMIZER.at(name))
        else:
            self._tell(name, "momentum and the like go on")

    def _judge_data(
        self, update: float, noise: float, moved: float, plain: _Probed, elsewhere: _Probed
    ) -> None:
        name = "trains on its own data"
        here, there = plain.result.data, elsewhere.result.data
        if here and there:
            same = here == there
        elif noise > _NOISY * update:
            self._tell(
                name,
                "cannot tell: the same order gives other weights every time; use HADAR_JOB_SEED",
                Status.WARNED,
            )
            return
        else:
            same = update > 0 and moved <= _ALIKE * update
        if same:
            self._add(words.SAME_DATA.at(name))
        else:
            self._tell(name, "other steps, other samples")

    def _judge_schedule(self, resumed: CopyResult) -> None:
        name = "follows its learning-rate schedule"
        began = self._first[0].lr
        if not began or not resumed.lr:
            self._tell(name, 'cannot tell: it reports no "lr"', Status.WARNED)
        elif began[0] == began[1]:
            self._tell(name, f"constant, {began[0]:.3g}")
        elif resumed.lr[0] == began[0] or resumed.lr[1] == began[1]:
            self._add(words.SCHEDULE.at(name))
        else:
            self._tell(name, f"{began[0]:.3g} at first, {resumed.lr[0]:.3g} on resuming")

    def _judge_learning(self, update: float) -> None:
        before, after = self._losses[0], self._losses[-1]
        if update == 0:
            self._tell("learns", "its weights do not change", Status.WARNED)
        elif before == after != 0:
            self._tell("learns", f"its loss does not change: {before:.4g}", Status.WARNED)
        else:
            told = f"loss {before:.4g}, then {after:.4g}" if after else "it reports no loss"
            self._tell("learns", told)


@dataclass(frozen=True, slots=True)
class _Probed:
    weights: str
    result: CopyResult
