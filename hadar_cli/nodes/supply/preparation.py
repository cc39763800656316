"""What nodes need before they can train, jobs' data and packages: to all at once, and told."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence

from hadar_cli.core.model import Job
from hadar_cli.engine.ports import Preparing
from hadar_cli.errors import HadarError, RefusedError
from hadar_cli.nodes.connection import Connection
from hadar_cli.nodes.supply.placing import needs_data_there
from hadar_cli.nodes.wire import LinkLostError, NotYetError

_LOOK_EVERY_S = 0.2
_TELL_EVERY_S = 0.25
_PAUSES_S = (0.5, 1.0, 2.0, 4.0, 8.0)  # between attempts that brought nothing new


def prepare(
    connections: Sequence[Connection],
    jobs: Sequence[Job],
    tell: Callable[[Preparing], None],
    tick: Callable[[], None],
) -> dict[str, str]:
    """Returns when every node is ready or has failed; why not, by the names of those that have.

    A node that cannot be reached is none of these: its session will say so. The sessions have the
    same connections, which stay open for them. ``tick`` is called all the while and may raise; the
    nodes are then left as they are, to be gone on with later.
    """
    needy = [
        job for job in jobs if job.launch.data or job.launch.venv or needs_data_there(job.launch)
    ]
    if not needy:
        return {}
    reports: queue.Queue[Preparing | tuple[str, str]] = queue.Queue()
    for connection in connections:
        work = _Preparation(connection, needy, reports.put)
        threading.Thread(target=work.run, daemon=True).start()
    left, failed = {c.node.name for c in connections}, dict[str, str]()
    try:
        while left:
            tick()
            try:
                report = reports.get(timeout=_LOOK_EVERY_S)
            except queue.Empty:
                continue
            if isinstance(report, Preparing):
                tell(report)
                continue
            name, why = report
            left.discard(name)
            failed |= {name: why} if why else {}
    except BaseException:
        for connection in connections:
            connection.abort()
        raise
    return failed


class _Preparation:
    """One node's, on a thread of its own; a cut costs only what was under way."""

    def __init__(
        self,
        connection: Connection,
        jobs: Sequence[Job],
        put: Callable[[Preparing | tuple[str, str]], None],
    ) -> None:
        self._connection, self._jobs, self._put = connection, jobs, put
        self._told_at = 0.0
        self._done = self._best = 0

    def run(self) -> None:
        try:
            why = self._run()
        except HadarError as error:
            why = f"{error}; {error.fix}" if error.fix else str(error)
        except Exception as error:  # whatever happens there costs this node only
            why = f"{type(error).__name__}: {error}"
        self._put((self._connection.node.name, why))

    def _run(self) -> str:
        pauses = iter(_PAUSES_S)
        while True:
            try:
                for job in self._jobs:
                    self._connection.prepare(job, self._tell)
                return ""
            except (RefusedError, NotYetError):  # one that is only promised gets it when it comes
                return ""
            except LinkLostError:
                if self._done > self._best:
                    self._best, pauses = self._done, iter(_PAUSES_S)
                pause = next(pauses, None)
                if pause is None:
                    return ""
                time.sleep(pause)

    def _tell(self, what: str, done: int, total: int, now_in_words: str) -> None:
        now, self._done = time.monotonic(), done
        if now > self._told_at + _TELL_EVERY_S or done >= total:
            self._told_at = now
            self._put(Preparing(self._connection.node.name, what, done, total, now_in_words))
