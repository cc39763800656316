"""Cards as labs have them, scripted: small, divided, a colleague's, wanted by two heads."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from random import Random

from hadar_cli.core import events
from hadar_cli.core.reasons import Absence, Loss
from tests.faults.checker import Violation, demand
from tests.faults.real_checker import check_run
from tests.faults.real_faults import Fault
from tests.faults.real_run import RealRun
from tests.faults.real_scenario import Scenario, was_used
from tests.faults.real_site import Site
from tests.faults.scripted_gpus import ScriptedGpus

LEFT_WITHIN_S = 45.0  # a card that a colleague needs: seconds, on a machine that is not so busy
_BATCH_MB = 7168  # of a whole batch; with 1 GB of weights a step takes 8 GB
_ANOTHER = ".hadar-of-another"
_INTERRUPTED = 130


def gpus() -> list[Scenario]:
    small = Scenario("card too small for whole batches", (), _cards(4096), _part, _helps_in_pieces)
    tiny = Scenario("card too small for anything", (), _cards(1500), _part, _was_avoided)
    return [
        small,
        tiny,
        Scenario("a colleague comes and goes", (visit(),), _cards(24576), _part),
        Scenario("a colleague on the next MIG instance", (), _divided, _part, _used_alone),
        Scenario("AMD card", (), _amd, _part, _used_alone),
        Scenario("two heads want a card", (wait_for_another(),), _held_by_another, _end_another),
    ]


def _uuid(site: Site) -> str:
    """Of its own: locks on cards are the whole computer's."""
    return f"GPU-{site.node.port:08d}-aaaa-bbbb-cccc-{site.link.port:012d}"


def _gpus_of(site: Site) -> ScriptedGpus:
    assert isinstance(site.gpus, ScriptedGpus)
    return site.gpus


def _install(site: Site, tool: str = "nvidia-smi", batch_mb: float = _BATCH_MB) -> ScriptedGpus:
    site.gpus = ScriptedGpus(site.node.home)
    site.gpus.install(tool)
    site.furniture.update({"cards", ".bashrc"})
    site.form_habits({site.victim: {"batch_mb": batch_mb}})
    return site.gpus


def _cards(mb: float) -> Callable[[Site], None]:
    """The victim has one card; the other node is as large as it likes."""

    def arrange(site: Site) -> None:
        _install(site).add("NVIDIA T400 4GB", _uuid(site), mb)
        gpu = {"model": "T400", "uuid": _uuid(site), "vram_gb": mb / 1024}
        site.extra.setdefault(site.victim, {})["gpus"] = [gpu]

    return arrange


def _part(site: Site) -> None:
    _gpus_of(site).part()


def _copies(run: RealRun) -> list[events.CopyStarted]:
    copies = [seen.event for seen in run.seen if isinstance(seen.event, events.CopyStarted)]
    return [copy for copy in copies if copy.device == run.site.victim and copy.slices]


def _losses(run: RealRun) -> list[Loss]:
    return [seen.event.reason for seen in run.seen if isinstance(seen.event, events.CopyLost)]


def _helps_in_pieces(run: RealRun) -> bool:
    """Two failures taught it; from then on the small card's steps count."""
    pieces = list(dict.fromkeys(copy.micro_batches for copy in _copies(run)))
    demand(pieces == [1, 2, 4], f"I1: the batch was split into {pieces}")
    demand(_losses(run) == [Loss.OUT_OF_MEMORY] * 2, f"I5: losses: {_losses(run)}")
    return was_used(run)


def _was_avoided(run: RealRun) -> bool:
    avoided = [seen.event for seen in run.seen if isinstance(seen.event, events.PairAvoided)]
    demand([e.device for e in avoided] == [run.site.victim], f"I5: avoided: {avoided}")
    demand(set(_losses(run)) == {Loss.OUT_OF_MEMORY}, f"I5: losses: {_losses(run)}")
    said = " ".join(run.exits[-1][1].split())
    demand(f"not given to {run.site.victim} any more" in said, f"I6: {said[-400:]}")
    return True


def _used_alone(run: RealRun) -> bool:
    demand(not _gpus_of(run.site).were_shared(), "I7: two jobs met on a card")
    return was_used(run)


