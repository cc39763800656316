"""Tells people who do not look: at the end, on trouble, when a trial is promoted."""

from __future__ import annotations

import json
import queue
import shutil
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from hadar_cli.core import events
from hadar_cli.core.reasons import Absence
from hadar_cli.core.state import RunState
from hadar_cli.engine.ports import Observer
from hadar_cli.report.words import describe, is_at_rung

_MOST_S = 15.0  # for one notification
_TO_END_S = 20.0  # for all that are under way when the run ends
_MOST_WAITING = 50
_EXPECTED = (Absence.AWAITED, Absence.DRAINED, Absence.TAKEN, Absence.TURN)


@dataclass(frozen=True, slots=True)
class News:
    """``event`` is `end`, `trouble` or `promotion`; ``t`` the run's clock, in seconds."""

    run: str
    event: str
    text: str
    t: float


class Channel(Protocol):
    """One way to reach somebody: see config/settings.py."""

    @property
    def occasions(self) -> tuple[str, ...]: ...
    @property
    def command(self) -> tuple[str, ...]: ...
    @property
    def webhook(self) -> str: ...
    @property
    def name(self) -> str: ...


def occasion(event: events.Event, state: RunState) -> str:
    """What the event is to people who do not look; nothing, mostly."""
    match event:
        case events.RunFinished():
            return "end"
        case events.JobFailed() | events.RunStopped():
            return "trouble"
        case events.DeviceLost() if event.reason not in _EXPECTED:
            return "trouble"
        case events.JobCutShort() if not event.is_planned:
            is_wanted = state.jobs[event.job].is_cancelled
            return "" if is_wanted else "trouble"
        case events.MilestonePassed() if is_at_rung(event, state):
            if event.score is not None:
                return "promotion"
            return "trouble" if _is_first_there(event, state) else ""
    return ""


def _is_first_there(event: events.MilestonePassed, state: RunState) -> bool:
    """Whether no other trial of its sweep has passed this rung."""
    trial = state.jobs[event.job].job.trial
    passed = (job.job.trial for job in state.jobs.values() if event.step in job.passed)
    return sum(bool(trial and one and one.sweep == trial.sweep) for one in passed) == 1


class Notifier(Observer):
    """Sends by each way from a thread of its own: whoever does not answer holds up nobody else."""

    def __init__(self, run: str, channels: Iterable[Channel], tell: Callable[[str], None]) -> None:
        self._run, self.tell = run, tell
        self._ways = [_Way(channel, self._warn) for channel in channels]
        self.state: RunState | None = None

    def happened(self, event: events.Event) -> None:
        if self.state and (what := occasion(event, self.state)):
            self.say(what, describe(event, self.state), event.t)

    def say(self, what: str, text: str, t: float) -> None:
        news = News(self._run, what, f"run {self._run}: {text}"[:1000], t)
        for way in self._ways:
            way.take(news)

    def end(self) -> None:
        """Waits for what is under way, but not for ever."""
        until = time.monotonic() + _TO_END_S
        for way in self._ways:
            way.close()
        for way in self._ways:
            way.join(max(0.0, until - time.monotonic()))

    def _warn(self, who: str, why: str) -> None:
        self.tell(f"warning: {who} could not notify: {why}; the run goes on")


class _Way:
    """A channel, what it has still to tell, and the thread that does, once there is anything."""

    def __init__(self, channel: Channel, warn: Callable[[str, str], None]) -> None:
        self._channel, self._warn = channel, warn
        self._waiting: queue.SimpleQueue[News | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._told: set[str] = set()

    def take(self, news: News) -> None:
        if news.event not in self._channel.occasions:
            return
        if self._waiting.qsize() >= _MOST_WAITING and news.event != "end":
            self._tell("too many at once, some were left out")
            return
        self._waiting.put(news)
        if not self._thread:
            self._thread = threading.Thread(target=self._work, daemon=True)
            self._thread.start()

    def close(self) -> None:
        self._waiting.put(None)

    def join(self, patience_s: float) -> None:
        if self._thread:
            self._thread.join(patience_s)
            if self._thread.is_alive():
                self._tell("the last ones were not sent in time")

    def _work(self) -> None:
        while news := self._waiting.get():
            try:
                send(self._channel, news)
            except (OSError, subprocess.SubprocessError, ValueError) as error:
                self._tell(_why(error))

    def _tell(self, why: str) -> None:
        if why not in self._told:
            self._told.add(why)
            self._warn(self._channel.name, why)


def _why(error: Exception) -> str:
    """Without the address, or what a server says of it."""
    match error:
        case urllib.error.HTTPError():
            return f"the server answered {error.code}"
        case urllib.error.URLError() if isinstance(error.reason, OSError):
            return error.reason.strerror or type(error.reason).__name__
        case subprocess.TimeoutExpired() | TimeoutError():
            return f"no end within {_MOST_S:.0f} s"
        case subprocess.CalledProcessError():
            return f"it ended with code {error.returncode}"
        case FileNotFoundError():
            return "there is no such program"
    return type(error).__name__


def send(channel: Channel, news: News) -> None:
    """Raises where nobody took it."""
    if channel.webhook:
        _post(channel.webhook, {**asdict(news), "content": news.text})  # Slack reads text,
    elif channel.command:  # Discord content
        _call([*channel.command, news.text], json.dumps(asdict(news)))
    else:
        program = shutil.which("notify-send")
        if not program:
            raise FileNotFoundError
        _call([program, "--app-name=hadar", f"hadar: {news.event}", news.text], "")


def _call(words: list[str], given: str) -> None:
    subprocess.run(
        words,
        input=given.encode(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=_MOST_S,
        check=True,
        start_new_session=True,  # Ctrl-C is for the head
    )


class _NoDetours(urllib.request.HTTPRedirectHandler):
    """The address is a secret for one server."""

    def redirect_request(self, *request: Any) -> None:
        return None


def _post(address: str, content: dict[str, Any]) -> None:
    request = urllib.request.Request(  # noqa: S310 - http or https, as the settings were checked
        address, json.dumps(content).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.build_opener(_NoDetours).open(request, timeout=_MOST_S) as answer:
        answer.read(1000)
