"""Gangs of real processes without a head: every member gets its orders as variables and files.

    python -m tests.support.gangs PLAN.json

imports torch once and forks the members of each gang in the plan, as a node's nursery does.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import subprocess
import sys
import time
import traceback
from dataclasses import dataclass, replace
from pathlib import Path

from safetensors.torch import load_file

from hadar_cli.node.contract import Membership, Order

ROOT = Path(__file__).parents[2]
PATIENCE_S = 900


@dataclass
class Member:
    """One process: its orders, and what became of them."""

    orders: list[Order]
    directory: Path

    def result(self, number: int = 0) -> dict:
        return json.loads(self.orders[number].result.read_text())

    def weights(self, number: int = 0) -> dict:
        held = load_file(self.orders[number].checkpoint_out)
        return {n: t for n, t in held.items() if n.startswith("model/")}

    @property
    def log(self) -> str:
        return (self.directory / "log").read_text()

    @property
    def pid(self) -> int:
        return int((self.directory / "pid").read_text())

    @property
    def code(self) -> int:
        return int((self.directory / "code").read_text())

    @property
    def steps(self) -> int:
        """So far, as it says itself."""
        try:
            return json.loads(self.orders[0].progress.read_text())["steps"]
        except (OSError, ValueError):
            return 0

    def write(self) -> dict:
        self.directory.mkdir(parents=True)
        for before, order in zip(self.orders, self.orders[1:], strict=False):
            before.next_order.write_text(json.dumps(order.variables()))
        return {"directory": str(self.directory), "env": self.orders[0].variables()}


def gang(
    directory: Path,
    shares: tuple[float, ...],
    *slices: tuple[int, int],
    meets_at: str = "",
    **more: object,
) -> list[Member]:
    """The members of a gang with these shares, who get an order for each of the slices. A gang of
    one trains alone. ``more`` is said in all orders."""
    size, place = len(shares), meets_at or f"file://{directory}/meeting"
    members = []
    for rank in range(size):
        own = directory / f"rank-{rank}"
        member = Membership("gang", rank, size, place, shares) if size > 1 else None
        orders = []
        for i, (first, end) in enumerate(slices):
            order = Order(
                steps=end - first,
                slices=((first, end),) if end > first else (),
                seconds=600.0,
                issued_at=time.monotonic(),
                checkpoint_out=None if rank else own / f"weights-{i}",
                result=own / f"result-{i}",
                progress=own / f"progress-{i}",
                next_order=own / f"order-{i + 1}" if i + 1 < len(slices) else None,
                global_step=first,
                total_steps=slices[-1][1],
                attempt=f"a{i}.{rank}" if rank else f"a{i}",
                member=member,
            )
            orders.append(replace(order, **more))
        members.append(Member(orders, own))
    return members


def start(directory: Path, script: str | list[str], *gangs: list[Member]) -> subprocess.Popen:
    """Starts all processes of the gangs, with a script or with a module's name and its words."""
    return start_all(directory, [(script, [m for members in gangs for m in members])])


def start_all(
    directory: Path,
    cases: list[tuple[str | list[str], list[Member]]],
    libraries: tuple[str, ...] = (),
) -> subprocess.Popen:
    """Starts one case after the other, each when the processes of the last have ended. What of the
    ``libraries`` they use is loaded once for all."""
    directory.mkdir(exist_ok=True)
    plan = []
    for i, (script, members) in enumerate(cases):
        argv = ["-m", *script] if isinstance(script, list) else [str(directory / f"script{i}.py")]
        if isinstance(script, str):
            Path(argv[0]).write_text(script)
        plan.append({"argv": argv, "members": [member.write() for member in members]})
    (directory / "plan.json").write_text(json.dumps(plan))
    words = [sys.executable, "-m", "tests.support.gangs", str(directory / "plan.json"), *libraries]
    return subprocess.Popen(words, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"})


def run(directory: Path, script: str | list[str], *gangs: list[Member]) -> None:
    """Until all processes have ended."""
    start(directory, script, *gangs).wait(PATIENCE_S)


def wait_for(fact) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not fact():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def main() -> None:
    import torch

    import hadar_cli.node.training.context  # noqa: F401

    torch.set_num_threads(1)
    for library in sys.argv[2:]:
        module, _, name = library.partition(":")
        getattr(importlib.import_module(module), name or "__name__")
    for case in json.loads(Path(sys.argv[1]).read_text()):
        children = {}
        for member in case["members"]:
            directory = Path(member["directory"])
            pid = os.fork()
            if not pid:
                _become(case["argv"], directory, member["env"])
            children[pid] = directory
            (directory / "pid").write_text(str(pid))
        for pid, directory in children.items():
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            (directory / "code").write_text(str(code))


def _become(argv: list[str], directory: Path, env: dict[str, str]) -> None:
    log = os.open(directory / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ.update(env)
    code = 0
    try:
        if argv[0] == "-m":
            sys.argv = argv[1:]
            runpy.run_module(argv[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = argv
            runpy.run_path(argv[0], run_name="__main__")
    except BaseException as error:
        traceback.print_exc()
        code = 0 if isinstance(error, SystemExit) and not error.code else 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
