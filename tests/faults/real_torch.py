"""A job that needs torch, and nodes whose Python has none."""

from __future__ import annotations

import subprocess
import sys

from hadar_cli.core import events
from tests.faults.checker import demand
from tests.faults.real_faults import Fault
from tests.faults.real_run import RealRun
from tests.faults.real_scenario import Scenario, Skip
from tests.faults.real_site import PYTHON, Site

UNFINISHED = 3  # the head's exit code
_STEP = "weights[step % FLOATS] +="
_STEP_IN_TORCH = "torch.frombuffer(weights, dtype=torch.float64)[step % FLOATS] +="
_WRAPPED = "python-of-the-node"  # a script, so that torch can be installed by changing it


def torchless() -> list[Scenario]:
    return [
        Scenario("no torch on a node", (), _without_torch_on_one, proves=_was_left_alone),
        Scenario("no torch on any node", (find_none_and_install(),), _without_torch_on_all),
    ]


def find_none_and_install() -> Fault:
    """The run ends and says why; torch is installed, and ``hadar resume`` finishes."""

    def strike(run: RealRun) -> bool:
        code = run.end_head()
        said = " ".join(run.exits[-1][1].split())  # as one line, however wide the terminal is
        demand(code == UNFINISHED, f"I6: exit code {code}: {said[-300:]}")
        for word in (*run.site.lab.names, "job", "pip install torch", "hadar resume"):
            demand(word in said, f"I6: {word!r} is not in: {said[-500:]}")
        return True

    def mend(run: RealRun) -> None:
        for name in run.site.lab.names:
            _give_python(run.site, name, sys.executable)
        run.resume()

    return Fault("no torch on any node", strike, "start", mend)


def _was_left_alone(run: RealRun) -> bool:
    """Its loss is on record with what to install, after one copy, and the head ended well."""
    lost = [seen.event for seen in run.seen if isinstance(seen.event, events.DeviceLost)]
    mine = [event for event in lost if event.device == run.site.victim]
    said = " ".join(run.exits[-1][1].split())
    demand(len(mine) == 1 and "pip install torch" in mine[0].why, f"I6: {lost}")
    demand(f"{run.site.victim} lost" in said and "of job" in said, f"I6: {said[-500:]}")
    return [code for code, _ in run.exits] == [0]


def _without_torch_on_one(site: Site) -> None:
    _use_torch(site)
    _give_python(site, site.victim, PYTHON)


def _without_torch_on_all(site: Site) -> None:
    _use_torch(site)
    for name in site.lab.names:
        _give_python(site, name, PYTHON)


def _use_torch(site: Site) -> None:
    """The same steps, done by torch; the nodes' Python has it, unless another is given to them."""
    if not _has_torch(sys.executable) or _has_torch(PYTHON):
        raise Skip("it takes a Python with torch and one without")
    site.job = site.job.replace("import time\n", "import time\nimport torch\n")
    site.job = site.job.replace(_STEP, _STEP_IN_TORCH)
    for name in site.lab.names:
        site.extra.setdefault(name, {}).update(python=sys.executable)


def _has_torch(python: str) -> bool:
    words = [python, "-c", "import torch"]
    return subprocess.run(words, check=False, capture_output=True).returncode == 0


def _give_python(site: Site, name: str, python: str) -> None:
    script = site.lab[name].home / _WRAPPED
    script.write_text(f'#!/bin/sh\nexec {python} "$@"\n')
    script.chmod(0o700)
    site.furniture.add(_WRAPPED)
    site.extra.setdefault(name, {}).update(python=str(script))
