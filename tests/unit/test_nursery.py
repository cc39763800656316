"""The process that workers are forked from, as its agent holds it."""

from __future__ import annotations

import os
import signal

from hadar_cli.node.agent.nursery import Nursery
from hadar_cli.node.agent.supervisor import WorkerSpec


def test_a_nursery_that_has_ceased_to_read_is_replaced_and_never_waited_for(tmp_path):
    spec = WorkerSpec(["python", "x.py"], {}, str(tmp_path), "lease", 1.0, "tag", "", "")
    directory = tmp_path / ("worker" * 40)
    directory.mkdir()
    nursery = Nursery(tmp_path / "log", [])
    first = nursery.pid
    os.kill(first, signal.SIGSTOP)
    try:
        told = 0
        while nursery.start(directory, spec) == first:
            told += 1
            assert told < 1000, "no pipe holds so much"
        assert told > 1
    finally:
        nursery.end()
