"""A run as it is now, as a page and as what changes of it."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Iterator, Sequence

from hadar_cli.report.format import clock, figures, percent
from hadar_cli.report.live.follower import JournalFollower
from hadar_cli.report.live.live_state import DeviceNow, JobNow, LiveState
from hadar_cli.report.page.markup import section, text
from hadar_cli.report.page.page import parts, render_live
from hadar_cli.report.record import read_record
from hadar_cli.runs.store import RunStore

_JOBS, _DEVICES = ("job", "progress", "steps", "left"), ("device", "does", "steps/s", "busy")
_NUMBERS = ("steps", "steps/s", "busy")
_SHORTEST_S = 1.5  # between two looks, however many browsers ask


class LivePage:
    """Looks at a run when somebody asks, and not more often than is useful."""

    def __init__(self, store: RunStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._seen = JournalFollower(store)
        seen = self._seen
        self._live_state = LiveState(seen.facts, seen.state, seen.rates, seen.now, guesses=True)
        self._looked_at = float("-inf")
        self._moment: tuple[str, dict[str, object]] = ("", {})

    def page(self) -> str:
        body, drawn = self._look()
        return render_live(self._store.directory.name, body, drawn)

    def now(self) -> tuple[str, str]:
        """What the page shows now, and a tag that changes with it."""
        body, drawn = self._look()
        told = json.dumps({"body": body, "figures": drawn, "goes_on": self._goes_on})
        return f'"{hashlib.sha256(told.encode()).hexdigest()[:16]}"', told

    @property
    def _goes_on(self) -> bool:
        return self._seen.standing != "finished"

    def _look(self) -> tuple[str, dict[str, object]]:
        with self._lock:
            if time.monotonic() >= self._looked_at + _SHORTEST_S:
                seen, live_state = self._seen, self._live_state
                seen.look(live_state.happened)
                live_state.take_facts(seen.facts)
                live_state.driven = seen.standing == "running"
                self._moment = parts(read_record(self._store), "".join(self._present()))
                self._looked_at = time.monotonic()
            return self._moment

    def _present(self) -> Iterator[str]:
        """What is going on at this moment; nothing of a run that nobody drives."""
        if not self._live_state.driven:
            return
        left = self._live_state.left()
        so_far = f"round {self._live_state.state.round}, {clock(self._live_state.now)} so far"
        told = f"{so_far}, {self._live_state.ahead(left)}"
        jobs = "".join(_job(job) for job in self._live_state.job_rows(left))
        devices = "".join(_device(device) for device in self._live_state.device_rows())
        yield section(
            "<h2>Now</h2>",
            f'<p class="soft">{text(told)}</p>',
            f'<div class="pair">{_table(_JOBS, jobs)}{_table(_DEVICES, devices)}</div>',
            kind="present",
        )


def _table(columns: Sequence[str], rows: str) -> str:
    heads = (f"<th{' class=number' * (name in _NUMBERS)}>{name}</th>" for name in columns)
    head = f"<thead><tr>{''.join(heads)}</tr></thead>"
    return f'<div class="wide"><table class="now">{head}<tbody>{rows}</tbody></table></div>'


def _job(job: JobNow) -> str:
    share = job.steps / job.target if job.target else 1.0
    left = str(job.left) if job.left else job.standing
    return (
        f"<tr><td>{text(job.name, 60)}</td>"
        f'<td><progress max="1" value="{share:.4f}"></progress></td>'
        f'<td class="number">{job.steps:,}/{job.target:,}</td><td>{text(left)}</td></tr>'
    )


def _device(now: DeviceNow) -> str:
    does = now.job if now.doing == "training" else " ".join(filter(None, (now.doing, now.job)))
    busy = percent(now.busy[-1]) if now.busy else "–"
    return (
        f"<tr><td>{text(now.device.name, 60)}</td><td>{text(does or '–', 60)}</td>"
        f'<td class="number">{figures(now.rate) if now.rate else "–"}</td>'
        f'<td class="number">{busy}</td></tr>'
    )
