"""A script to its very end: every kind of order that a run sends, then nothing more to do."""

from __future__ import annotations

from typing import Any

from hadar_cli.engine.ports import HandedIn
from hadar_cli.node.agent_events import Exited
from hadar_cli.node.log_phrases import (
    BEGUN_AGAIN,
    EARLY_UPDATE,
    LEFT_UNTRAINED,
    MISCOUNTED,
    NO_UPDATE,
    OWN_STATE,
    RUNS_AHEAD,
)
from hadar_cli.trial import words
from hadar_cli.trial.findings import Findings, Patience
from hadar_cli.trial.record import read_record
from hadar_cli.trial.trial_run import DEVICES, TrialRun
from hadar_cli.trial.words import Fault

_NAME = "runs to its end"


class Ending:
    """The last part of a trial: its processes are dismissed at the end."""

    def __init__(
        self, trial_run: TrialRun, steps: int, patience: Patience, findings: Findings
    ) -> None:
        self._trial_run, self._steps = trial_run, steps
        self._patience, self._findings = patience, findings
        self._record = trial_run.store.directory / "to-the-end.trace"
        self._job = trial_run.job_apart(2 * steps, self._record)

    def run(self, stays: bool) -> None:
        """``stays``: its processes wait for orders. Then a run may have one begin without any."""
        n, kinds = self._steps, ["steps"]
        if stays:
            self._side_task("a process that waits for its first order", None)
            kinds.insert(0, "waiting")
        first = self._train((0, n), None, evaluate=True)
        last = self._train((n, 2 * n), first.weights, global_step=n)
        kinds.append("more steps")
        if first.result.quality is not None:
            answer = self._side_task(
                "its final evaluation", last.weights, evaluate=True, global_step=2 * n
            )
            if answer.result.quality is None:
                self._findings.demand(_NAME, words.NO_QUALITY)
            kinds.append("an evaluation")
        left = self._trial_run.dismiss(self._job, DEVICES[0], self._patience.leave_s)
        self._judge(left, kinds)

    def _train(self, steps: tuple[int, int], weights: str | None, **how: Any) -> HandedIn:
        return self._do(steps, weights, None, **how)

    def _side_task(self, what: str, weights: str | None, **how: Any) -> HandedIn:
        """An order without steps, which wants no weights: ``HADAR_CKPT_OUT`` is empty."""
        return self._do((0, 0), weights, what, returns_weights=False, **how)

    def _do(
        self, steps: tuple[int, int], weights: str | None, side_task: str | None, **how: Any
    ) -> HandedIn:
        patience = self._patience
        order = self._trial_run.probe(
            DEVICES[0], steps, weights, patience.order_s, self._job, **how
        )
        (end,) = self._trial_run.await_all([order], patience.start_s + patience.grace_s)
        fault = words.explain_end(
            end, None, steps[1] - steps[0], is_side_task=side_task is not None
        )
        if fault and side_task:
            fault = Fault(f"asked for {side_task}, {fault.what}", fault.fix)
        self._findings.demand(_NAME, fault)
        assert end.handed_in
        return end.handed_in

    def _judge(self, left: Exited | None, kinds: list[str]) -> None:
        if left is None:
            self._findings.add(words.NEVER_ENDS.at(_NAME))
            return
        if left.code and (refused := words.refusal_in(left.log)):
            self._findings.add(refused.at(_NAME))
            return
        if left.code:
            fault = words.NEVER_ENDS if left.code < 0 else words.FAILS_AT_THE_END
            self._findings.add(Fault(fault.what, fault.fix + words.tail(left.log)).at(_NAME))
            return
        if LEFT_UNTRAINED in left.log:
            self._findings.add(words.LEFT_UNTRAINED.at("trains all that it has"))
        elif BEGUN_AGAIN in left.log:
            if read_record(self._record).ticks_too_late:
                self._findings.add(words.EPOCHS_TICK.at("has its epochs from t.epochs"))
            else:
                self._findings.warn("has its epochs from t.epochs", words.EPOCHS)
        if RUNS_AHEAD in left.log:
            self._findings.add(words.RUNS_AHEAD.at("makes an update in every step"))
        elif NO_UPDATE in left.log:
            self._findings.warn("makes an update in every step", words.ACCUMULATES)
        if EARLY_UPDATE in left.log:
            self._findings.warn("ends its steps with an update", words.EARLY_UPDATE)
        if names := self._trial_run.said(OWN_STATE):
            fault = words.OWN_STATE
            self._findings.warn("keeps nothing of its own", Fault(fault.what + names, fault.fix))
        if self._trial_run.said(MISCOUNTED) is not None:
            self._findings.add(words.MISCOUNTED.at("counts the job's updates"))
        self._findings.tell(_NAME, f"{', '.join(kinds)}; then it leaves by itself")
