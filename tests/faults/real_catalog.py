"""All real faults, as scenarios: kills and hangs, links, disks, clocks, and odd machines."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
from collections.abc import Callable

from hadar_cli.core import events
from hadar_cli.core.reasons import Absence
from tests.faults.checker import demand
from tests.faults.real_clocks import clocks
from tests.faults.real_disks import disks
from tests.faults.real_faults import STAGES, Fault, cut, find, kill, kill_head, reset, stop
from tests.faults.real_gangs import gangs
from tests.faults.real_gpus import gpus
from tests.faults.real_links import odd_links
from tests.faults.real_networks import networks
from tests.faults.real_run import RealRun
from tests.faults.real_scenario import Scenario, Skip, was_lost, was_used
from tests.faults.real_site import Site
from tests.faults.real_slow import large_checkpoints, slow_phases
from tests.faults.real_torch import torchless

NOISE = "echo -n 'Welcome! '; echo '{\"answer\": 1}'; echo '@hadarly'; echo mail for you >&2\n"


def scenarios(is_full: bool = False) -> list[Scenario]:
    slow = [*slow_phases(), *large_checkpoints(is_full)]
    odd = [*machines(), *gpus(), *slow, *odd_links(is_full), *networks(), *torchless()]
    return [*kills(), *hangs(), *links(), *nodes(), *clocks(), *gangs(is_full), *odd]


def kills() -> list[Scenario]:
    """kill -9 of everything at every stage."""
    victims = ("worker", "supervisor", "agent", "nursery", "session")
    found = [
        Scenario(
            f"kills at {stage}", tuple(kill(who, stage) for who in victims), large=_is_slow(stage)
        )
        for stage in STAGES
    ]
    heads = [kill_head(stage) for stage in STAGES if not _is_slow(stage)]
    found.append(Scenario("head killed", tuple(heads)))
    slow = [kill_head(stage) for stage in STAGES if _is_slow(stage)]
    return [*found, Scenario("head killed, slow link", tuple(slow), large=True)]


def _is_slow(stage: str) -> bool:
    return stage in ("transfer", "hand-in")


def hangs() -> list[Scenario]:
    """SIGSTOP, and SIGCONT later."""
    brief = ("worker", "agent", "supervisor", "nursery", "session", "sshd", "head")
    return [
        Scenario("brief hangs", tuple(stop(who, "training", 2.0) for who in brief)),
        Scenario("worker hangs at its end", (stop("worker", "hand-in", 3.0),)),
        Scenario("agent hangs", (stop("agent", "training", 20.0),)),
        Scenario("node hangs", (stop("everyone", "training", 25.0),)),
        Scenario("head hangs beyond its lease", (stop("head", "training", 23.0),)),
    ]


# -- links ---------------------------------------------------------------------------------------


def links() -> list[Scenario]:
    in_transfers = (cut("transfer", 2.0), cut("hand-in", 2.0), reset("transfer"))
    return [
        Scenario("link cut", tuple(cut(s, 2.0) for s in STAGES if not _is_slow(s))),
        Scenario("link cut or reset in transfers", in_transfers, large=True),
        Scenario("link cut for long", (cut("training", 25.0),)),
        Scenario("connections reset", tuple(reset(stage) for stage in ("start", "training"))),
        Scenario("flapping link, then no listener", (flap("training"), refuse("training"))),
        Scenario("slow link", (slow("start"),)),
    ]


def flap(stage: str) -> Fault:
    """Breaks again and again, each time soon after it was mended."""

    def strike(run: RealRun) -> int:
        broken = 0
        for _ in range(5):
            broken += run.site.link.reset()
            run.jitter(1.0)
        return broken

    return Fault("link flaps", strike, stage)


def slow(stage: str) -> Fault:
    def strike(run: RealRun) -> bool:
        run.site.link.bytes_per_s = 20e3
        return True

    def mend(run: RealRun) -> None:
        run.site.link.bytes_per_s = float("inf")

    return Fault("link slow", strike, stage, mend, 8.0)


def refuse(stage: str) -> Fault:
    """No server answers on the port, and connections break."""

    def strike(run: RealRun) -> int:
        run.site.link.close()
        return run.site.link.reset()

    return Fault("listener gone", strike, stage, lambda run: run.site.link.open(), 4.0)


# -- nodes ---------------------------------------------------------------------------------------


def nodes() -> list[Scenario]:
    rebooted = tuple(reboot(stage) for stage in STAGES if not _is_slow(stage))
    return [
        Scenario("sshd killed", tuple(kill_sshd(s) for s in STAGES if not _is_slow(s))),
        Scenario("rebooted", rebooted),
        Scenario("rebooted in transfer", (reboot("transfer"),), large=True),
        Scenario("out of memory", (exhaust(),)),
        Scenario("preempted", (preempt("training"), preempt("start"))),
        *disks(),
    ]


def kill_sshd(stage: str) -> Fault:
    """Listener and connections; the copies live on."""

    def strike(run: RealRun) -> int:
        return run.site.signal_all("sshd", signal.SIGKILL)

    def mend(run: RealRun) -> None:
        run.site.node.end(sessions=False)
        run.site.lab.start(run.site.victim)

    return Fault("sshd killed", strike, stage, mend, 1.0)


def reboot(stage: str) -> Fault:
    """All processes are gone, and their pids belong to others when the node is back."""
    strangers: list[subprocess.Popen[bytes]] = []

    def strike(run: RealRun) -> int:
        find(run, "agent")
        killed = len(run.site.node.sessions())
        run.site.lab.stop(run.site.victim)
        for path in run.site.node.home.glob(".hadar/runs/*/*/workers/*/worker.json"):
            strangers.append(subprocess.Popen(["sleep", "600"], start_new_session=True))
            pid = strangers[-1].pid
            path.write_text(json.dumps({"worker": [pid, 1], "supervisor": [pid, 1]}))
        return killed

    def mend(run: RealRun) -> None:
        run.site.lab.start(run.site.victim)

    def look(run: RealRun) -> None:
        for stranger in strangers:
            demand(stranger.poll() is None, "I7: a stranger with a reused pid was killed")
            stranger.kill()
            stranger.wait()
        strangers.clear()

    return Fault("rebooted, pids reused", strike, stage, mend, 0.5, afterwards=look)


def exhaust() -> Fault:
    """The next step takes all the memory that it may have."""

    def strike(run: RealRun) -> bool:
        trap = run.site.node.home / "exhaust-memory"
        trap.touch()
        run.await_that(lambda: not trap.exists() or not run.is_running(), 30.0, "nobody took it")
        return not trap.exists()

    return Fault("out of memory", strike)


def preempt(stage: str) -> Fault:
    """SIGTERM: save, hand in and leave."""

    def strike(run: RealRun) -> int:
        find(run, "worker")
        return run.site.signal_all("worker", signal.SIGTERM)

    return Fault("worker preempted", strike, stage)


# -- odd machines --------------------------------------------------------------------------------


def machines() -> list[Scenario]:
    """The victim is odd from the beginning; each proves that this was met, and works or is left."""
    shells = [
        Scenario(f"{shell} as login shell", (), _shell(shell), _shell("bash"), was_used)
        for shell in ("fish", "tcsh", "dash")
    ]
    return [
        *shells,
        Scenario("login noise", (), _noise, proves=was_used),
        Scenario("MaxSessions 1", (), _options(MaxSessions="1"), _options(), was_used),
        Scenario("no sftp", (), _options(Subsystem=""), _options(), was_used),
        Scenario("python missing", (), _python("/no/python"), proves=was_lost),
        Scenario("python old", (), _old_python, proves=was_lost),
        Scenario("listed twice", (), _twice, proves=_took_turns),
        Scenario("shared home", (), _share_home, _part_homes, was_used),
    ]


def _shell(shell: str) -> Callable[[Site], object]:
    def arrange(site: Site) -> None:
        if not shutil.which(shell):
            raise Skip(f"there is no {shell} here")
        site.lab.use_shell(site.victim, shell)
        if shell == "fish":  # makes them itself, at every login
            site.furniture.update({".config", ".local"})

    return arrange


def _noise(site: Site) -> None:
    site.furnish(".bashrc", NOISE)


def _options(**options: str) -> Callable[[Site], object]:
    return lambda site: site.lab.configure(site.victim, **options)


def _python(path: str) -> Callable[[Site], object]:
    return lambda site: site.extra.setdefault(site.victim, {}).update(python=path)


def _old_python(site: Site) -> None:
    """As Python 2 is started with the first option that we give."""
    words = '#!/bin/sh\necho "Unknown option: -I" >&2\nexit 2\n'
    _python(str(site.furnish("python2", words)))(site)


def _twice(site: Site) -> None:
    site.aliases["again"] = site.victim


def _took_turns(run: RealRun) -> bool:
    """Its two names are two devices of one lock: each waits for the other, and neither is lost."""
    names = {run.site.victim, *run.site.aliases}
    lost = [seen.event for seen in run.seen if isinstance(seen.event, events.DeviceLost)]
    others = [event.why for event in lost if event.why and event.reason is not Absence.TURN]
    demand(not others, f"I5: lost: {others}")
    copies = [seen.event for seen in run.seen if isinstance(seen.event, events.CopyStarted)]
    mine = {copy.attempt for copy in copies if copy.device in names}
    merges = [seen.event for seen in run.seen if isinstance(seen.event, events.WeightsMerged)]
    return any(mine & set(event.accepted) for event in merges)


def _share_home(site: Site) -> None:
    """As on a cluster with one file server."""
    other = site.lab[site.others[0]]
    shutil.rmtree(other.home)
    other.home.symlink_to(site.node.home)


def _part_homes(site: Site) -> None:
    site.lab[site.others[0]].home.unlink()
