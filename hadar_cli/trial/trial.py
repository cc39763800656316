"""``hadar try``: a script by hand, and as a run would have it on this machine.

Two small rounds with two copies and a merge; the same steps on one device as by hand; an order too
long, an interruption, a resume; and a job to its very end. All of it in copies of the project.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from hadar_cli.assembly import venv_here
from hadar_cli.core.model import Launch
from hadar_cli.engine.ports import CopyOrder, CopyResult
from hadar_cli.project.folder import find_project
from hadar_cli.project.selection import select
from hadar_cli.trial import words
from hadar_cli.trial.comparison import Comparison
from hadar_cli.trial.ending import Ending
from hadar_cli.trial.findings import Findings, Over, Patience, Tell
from hadar_cli.trial.resume import Resume
from hadar_cli.trial.trial_run import DEVICES, Ended, TrialRun, open_trial_run
from hadar_cli.trial.weights import describe
from hadar_cli.trial.words import Check, Fault

_LAST_TOLD = 3  # times that a copy may tell of more steps while it comes to its end
_MANY = 4_000  # steps that hardly a script does in seconds; a copy starts that far into the job


def launch_of(script: Path, args: Sequence[str] = ()) -> Launch:
    """A script as a mix would have it that says nothing more of it."""
    project = find_project(script)
    sync = str(project.folder) if project else None
    return Launch(script=str(script.absolute()), args=tuple(args), sync=sync)


class Trial:
    """One script on trial; ``tell`` hears of every check as soon as it is made."""

    def __init__(
        self, launch: Launch, tell: Tell, steps: int = 8, patience: Patience | None = None
    ) -> None:
        """``launch``: that of a script (``launch_of``), or of a job of a mix."""
        self._launch, self._steps = launch, steps
        self._patience = patience or Patience()
        self._findings = Findings(tell)
        self._first: list[CopyResult] = []
        self._losses: list[float] = []
        self._took_s, self._stays = 0.0, False
        self._length = 0  # the steps that the script by itself would train, if known

    @property
    def unseen(self) -> list[str]:
        """What was not looked at, and is left to the user."""
        return [*self._findings.unseen, *words.NEVER_SEEN]

    def run(self) -> list[Check]:
        launch = self._launch
        chosen = select(Path(launch.sync or str(launch.script)), [Path(p) for p in launch.data])
        with open_trial_run(launch) as trial_run:
            if launch.venv:
                launch = replace(launch, python=venv_here(Path(launch.venv), trial_run.store))
            comparison = Comparison(
                trial_run, chosen, launch, self._steps, self._patience, self._findings
            )
            try:
                self._try(trial_run, comparison)
            except Over:
                pass
            finally:
                comparison.end()
        return self._findings.checks

    def _try(self, trial_run: TrialRun, comparison: Comparison) -> None:
        try:
            self._rounds(trial_run, comparison)
            comparison.judge()
        finally:
            comparison.judge_files()  # a file that is not there may be why it crashed
        self._length = comparison.length
        merged = trial_run.merged  # later ones may lie beyond the end that its schedule has
        self._interruption(trial_run)
        resume = Resume(trial_run, merged, self._steps, self._patience, self._findings)
        resume.run(self._first, self._losses)
        Ending(trial_run, self._steps, self._patience, self._findings).run(self._stays)

    # -- rounds ------------------------------------------------------------------------------

    def _rounds(self, trial_run: TrialRun, comparison: Comparison) -> None:
        ends = self._round(trial_run, "starts and hands in", comparison)
        self._first = [end.handed_in.result for end in ends if end.handed_in]
        self._took_s = max(end.after_s for end in ends)
        self._findings.tell("starts and hands in", f"two copies, done after {self._took_s:.1f} s")
        self._findings.tell("does the steps it is given", f"{self._steps} + {self._steps} of them")
        self._merge(trial_run, "leaves weights that can be merged")
        merged = describe(trial_run.path(trial_run.weights)) if trial_run.weights else ""
        self._findings.tell("leaves weights that can be merged", merged)

        ends = self._round(trial_run, "goes on after a merge", comparison)
        self._merge(trial_run, "goes on after a merge")
        self._stays = all(end.handed_in and end.handed_in.stays for end in ends)
        how = "in the same process" if self._stays else "started anew for every round"
        self._findings.tell("goes on after a merge", how)

    def _round(self, trial_run: TrialRun, name: str, comparison: Comparison) -> list[Ended]:
        """Both copies do their steps; anything else ends the trial."""
        trial_run.begin_round()
        patience = self._patience
        orders = [trial_run.hand_out(device, self._steps, patience.order_s) for device in DEVICES]
        ends = trial_run.await_all(orders, patience.start_s + patience.grace_s)
        for end in ends:
            fault = words.explain_end(end, trial_run.accept(end), self._steps)
            if fault and end.lost:
                fault = words.explain_length(fault, end, comparison.own_length())
            self._findings.demand(name, fault)
        losses = [end.handed_in.result.loss for end in ends if end.handed_in]
        self._losses.append(statistics.fmean([loss for loss in losses if loss is not None] or [0]))
        return ends

    def _merge(self, trial_run: TrialRun, name: str) -> None:
        if merged := trial_run.merge():
            for attempt, why in merged.refused:
                self._findings.demand(name, words.explain_refusal(merged.refused_for[attempt], why))

    # -- an interruption ---------------------------------------------------------------------

    def _interruption(self, trial_run: TrialRun) -> None:
        """More steps than can be done: one copy must stop by itself, the other when told to."""
        patience = self._patience
        trial_run.begin_round()
        limit = patience.deadline_s + 3 * self._took_s + patience.grace_s
        timed = trial_run.hand_out(DEVICES[0], _MANY, patience.deadline_s)
        told = trial_run.hand_out(DEVICES[1], _MANY, patience.order_s)
        ends = self._recall_one(trial_run, timed, told, limit)
        for end in ends:  # more than an epoch shows what the first steps did not
            refused = words.refusal_in(end.lost.log) if end.lost else None
            self._findings.demand("can be followed", refused)
        self._judge_deadline(trial_run, ends[0])
        self._judge_leaving(trial_run, ends[1])
        self._merge(trial_run, "merges after an interruption")

    def _recall_one(
        self, trial_run: TrialRun, timed: CopyOrder, told: CopyOrder, limit_s: float
    ) -> list[Ended]:
        """Recalls ``told`` once it trains, and waits for both as long as they may be about to end:
        of a copy that tells of its steps, until it goes on with them in spite of all."""
        began = trial_run.executor.now()
        due = {timed.attempt: began + limit_s}  # when a copy that says nothing is too late
        told_then: dict[str, int] = {}  # how often it had told of steps by then
        standing: dict[str, Ended] = {}
        for standing in trial_run.watch([timed, told], self._patience.start_s + limit_s):
            now = trial_run.executor.now()
            trains = standing[told.attempt].progressed or now > began + 1.0 + 3 * self._took_s
            if trains and told.attempt not in due:
                due[told.attempt] = now + self._patience.leave_s
                trial_run.executor.recall([told.attempt])
            late = {attempt for attempt, at in due.items() if now > at}
            if all(
                end.is_over or (attempt in late and goes_on(end, told_then))
                for attempt, end in standing.items()
            ):
                break
        return [standing[timed.attempt], standing[told.attempt]]

    def _judge_deadline(self, trial_run: TrialRun, end: Ended) -> None:
        name = "stops at its deadline"
        if not end.is_over or self._did_all_too_late(end):
            self._findings.add(words.PAST_DEADLINE.at(name))
        elif end.lost and self._is_beyond(end.order):
            self._findings.warn(name, self._ends_by_itself(end))
        elif fault := self._fault_of_part(trial_run, end):
            self._findings.add(fault.at(name))
        else:
            assert end.handed_in
            steps = end.handed_in.result.steps
            self._findings.tell(name, f"{steps} steps in {end.order.seconds:.0f} s")

    def _did_all_too_late(self, end: Ended) -> bool:
        """Whether it took its steps for more than its deadline, and only these ended it."""
        patience = self._patience
        is_late = end.after_s > patience.deadline_s + self._took_s + patience.grace_s
        return bool(end.handed_in and end.handed_in.result.steps >= _MANY and is_late)

    def _judge_leaving(self, trial_run: TrialRun, end: Ended) -> None:
        name = "leaves when told to"
        if not end.is_over:
            self._findings.add(words.DEAF.at(name))
        elif end.lost and self._is_beyond(end.order):
            self._findings.warn(name, self._ends_by_itself(end))
        elif (fault := self._fault_of_part(trial_run, end)) is words.NO_STEPS:
            self._findings.tell(name, "SIGTERM: reported, gone before its first step")
        elif fault:
            self._findings.add(fault.at(name))
        else:
            self._findings.tell(name, "SIGTERM: saved, reported, gone")

    def _is_beyond(self, order: CopyOrder) -> bool:
        """Whether the script by itself would never come to the order's last step."""
        return 0 < self._length < order.steps.ranges[-1][1]

    def _ends_by_itself(self, end: Ended) -> Fault:
        log = words.tail(end.lost.log) if end.lost else ""
        return Fault(words.BEYOND.what.format(self._length), words.BEYOND.fix + log)

    def _fault_of_part(self, trial_run: TrialRun, end: Ended) -> Fault | None:
        """As for a whole order, except that it need not be done in full."""
        return words.explain_end(end, trial_run.accept(end), 0)


def goes_on(end: Ended, told_then: dict[str, int]) -> bool:
    """Whether a copy that should have ended by now still trains: one that tells of steps has told
    of more, again and again; of any other its time is all there is."""
    first = told_then.setdefault(end.order.attempt, end.told)
    return not end.progressed or end.told > first + _LAST_TOLD
