"""The page beside the paper: what was measured is kept, batches are drawn alike, plots are SVG."""

from dataclasses import dataclass
from xml.etree import ElementTree

import numpy as np
import pytest

from bench.paper import motivation, rivals
from bench.paper.batches import GANGS, batch, own_table
from bench.paper.cache import Cache, NotMeasured
from bench.paper.charts import Bar, axis, bars, lines
from bench.paper.forks import idle_devices
from bench.paper.section import Setting, Text
from bench.paper.trace_driven import time_below
from hadar_cli.core import events
from hadar_cli.simulation.scenario import Work


@dataclass(frozen=True)
class Figure:
    value: float


def test_what_is_kept_is_not_measured_again_unless_asked(tmp_path):
    measured = []

    def measure():
        measured.append(1)
        return Figure(len(measured))

    def cache(**said):
        one = Cache(tmp_path / "s.json", "abc", lambda: "today")
        for name, value in said.items():
            setattr(one, name, value)
        return one

    assert cache().get("a", Figure, measure) == Figure(1)
    assert cache().get("a", Figure, measure) == Figure(1)
    again = cache(again=True)
    assert again.get("a", Figure, measure) == Figure(2)
    assert again.get("a", Figure, measure) == Figure(2)
    with pytest.raises(NotMeasured):
        cache(may_measure=False).get("b", Figure, measure)
    assert again.origin == "commit abc; today"


def test_a_batch_is_the_seeds_and_within_what_the_paper_says():
    table = own_table()
    jobs = batch(3, 200, table).jobs
    assert jobs == batch(3, 200, table).jobs != batch(4, 200, table).jobs
    assert {job.gpus for job in jobs} <= set(GANGS)
    hours = [j.target_steps / 3600 / table.device_rate(j.workload, j.gpus, "v100") for j in jobs]
    assert min(hours) > 0 and max(hours) <= 100.1
    assert np.mean(hours) == pytest.approx(17, rel=0.3)


def test_utilisation_is_weighed_by_time():
    work = [Work(0.0, 10.0, 2), Work(0.0, 5.0, 2)]  # all four for half of the time, then two
    below = time_below(work, 4)
    assert [below[p // 5] for p in (0, 45, 50, 95, 100)] == pytest.approx([0, 0, 0.5, 0.5, 1])


def test_a_device_without_a_copy_in_a_round_is_idle():
    happened = [
        events.HeadStarted(0.0, 1),
        events.RoundPlanned(0.0, 1, ()),
        events.CopyStarted(0.0, "a", 0, 1, "x", 1, 0, ()),
        events.CopyFinished(10.0, "a", 5, (), 0.0, 10.0, 0.0, "steps"),
        events.RoundPlanned(10.0, 2, ()),
        events.RunFinished(20.0),
    ]
    assert idle_devices(happened, ["x", "y"]) == [1, 2]


@pytest.mark.parametrize("picture", ["lines", "bars"])
def test_plots_are_well_formed_and_show_every_series(picture):
    if picture == "lines":
        points = {"a & b": [(1.0, 2.0), (10.0, 3.0)], "c": [(1.0, 1.0)]}
        svg = lines("t", axis("x", [1, 10], is_log=True), axis("y", [1, 3]), points)
        shape = "polyline"
    else:
        svg = bars("t", axis("s", [2.0]), ["g"], {"a & b": [Bar(1.0, 0.5, 2.0)], "c": [Bar(2.0)]})
        shape = "rect"
    root = ElementTree.fromstring(svg)
    assert len(root.findall(f"{{*}}{shape}")) == (2 if picture == "lines" else 3)
    said = [text.text for text in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"a & b", "c"} <= set(said)


def test_a_section_writes_the_papers_figures_beside_ours(tmp_path):
    text = Text()
    cache = Cache(tmp_path / "s.json", "abc", lambda: "today")
    motivation.write(motivation.measure(Setting(quick=True), cache), text)
    table = text.parts[1].splitlines()
    assert any("elastic" in row and "5 rounds, CRU 87 %" in row and "100 %" in row for row in table)
    assert any(row.startswith("| Hadar, whole gangs") and "6 rounds" in row for row in table)


def test_the_rivals_page_says_what_was_looked_at_and_what_wrong_lengths_cost(tmp_path):
    found = {
        name: rivals.Played(110.0 if "±" in name else 100.0, 2.0, 1.01, 1.5, 0.1, 7)
        for name, _ in rivals._cases(Setting(quick=False))
    }
    text = Text()
    rivals.write(found, text)
    page = "\n".join(text.parts)
    assert "| philly 1 | 100.0 / 2.00 | 100.0 / 2.00 | yes |" in page
    assert "| saturn 4 | 100.0 / 2.00 | 100.0 / 2.00 | no |" in page
    assert "| batch 12, lengths ± 50 % | 110.0 / 2.00 | +10.0 % |" in page
    cache = Cache(tmp_path / "s.json", "abc", lambda: "today")
    with pytest.raises(NotMeasured, match="--rivals"):
        rivals.measure(Setting(quick=False), cache)
