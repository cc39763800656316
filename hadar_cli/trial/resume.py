"""New processes that begin with a checkpoint altered in one respect at a time.

What a script makes of it shows what it restores.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hadar_cli.engine.ports import CopyResult
from hadar_cli.node.contract import JOB_SEED
from hadar_cli.trial import words
from hadar_cli.trial.findings import Findings, Patience
from hadar_cli.trial.trial_run import DEVICES, Merged, TrialRun
from hadar_cli.trial.weights import distances, has_optimizer_state, is_of_training
from hadar_cli.trial.words import Fault, Status

_ALIKE = 1e-6  # of an update's length: two results closer than this are the same
_NOISY = 0.01  # of it: a script that repeats itself no better than this cannot be compared
_NO_LOSS = "its weights change; of its loss it says nothing (t.log)"
_KEPT = 0.3  # of an alteration must be left in the result, if the script took it over


class Resume:
    """Several steps each: of one alone, a GradScaler may leave out the update."""

    def __init__(
        self,
        trial_run: TrialRun,
        merged: Merged,
        steps: int,
        patience: Patience,
        findings: Findings,
    ) -> None:
        self._trial_run, self._merged, self._steps = trial_run, merged, steps
        self._patience, self._findings = patience, findings

    def run(self, first: Sequence[CopyResult], losses: Sequence[float]) -> None:
        """``first`` and ``losses`` are the rounds' that came before."""
        trial_run, n = self._trial_run, self._steps
        base = self._merged.weights
        other, spent = (
            trial_run.altered(base, optimizer=False),
            trial_run.altered(base, optimizer=True),
        )
        # The steps that come next: a script may set its learning rate by their numbers.
        at = self._merged.steps
        one_step, moved = self._probe((base, (at, at + 1)), (other, (at, at + 1)))
        plain, again = self._probe((base, (at, at + n)), (base, (at, at + n)))
        tired, elsewhere = self._probe((spent, (at, at + n)), (base, (at + n, at + 2 * n)))
        fresh, likewise = self._probe((None, (0, 1)), (None, (0, 1)))

        def far(one: _Probed, two: _Probed) -> float:
            return self._far(one.weights, two.weights)

        change = _Change(self._far(plain.weights, base), far(plain, again))
        self._judge_beginning(far(fresh, likewise), change)
        self._judge_weights(base, other, one_step.weights, moved.weights)
        self._judge_updates(base, plain.result, change)
        self._judge_optimizer(base, change, far(tired, plain), plain.result.lr)
        self._judge_data(change, far(elsewhere, plain), plain, elsewhere)
        self._judge_schedule(first[0], plain.result)
        self._judge_learning(losses, change)

    def _far(self, one: str, two: str) -> float:
        path = self._trial_run.path
        return sum(distances(path(one), path(two)).values())

    def _probe(self, *wanted: tuple[str | None, tuple[int, int]]) -> list[_Probed]:
        name, patience = "restores its weights", self._patience
        orders = [
            self._trial_run.probe(
                device, steps, weights, patience.order_s, global_step=self._merged.steps
            )
            for device, (weights, steps) in zip(DEVICES, wanted, strict=True)
        ]
        probed = []
        for end in self._trial_run.await_all(orders, patience.start_s + patience.grace_s):
            self._findings.demand(name, words.explain_end(end, None, len(end.order.steps)))
            assert end.handed_in
            if not end.handed_in.weights:
                self._findings.demand(name, words.NO_CHECKPOINT)
            probed.append(_Probed(str(end.handed_in.weights), end.handed_in.result))
        return probed

    def _judge_beginning(self, apart: float, change: _Change) -> None:
        name = "begins with the same weights"
        if apart > max(_NOISY * change.update, 2 * change.noise):
            self._findings.warn(name, words.BEGINNINGS)
        else:
            self._findings.tell(name, "in every copy")

    def _judge_weights(self, base: str, other: str, plain: str, moved: str) -> None:
        trial_run = self._trial_run
        altered = distances(trial_run.path(other), trial_run.path(base))
        kept = distances(trial_run.path(moved), trial_run.path(plain))
        lost = [group for group, by in altered.items() if kept.get(group, 0.0) < _KEPT * by]
        if lost:
            fault = words.WEIGHTS
            self._findings.add(
                Fault(f"{fault.what}: {', '.join(lost[:3])}", fault.fix).at("restores its weights")
            )
        else:
            self._findings.tell("restores its weights", "in a new process")

    def _judge_updates(self, base: str, plain: CopyResult, change: _Change) -> None:
        name = "updates by its optimizer"
        if not is_of_training(self._trial_run.path(base)):
            return  # its updates are its own, and so is scaling their rate
        if plain.lr is not None:
            self._findings.tell(name, "training sees every step of it")
        elif change.update > 0:
            self._findings.add(words.BYPASSED.at(name))
        else:
            self._findings.add(words.NO_UPDATE.at(name))

    def _judge_optimizer(
        self, base: str, change: _Change, moved: float, rates: tuple[float, float] | None
    ) -> None:
        name, path = "restores its optimizer", self._trial_run.path(base)
        is_still = rates == (0, 0)
        why_still = "its learning rate is 0 there, at its schedule's end" if is_still else ""
        if not has_optimizer_state(path):
            if is_of_training(path):
                self._findings.tell(name, "it has no state to restore")
            else:
                what = "no optimizer/... in its checkpoint: right for plain SGD only"
                self._findings.tell(name, what, Status.WARNED)
        elif why := why_still or change.why_unknown:
            self._findings.tell(name, f"cannot tell: {why}", Status.WARNED)
        elif moved <= _ALIKE * change.update:
            self._findings.add(words.OPTIMIZER.at(name))
        else:
            self._findings.tell(name, "momentum and the like go on")

    def _judge_data(
        self, change: _Change, moved: float, plain: _Probed, elsewhere: _Probed
    ) -> None:
        name = "trains on its own data"
        here, there = plain.result.data, elsewhere.result.data
        if here and there:
            same = here == there
        elif why := change.why_unknown:
            self._findings.tell(name, f"cannot tell: {why}", Status.WARNED)
            return
        else:
            same = moved <= _ALIKE * change.update
        if same:
            self._findings.add(words.SAME_DATA.at(name))
        else:
            self._findings.tell(name, "other steps, other samples")

    def _judge_schedule(self, first: CopyResult, resumed: CopyResult) -> None:
        name, began = "follows its learning-rate schedule", first.lr
        if not began or not resumed.lr:
            self._findings.tell(name, 'cannot tell: it reports no "lr"', Status.WARNED)
        elif began[0] == began[1]:
            self._findings.tell(name, f"constant, {began[0]:.3g}")
        elif resumed.lr[0] == began[0] or resumed.lr[1] == began[1]:
            self._findings.add(words.SCHEDULE.at(name))
        else:
            self._findings.tell(name, f"{began[0]:.3g} at first, {resumed.lr[0]:.3g} on resuming")

    def _judge_learning(self, losses: Sequence[float], change: _Change) -> None:
        before, after = losses[0], losses[-1]
        if change.update == 0:
            self._findings.tell("learns", "its weights do not change", Status.WARNED)
        elif before == after != 0:
            self._findings.tell("learns", f"its loss does not change: {before:.4g}", Status.WARNED)
        else:
            told = f"loss {before:.4g}, then {after:.4g}" if after else _NO_LOSS
            self._findings.tell("learns", told)


@dataclass(frozen=True, slots=True)
class _Change:
    """How far the steps of one order move the weights, and how far two such results are apart."""

    update: float
    noise: float

    @property
    def why_unknown(self) -> str:
        """Why results cannot be compared; empty if they can."""
        if self.update == 0:
            return "no update happened, its weights are as they were"
        if self.noise > _NOISY * self.update:
            return f"not seeded: the same order gives other weights every time; use {JOB_SEED}"
        return ""


@dataclass(frozen=True, slots=True)
class _Probed:
    weights: str
    result: CopyResult