def _divided(site: Site) -> None:
    """Ours is the second instance; the first is a colleague's, and full."""
    cards, last = _install(site), f"{site.link.port:012d}"
    ours, theirs = (f"MIG-{n}{site.node.port:07d}-aaaa-bbbb-cccc-{last}" for n in "12")
    parts = {theirs: "3g.20gb", ours: "3g.20gb"}
    cards.add("NVIDIA A100-SXM4-40GB", _uuid(site), 40960, parts)
    cards.colleague(theirs, 20000)
    site.extra.setdefault(site.victim, {})["gpus"] = [{"model": "A100", "uuid": ours}]


def _amd(site: Site) -> None:
    name = f"0x{site.link.port:016x}"
    _install(site, "rocm-smi").add("AMD Instinct MI100", name, 32768)
    gpu = {"model": "MI100", "uuid": name, "tflops": 46.0, "vram_gb": 32}
    site.extra.setdefault(site.victim, {})["gpus"] = [gpu]


# -- a colleague -----------------------------------------------------------------------------------


def visit() -> Fault:
    """The copy hands in and leaves, and comes back when the card is free again."""

    def strike(run: RealRun) -> bool:
        cards, card = _gpus_of(run.site), _uuid(run.site)
        run.await_that(lambda: cards.holders(card) or not run.is_running(), 90.0, "nobody trains")
        if not run.is_running():
            return False
        lost = len(_losses(run))
        cards.colleague(card, 12_000)
        run.await_that(lambda: not cards.holders(card), LEFT_WITHIN_S, "I7: still on a taken card")
        run.await_that(lambda: _was_taken(run), 30.0, "I7: nobody said that the card is taken")
        demand(len(_losses(run)) == lost, f"I1: a copy left with empty hands: {_losses(run)}")
        return True

    return Fault("card taken by a colleague", strike, "training", lambda run: _part(run.site), 4.0)


def _was_taken(run: RealRun) -> bool:
    lost = [seen.event for seen in run.seen if isinstance(seen.event, events.DeviceLost)]
    return any(e.device == run.site.victim and e.reason is Absence.TAKEN for e in lost)


# -- another head ----------------------------------------------------------------------------------


def _held_by_another(site: Site) -> None:
    """Another head, with a workdir of its own, trains on the victim's card when this one comes."""
    _cards(24576)(site)
    site.extra[site.victim]["workdir"] = f"~/{_ANOTHER}"
    site.furniture.add(_ANOTHER)
    place = site.directory / "another"
    shutil.rmtree(place, ignore_errors=True)
    site.another = another = RealRun(site, place, Random("another"), steps=100_000)
    del site.extra[site.victim]["workdir"]
    another.start()
    cards, card = _gpus_of(site), _uuid(site)
    another.await_that(lambda: cards.holders(card), 90.0, "the other head never trained")


def wait_for_another() -> Fault:
    """This head is told whose the card is, and has it once the other one's run was stopped."""

    def strike(run: RealRun) -> bool:
        run.await_that(lambda: _was_taken(run) or not run.is_running(), 60.0, "nobody was told")
        whys = [s.event.why for s in run.seen if isinstance(s.event, events.DeviceLost)]
        demand(any("run another of" in why for why in whys), f"I6: who holds it? {whys}")
        return True

    def mend(run: RealRun) -> None:
        another = run.site.another
        assert isinstance(another, RealRun)
        os.kill(another.head, signal.SIGINT)
        if (code := another.end_head()) != _INTERRUPTED:
            raise Violation(f"I4: the other head ended with {code}: {another.exits[-1][1][-300:]}")
        check_run(another, is_finished=False)
        happened = [seen.event for seen in another.seen]
        counted = {a for e in happened if isinstance(e, events.WeightsMerged) for a in e.accepted}
        ends = [e for e in happened if isinstance(e, events.CopyFinished) and e.attempt in counted]
        run.site.steps_of_another = sum(event.steps for event in ends)

    def look(run: RealRun) -> None:
        demand(not _gpus_of(run.site).were_shared(), "I7: two heads trained on one card")

    return Fault("card held by another head", strike, "start", mend, 0.1, afterwards=look)


def _end_another(site: Site) -> None:
    _part(site)
    if isinstance(site.another, RealRun) and site.another.is_running():
        site.another.kill()
    site.another = None
