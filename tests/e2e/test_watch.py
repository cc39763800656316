"""`hadar watch --web` in a real browser while a real run goes on, and who it does not answer."""

from __future__ import annotations

import http.client
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from hadar_cli.core import events
from tests.e2e.test_kill import ENVIRONMENT, HADAR, NODES, TRAIN, start, wait_for
from tests.support.browser import browsing
from tests.support.runs import m5_world, stored

pytestmark = pytest.mark.timeout(900)
MIX = """
name: watched
slot_s: 1.5
jobs:
  - {script: train.py, name: first, steps: 200, batch_size: 8}
"""
MORE = "jobs:\n  - {script: train.py, name: second, steps: 300, batch_size: 8}\n"
COUNTED = """[...document.querySelectorAll('.tile')]
    .find(tile => tile.innerText.includes('STEPS COUNTED')).querySelector('b').innerText"""


@contextmanager
def page_of(folder: Path, run: str) -> Iterator[str]:
    """The address of the run's page; it ends as Ctrl-C ends it."""
    words = ["watch", run, "--web", "--runs-dir", "runs"]
    process = subprocess.Popen(
        [*HADAR, *words],
        cwd=folder,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout
    try:
        yield process.stdout.readline().strip()
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()


def hadar(folder: Path, *words: str) -> None:
    command = [*HADAR, *words]
    subprocess.run(command, cwd=folder, env=ENVIRONMENT, capture_output=True, check=True)


def ask(address: str, path: str | None = None, method: str = "GET", **headers: str) -> int:
    place = urlsplit(address)
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=60)
    connection.putrequest(method, path or place.path, skip_host="Host" in headers)
    for name, value in headers.items():
        connection.putheader(name, value)
    connection.endheaders()
    answer = connection.getresponse()
    answer.read()
    return answer.status


def test_the_page_changes_while_the_run_goes_on(tmp_path: Path) -> None:
    files = {"mix.yaml": MIX, "more.yaml": MORE, "nodes.toml": NODES, "train.py": TRAIN}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    process = start(tmp_path, "run", "mix.yaml", "--name", "seen", "--wait-for-work")
    wait_for(tmp_path, process, events.WeightsMerged, 1)
    with page_of(tmp_path, "seen") as address, browsing(tmp_path / "profile") as browser:
        browser.open(address)
        assert browser.run("return document.querySelector('h1 small').innerText") == "running"
        assert "first" in browser.run("return document.getElementById('present').innerText")
        before = browser.run(f"return {COUNTED}")
        browser.run("document.querySelector('details').open = true")
        hadar(tmp_path, "add", "seen", "more.yaml")
        browser.wait(f"return {COUNTED} === '500'")
        assert before != "500"
        assert browser.run("return document.querySelector('details').open")
        hadar(tmp_path, "close", "seen")
        process.communicate()
        browser.wait("return document.querySelector('h1 small').innerText === 'finished'")
        assert browser.run("return document.getElementById('present').innerText") == ""
        shapes = "document.querySelectorAll('#job-1 .point, #job-1 .points path').length"
        assert browser.run(f"return {shapes}")
        browser.run("document.getElementById('theme').click()")  # it has outlived all changes
        browser.wait("return document.documentElement.dataset.theme === 'light'")
        assert [word for word in browser.complaints() if "favicon" not in word] == []
        assert all(sent.startswith(address) for sent in browser.requests() if "favicon" not in sent)


def test_it_answers_nobody_else(tmp_path: Path) -> None:
    stored(m5_world(), tmp_path / "runs", "done")
    with page_of(tmp_path, "done") as address:
        place = urlsplit(address)
        assert place.hostname == "127.0.0.1" and len(place.path) > 30
        assert ask(address) == ask(address, f"{place.path}now") == 200
        assert ask(address, Host=f"localhost:{place.port}") == 200
        for host in ("evil.example", f"evil.example:{place.port}", "127.0.0.1", ""):
            assert ask(address, Host=host) == 403, host
        wrong = f"{place.path[:-2]}{'a' if place.path[-2] != 'a' else 'b'}/"
        for path in ("/", "/now", wrong, f"{place.path}run.json", f"{place.path}../", "*"):
            assert ask(address, path) == 404, path
        for method in ("POST", "PUT", "DELETE", "OPTIONS", "HEAD"):
            assert ask(address, method=method) == 501, method
        taken = subprocess.run(
            [*HADAR, "watch", "done", "--web", "--port", str(place.port)],
            cwd=tmp_path,
            env=ENVIRONMENT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert taken.returncode == 2 and "--port: port" in taken.stderr, taken.stderr
