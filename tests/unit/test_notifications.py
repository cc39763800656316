"""Who is notified of what, by which way, and what becomes of a way that fails."""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from hadar_cli.config.settings import Channel, parse_channel, read_channels
from hadar_cli.core import events
from hadar_cli.core.model import Job, Promotion, Trial
from hadar_cli.core.reasons import Absence
from hadar_cli.core.state import RunState
from hadar_cli.errors import InputError, RefusedError
from hadar_cli.observers.notifier import Notifier, occasion

TRIALS = [
    Job(n, f"trial-{n}", 60, 8, trial=Trial("sweep", n, {}), promote=Promotion("loss", 3, (20,)))
    for n in range(3)
]
SECRET = "T0KEN-that-nobody-should-read"


@contextmanager
def server(status: int) -> Iterator[tuple[str, list[dict]]]:
    """Takes what is posted to it, and answers with the status."""
    taken: list[dict] = []

    class Answer(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            taken.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(status)
            self.send_header("Location", "http://127.0.0.1:9/elsewhere")
            self.end_headers()

        def log_message(self, *words: object) -> None: ...

    listening = HTTPServer(("127.0.0.1", 0), Answer)
    threading.Thread(target=listening.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listening.server_port}/{SECRET}", taken
    finally:
        listening.shutdown()
        listening.server_close()


def told(channels: list[Channel], *happened: events.Event) -> list[str]:
    """The warnings of a notifier that heard these."""
    warnings: list[str] = []
    teller = Notifier("lab", channels, warnings.append)
    teller.state = RunState(TRIALS)
    for event in happened:
        teller.happened(event)
    teller.end()
    return warnings


def test_a_webhook_and_a_command_hear_what_they_asked_for(tmp_path: Path) -> None:
    heard = tmp_path / "heard.jsonl"
    script = f"import sys; open({str(heard)!r}, 'a').write(sys.stdin.read() + '\\n')"
    with server(200) as (address, taken):
        channels = [
            Channel(("trouble",), webhook=address),
            Channel(command=(sys.executable, "-c", script)),
        ]
        lost = events.DeviceLost(3.0, "gpu-1", "it cannot be reached", Absence.GONE)
        events_heard: list[events.Event] = [
            lost,
            events.MilestonePassed(4.0, 0, 20, 0.5),
            events.RunFinished(9.0),
        ]
        assert told(channels, *events_heard) == []
    assert [one["event"] for one in taken] == ["trouble"]
    assert taken[0]["run"] == "lab" and "gpu-1" in taken[0]["text"] == taken[0]["content"]
    commanded = [json.loads(line) for line in heard.read_text().splitlines()]
    assert [one["event"] for one in commanded] == ["trouble", "promotion", "end"]


def test_a_desktop_is_told_by_notify_send_and_one_without_it_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    desktop, over = Channel(desktop=True), events.RunFinished(9.0)
    (warning,) = told([desktop], over)
    assert "there is no such program" in warning and "the run goes on" in warning
    heard = tmp_path / "heard"
    (tmp_path / "notify-send").write_text(f'#!/bin/sh\nprintf "%s|" "$@" >{heard}\n')
    (tmp_path / "notify-send").chmod(0o755)
    assert told([desktop], over) == []
    app, title, text, _ = heard.read_text().split("|")
    assert (app, title) == ("--app-name=hadar", "hadar: end") and text.startswith("run lab: ")


def test_a_promotion_is_told_and_a_metric_that_no_trial_reports_once() -> None:
    state = RunState(TRIALS)

    def passes(trial: int, step: int, score: float | None) -> str:
        state.jobs[trial].passed.add(step)
        return occasion(events.MilestonePassed(1.0, trial, step, score), state)

    assert [passes(0, 10, None), passes(1, 10, None)] == ["", ""], "only its 'stop' looks there"
    assert [passes(trial, 20, None) for trial in range(3)] == ["trouble", "", ""]
    assert passes(0, 20, 0.5) == "promotion"


@pytest.mark.parametrize("status", [500, 302])
def test_a_way_that_fails_is_one_warning_without_its_address(status: int) -> None:
    with server(status) as (address, taken):
        warnings = told(
            [Channel(webhook=address)], events.RunStopped(1.0, "why"), events.RunFinished(2.0)
        )
    assert len(taken) == 2 and len(warnings) == 1
    assert f"the server answered {status}" in warnings[0]
    assert SECRET not in warnings[0] + repr(Channel(webhook=address))


def test_a_way_that_hangs_holds_up_no_other(tmp_path: Path) -> None:
    heard, warnings = tmp_path / "heard", list[str]()
    with socket.create_server(("127.0.0.1", 0)) as silent, server(200) as (address, taken):
        hanging = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        command = ("sh", "-c", f"cat >> {heard}; echo >> {heard}")
        ways = [Channel(webhook=hanging, source="slack.txt"), Channel(webhook=address)]
        teller = Notifier("lab", [*ways, Channel(command=command)], warnings.append)
        teller.state = RunState(TRIALS)
        teller.happened(events.RunStopped(1.0, "why"))
        teller.happened(events.RunFinished(2.0))
        while len(taken) < 2 or not heard.exists() or heard.read_text().count("}\n") < 2:
            time.sleep(0.02)
        assert [one["event"] for one in taken] == ["trouble", "end"] and not warnings
    teller.end()  # the silent one has hung up
    assert "the webhook of slack.txt could not notify" in warnings[0]


def test_a_program_that_is_not_there_is_one_warning() -> None:
    channels = [Channel(command=("no-such-program-here",))]
    (warning,) = told(channels, events.RunFinished(2.0))
    assert "command no-such-program-here" in warning and "no such program" in warning


def test_what_somebody_wants_or_awaits_is_no_trouble() -> None:
    state = RunState(TRIALS)
    for reason in Absence:
        expected = reason in (Absence.AWAITED, Absence.DRAINED, Absence.TAKEN, Absence.TURN)
        what = occasion(events.DeviceLost(1.0, "gpu-1", "why", reason), state)
        assert what == ("" if expected else "trouble")
    assert occasion(events.JobCutShort(1.0, 0, "others are better", is_planned=True), state) == ""
    assert occasion(events.RoundPlanned(1.0, 1, ()), state) == ""


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "settings.toml"
    path.write_text(text)
    path.chmod(0o600)
    return path


def test_settings_are_read(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        '[[notify]]\non = ["end"]\ncommand = "mail -s \'a run\' me"\n'
        '[[notify]]\nwebhook = "https://example.org/x"\n[[notify]]\ndesktop = true\n',
    )
    mail, webhook, desktop = read_channels(path)
    assert mail.command == ("mail", "-s", "a run", "me") and mail.occasions == ("end",)
    assert webhook.webhook and desktop.desktop
    assert webhook.occasions == ("end", "trouble", "promotion")
    assert read_channels(tmp_path / "none.toml") == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[[notify]]\non = ["ends"]\ndesktop = true\n', "'ends' is not one of its values"),
        ("[[notify]]\n", "names no way to notify"),
        ('[[notify]]\ndesktop = true\ncommand = "x"\n', "or several"),
        ('[[notify]]\nwebhook = "ftp://x"\n', "is no http address"),
        ("[[notifi]]\ndesktop = true\n", "there is no such field"),
    ],
)
def test_bad_settings_are_told_with_their_line(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(InputError, match=said) as caught:
        read_channels(write(tmp_path, text))
    assert caught.value.line and caught.value.fix


def test_settings_that_others_may_write_to_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path, "[[notify]]\ndesktop = true\n")
    path.chmod(0o620)
    with pytest.raises(RefusedError):
        read_channels(path)


def test_ways_on_the_command_line(tmp_path: Path) -> None:
    assert parse_channel("desktop").desktop
    assert parse_channel("command:say 'it is done'").command == ("say", "it is done")
    file = write(tmp_path, "https://example.org/x\n")
    assert parse_channel(f"webhook:{file}").webhook == "https://example.org/x"
    for word in ("mail", "desktop:x", "command:", "webhook:https://example.org/x"):
        with pytest.raises(InputError, match="--notify"):
            parse_channel(word)
