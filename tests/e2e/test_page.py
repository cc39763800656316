"""The page of `hadar report --html` in a real browser, which no request may leave."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hadar_cli.cli.runs.report import report
from hadar_cli.core.measures.forecast import Forecast
from tests.support.browser import Browser, browsing
from tests.support.runs import MARKUP, m5_world, stored, unlucky_world

pytestmark = pytest.mark.timeout(900)  # a real run is made first, however busy the machine is
MOST_BYTES = 6_000_000
WORKLOADS = ["image_classification", "language_model", "translation", "recommender", "weather"]
SINGLE = {"gantt", "completions", "utilisation", "split", "throughput", "steps"}
SINGLE |= {f"job-{i}" for i in range(5)}
COMPARED = {"times", "completions", "split", "jcts", "effective", "gantt-0", "gantt-1"}


def run_m5(folder: Path) -> None:
    """A real M-5, cut short: the five models for a few steps each on two local devices."""
    jobs = "".join(f"  - {{workload: {name}, steps: 12}}\n" for name in WORKLOADS)
    (folder / "m5.yaml").write_text(f"slot_s: 6\njobs:\n{jobs}")
    nodes = (f'[[node]]\nname = "{name}"\nhost = "local"\n' for name in ("one", "two"))
    (folder / "nodes.toml").write_text("".join(nodes))
    words = ["run", "m5.yaml", "-n", "nodes.toml", "--runs-dir", ".", "--name", "real"]
    hadar = [sys.executable, "-m", "hadar_cli.cli.main", *words]
    subprocess.run(hadar, cwd=folder, check=True, capture_output=True)


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """M-5 for real and on paper, with a forecast and under two policies; and a run that met with
    everything bad."""
    folder = tmp_path_factory.mktemp("pages")
    run_m5(folder)
    forecast = Forecast(100.0, dict.fromkeys(WORKLOADS, 80.0), 60.0, "the formula")
    stored(m5_world(), folder, "m5-hadare", forecast)
    stored(m5_world("gavel"), folder, "m5-gavel")
    stored(unlucky_world(MARKUP), folder, "unlucky")
    wanted = {"single": ["m5-hadare"], "compared": ["m5-hadare", "m5-gavel"], "bad": ["unlucky"]}
    wanted["real"] = ["real"]
    made = {name: folder / f"{name}.html" for name in wanted}
    for name, runs in wanted.items():
        report(runs, folder, page=made[name])
    return made


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browsing(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.mark.parametrize(
    ("name", "charts"), [("real", SINGLE), ("single", SINGLE), ("compared", COMPARED)]
)
def test_every_chart_is_drawn_from_data_without_a_word_of_complaint(
    pages: dict[str, Path], browser: Browser, name: str, charts: set[str]
) -> None:
    browser.open(pages[name])
    points = browser.run(
        """return Object.fromEntries([...document.querySelectorAll(".chart")].map(chart => [
             chart.id,
             [chart.data.every(trace => trace.x.length > 0 && trace.y.length > 0),
              chart.querySelectorAll(".point, .points path, .js-line, .textpoint").length]]))"""
    )
    assert set(points) == charts
    assert {id for id, (has_data, shapes) in points.items() if not has_data or not shapes} == set()
    assert browser.complaints() == []
    assert browser.requests() == [pages[name].as_uri()]


@pytest.mark.parametrize("name", ["real", "single", "compared", "bad"])
def test_nothing_sticks_out_at_any_width(
    pages: dict[str, Path], browser: Browser, name: str
) -> None:
    browser.open(pages[name], 1600)
    for width in (1600, 400):
        browser.resize(width)
        browser.wait(  # charts follow the window, a moment later
            """return [...document.querySelectorAll(".chart")].every(chart =>
                 chart.querySelector(".main-svg").getBoundingClientRect().right
                 <= chart.getBoundingClientRect().right + 1)"""
        )
        assert browser.run("return innerWidth") == width
        assert browser.run("return document.documentElement.scrollWidth") <= width


def test_charts_keep_their_places_when_the_window_changes(
    pages: dict[str, Path], browser: Browser
) -> None:
    """Plotly fits them to the new width, and lets go of their height meanwhile, or for good."""
    browser.open(pages["single"])
    high = "return [...document.querySelectorAll('.chart')].map(chart => chart.offsetHeight)"
    before = browser.run(high)
    browser.resize(500)
    browser.wait(
        "return [...document.querySelectorAll('.main-svg')].every(one => one.clientWidth < 500)"
    )
    assert browser.run(high) == before and min(before) > 120


def test_a_chart_can_be_read_without_seeing_it(pages: dict[str, Path], browser: Browser) -> None:
    browser.open(pages["single"])
    described = browser.run(
        """return [...document.querySelectorAll("figure")].map(figure => [
             figure.querySelector(".chart").getAttribute("role"),
             figure.querySelector(".chart").getAttribute("aria-label").length,
             figure.querySelectorAll("details tbody tr").length])"""
    )
    assert len(described) == len(SINGLE)
    assert all(role == "img" and words > 20 and rows for role, words, rows in described)


def test_light_and_dark_follow_the_reader_and_the_switch(
    pages: dict[str, Path], browser: Browser
) -> None:
    def brightness() -> list[bool]:
        """Whether page and charts' letters are bright."""
        seen = browser.run(
            """return [getComputedStyle(document.body).backgroundColor,
                       getComputedStyle(document.querySelector(".chart .xtick text")).fill]"""
        )
        return [sum(map(int, colour[4:-1].split(","))) > 384 for colour in seen]

    try:
        browser.prefer("dark")
        browser.open(pages["single"])
        assert brightness() == [False, True]
        browser.run("document.getElementById('theme').click()")
        browser.wait("return document.documentElement.dataset.theme == 'light'")
        assert brightness() == [True, False]
    finally:
        browser.prefer("light")


def test_words_of_nodes_stay_words(pages: dict[str, Path], browser: Browser) -> None:
    browser.open(pages["bad"])
    assert browser.run("return document.images.length") == 0
    assert browser.run("return document.title") == "hadar: unlucky"
    assert MARKUP in browser.run("return document.body.innerText")
    assert browser.complaints() == []
    assert browser.requests() == [pages["bad"].as_uri()]


def test_pages_are_small_and_tell_the_forecast(pages: dict[str, Path]) -> None:
    assert max(page.stat().st_size for page in pages.values()) < MOST_BYTES
    text = pages["single"].read_text()
    assert "Forecast against what happened" in text and "the formula" in text
    assert "Forecast against" not in pages["bad"].read_text()
