"""A script by hand beside the same script under hadar, on one device: the same batches, learning
rates, losses and weights, update by update. And the files it reads beside those that travel."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from hadar_cli.core.model import Launch
from hadar_cli.project.selection import Selection
from hadar_cli.trial import by_hand, words
from hadar_cli.trial.by_hand import ByHand, copy_project, link_data
from hadar_cli.trial.findings import Findings, Patience
from hadar_cli.trial.record import Record, begin_alike, first_difference, read_record
from hadar_cli.trial.trial_run import DEVICES, TrialRun
from hadar_cli.trial.words import Fault

_NAME = "trains as by hand"
_MOST_NAMED = 5
_NOT_THE_SCRIPTS = ("/.cache/", "/.config/", "/.local/", "/.triton/", ".egg-info/", ".dist-info/")


class Comparison:
    """Starts the script by hand at once; ``judge`` does the same steps under hadar."""

    def __init__(
        self,
        trial_run: TrialRun,
        chosen: Selection,
        launch: Launch,
        steps: int,
        patience: Patience,
        findings: Findings,
    ) -> None:
        self._trial_run, self._chosen, self._launch = trial_run, chosen, launch
        self._steps, self._patience, self._findings = steps, patience, findings
        self._runs = 0
        self._process = self._begin()
        self._ended: by_hand.Ended | None = None
        self._opened: list[Path] = []
        self.length = 0  # the steps that the script by itself would train, once known

    def _begin(self) -> ByHand:
        self._runs += 1
        folder = self._trial_run.store.directory / f"by-hand-{self._runs}"
        for missing in copy_project(self._chosen, folder):
            self._findings.unseen.append(f"{missing.name}: it was not copied for the run by hand")
        link_data(self._launch, folder)
        launch = self._launch
        if launch.script:
            there = folder / Path(launch.script).relative_to(self._chosen.root)
            launch = replace(launch, script=str(there))
        return ByHand(folder, launch, self._steps)

    def end(self) -> None:
        self._process.end()

    # -- training ----------------------------------------------------------------------------

    def judge(self) -> None:
        hand, seconds = self._hand(), self._patience.start_s
        if not hand.record.updates:
            why = "by hand it made no update of a torch optimizer"
            if hand.is_late:
                why += f" in {seconds:.0f} s"
            elif hand.code:
                why = f"by hand it ended with {(hand.log.strip().splitlines() or ['an error'])[-1]}"
            self._findings.unseen.append(f"whether it trains as by hand: {why[:160]}")
            return
        record = self._under_hadar(hand.record.length)
        if record.length not in (0, hand.record.length):  # only there is it known how long it is
            record = self._under_hadar(record.length)
        self.length = record.length or hand.record.length
        self._compare(hand.record, record)

    def own_length(self) -> int:
        """The steps that the script trains by hand; 0 where it did not say."""
        return self._hand().record.length

    def _hand(self) -> by_hand.Ended:
        if self._ended is None:
            self._ended = self._process.wait(self._patience.start_s)
            self._opened += [self._at_home(path) for path in self._ended.record.opened]
        return self._ended

    def _under_hadar(self, length: int) -> Record:
        """The same number of steps, with the same seed, of a job as long as the script's own."""
        self._runs += 1
        path = self._trial_run.store.directory / f"under-hadar-{self._runs}.trace"
        job = self._trial_run.job_apart(max(length, self._steps), path)
        steps, patience = (0, self._steps), self._patience
        order = self._trial_run.probe(
            DEVICES[0], steps, None, patience.order_s, job, job_seed=0, seed=0
        )
        (end,) = self._trial_run.await_all([order], patience.start_s + patience.grace_s)
        self._findings.demand(_NAME, words.explain_end(end, None, self._steps))
        record = read_record(path)
        self._opened += [self._at_home(path) for path in record.opened]
        return record

    def _compare(self, hand: Record, hadar: Record) -> None:
        count = min(len(hand.updates), len(hadar.updates))
        if not count:
            self._findings.warn(_NAME, words.NO_UPDATE)
        elif hand.size != hadar.size:
            sizes = words.OTHER_SIZE.what.format(hadar.size, hand.size)
            self._fail(Fault(sizes, words.OTHER_SIZE.fix))
        elif not begin_alike(hand, hadar):
            if self._left_behind() and not self._differs_by_hand_too(hand):
                self._fail(words.OTHER_BEGINNING)
            else:
                self._findings.warn(_NAME, words.NOT_SEEDED)
        elif not (found := first_difference(hand, hadar)):
            what = "batches, learning rate, loss and weights are the same"
            self._findings.tell(_NAME, f"{what} in {count} updates")
        elif found.what == "batch" and hadar.replaced:
            what, fix = words.REPLACED.what, words.REPLACED.fix
            self._findings.warn(_NAME, Fault(what.format(hadar.replaced), fix))
        elif self._differs_by_hand_too(hand):
            self._findings.warn(_NAME, words.NOT_REPEATABLE)
        else:
            fix = words.DIFFERENCES[found.what]
            told = f": {found.one} by hand, {found.other} under hadar" if found.one else ""
            what = f"update {found.update} has another {found.what} than by hand{told}"
            self._fail(Fault(what, fix))

    def _fail(self, fault: Fault) -> None:
        """It trains something else than by hand: most likely for want of a file that it read."""
        if named := self._left_behind():
            fault = Fault(f"{fault.what}; {named}", f"{words.STAYS_BEHIND.fix}. Else {fault.fix}")
        self._findings.add(fault.at(_NAME))

    def _differs_by_hand_too(self, hand: Record) -> bool:
        process = self._begin()
        try:
            again = process.wait(self._patience.start_s).record
        finally:
            process.end()
        is_other = not (again.updates and begin_alike(hand, again))
        return is_other or first_difference(hand, again) is not None

    # -- files -------------------------------------------------------------------------------

    def judge_files(self) -> None:
        """Names what the script read here and would not find on a node."""
        self._hand()
        if named := self._left_behind():
            self._findings.warn("reads what travels", Fault(named, words.STAYS_BEHIND.fix))
        else:
            self._findings.tell("reads what travels", "of the files that Python opened")

    def _left_behind(self) -> str:
        """The files that it read so far and that would not travel; empty if there are none."""
        missing: dict[Path, str] = {}
        for path in dict.fromkeys(self._opened):
            if any(part in path.as_posix() for part in _NOT_THE_SCRIPTS) or not path.is_file():
                continue
            if why := self._chosen.why_not(path):
                missing[path] = why
        if not missing:
            return ""
        named = [f"{self._shown(path)} ({why})" for path, why in missing.items()]
        more = f" and {len(named) - _MOST_NAMED} more" if len(named) > _MOST_NAMED else ""
        return f"{words.STAYS_BEHIND.what}: {', '.join(named[:_MOST_NAMED])}{more}"

    def _shown(self, path: Path) -> str:
        root = self._chosen.root
        return str(path.relative_to(root) if path.is_relative_to(root) else path)

    def _at_home(self, path: Path) -> Path:
        """Where a file of a copy of the project lies in the project; any other where it lies."""
        here = self._trial_run.store.directory.resolve()
        if not path.is_relative_to(here):
            return path
        parts = path.relative_to(here).parts
        if parts[0].startswith("by-hand-"):
            return self._chosen.root.joinpath(*parts[1:])
        if parts[0] == "nodes" and len(parts) > 4 and parts[2] == "work":
            return self._chosen.root.joinpath(*parts[4:])
        return here  # of the trial itself: no file
