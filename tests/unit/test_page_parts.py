"""What the page is made of: figures that plotly knows, files that hadar reads, no secrets."""

from dataclasses import replace

import plotly.graph_objects as go
import pytest

from hadar_cli.config.inventory import read_nodes
from hadar_cli.config.mixes import read_mix
from hadar_cli.core.measures.history import follow
from hadar_cli.core.measures.timeline import PARTS, split_over_time
from hadar_cli.core.model import Launch
from hadar_cli.report.page import charts
from hadar_cli.report.page.comparison import of_runs
from hadar_cli.report.page.figure import Clock, Figure
from hadar_cli.report.page.gantt import gantt
from hadar_cli.report.page.learning import learning
from hadar_cli.report.page.markup import embedded, text
from hadar_cli.report.page.settings import mix_text, nodes_text
from hadar_cli.report.record import RunRecord, read_record
from hadar_cli.report.terminal.runs import compare
from tests.support.runs import MARKUP, ROOT, m5_world, stored, trained_world, unlucky_world


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> RunRecord:
    return read_record(stored(m5_world(), tmp_path_factory.mktemp("runs"), "m5"))


def figures_of(record: RunRecord) -> list[Figure]:
    chart = gantt(record.timeline, record.facts.mix.jobs)
    return [chart, *charts.of_run(record), *learning(record)]


def test_plotly_knows_every_word_of_every_figure(record, tmp_path):
    other = read_record(stored(m5_world("gavel"), tmp_path, "other"))
    compared = compare([record, other])
    for figure in figures_of(record) + list(of_runs([record, other], compared)):
        go.Figure(figure.data, figure.layout)  # raises for names and values it does not know
        assert figure.rows and figure.says, figure.id
        assert {len(row) for row in figure.rows} == {len(figure.columns)}, figure.id


def test_an_empty_run_and_a_broken_one_have_figures_too(tmp_path):
    empty = trained_world()
    empty.journal.events.clear()
    for name, world in (("empty", empty), ("broken", unlucky_world())):
        figures = figures_of(read_record(stored(world, tmp_path, name)))
        assert {"gantt", "completions", "utilisation"} <= {figure.id for figure in figures}
        for figure in figures:
            go.Figure(figure.data, figure.layout)  # raises for names and values it does not know
            assert figure.says, figure.id


def test_bars_of_the_gantt_are_the_time_in_training(record):
    figure = gantt(record.timeline, record.facts.mix.jobs)
    clock = Clock.lasting(record.timeline.ends_at)
    jobs = {job.name for job in record.facts.mix.jobs}
    bars = [trace for trace in figure.data if trace.get("name", "")[3:] in jobs]
    drawn_s = clock.seconds * sum(sum(trace["x"]) for trace in bars)
    assert drawn_s == pytest.approx(record.summary.busy_s, rel=0.05)
    for trace in bars:
        assert all(begin >= 0 for begin in trace["base"])


@pytest.mark.parametrize("make", [trained_world, unlucky_world, m5_world])
@pytest.mark.parametrize("cells", [1, 7, 120])
def test_the_split_over_time_adds_up_to_the_summary(tmp_path, make, cells):
    record = read_record(stored(make(), tmp_path))
    shares = split_over_time(record.timeline, cells)
    assert list(shares) == list(PARTS)
    for cell in zip(*shares.values(), strict=True):
        assert sum(cell) == pytest.approx(1)
    overhead = record.summary.overhead
    whole_s = len(record.devices) * record.summary.ttd_s
    for part, row in shares.items():
        told_s = record.summary.busy_s if part == "busy_s" else getattr(overhead, part)
        assert sum(row) / cells * whole_s == pytest.approx(told_s, abs=1e-6 * whole_s), part


def test_histories_end_where_the_state_does(record):
    histories = follow(record.facts.mix.jobs, record.happened)
    for history, job in zip(histories, record.summary.jobs, strict=True):
        assert history.commits[-1].steps == job.steps_done == history.job.target_steps
        assert history.commits[-1].effective_steps == pytest.approx(job.effective_steps)
        assert history.commits[-1].loss == pytest.approx(job.loss)
        assert [m.values["accuracy"] for m in history.measurements] == [0.1, 0.9]
        assert len(history.commits) == job.merges
        assert history.finished_at == job.jct_s


@pytest.mark.parametrize("name", ["m5", "m12", "quickstart"])
def test_the_files_on_the_page_make_the_same_run(tmp_path, name):
    mix, nodes = read_mix(ROOT / f"mixes/{name}.yaml"), read_nodes(ROOT / "nodes.toml")
    (tmp_path / "mix.yaml").write_text(mix_text(mix))
    (tmp_path / "nodes.toml").write_text(nodes_text(nodes))
    assert read_mix(tmp_path / "mix.yaml") == mix
    assert read_nodes(tmp_path / "nodes.toml") == nodes


def test_secrets_and_places_stay_out_of_the_files(tmp_path):
    world = trained_world()
    script = tmp_path / "place" / "train.py"
    launch = Launch(script=str(script), env={"TOKEN": "hunter2"})
    mix = replace(world.mix, jobs=(replace(world.mix.jobs[0], launch=launch),))
    nodes = tuple(
        replace(node, env={"KEY": "hunter2"}, identity_file="~/.ssh/private", user="me")
        for node in world.nodes
    )
    written = mix_text(mix) + nodes_text(nodes)
    assert "TOKEN" in written and "train.py" in written
    for secret in ("hunter2", "private", str(tmp_path)):
        assert secret not in written


def test_foreign_words_cannot_become_markup():
    assert "<" not in text(MARKUP) and "'" not in text(MARKUP)
    assert "</script" not in embedded({"why": MARKUP})
    assert "\x1b" not in text("\x1b[31mred")


@pytest.mark.parametrize(
    ("ends_at", "unit"),
    [(10, "seconds"), (179, "seconds"), (180, "minutes"), (10_800, "hours"), (864_000, "days")],
)
def test_the_clock_suits_the_length(ends_at, unit):
    assert Clock.lasting(ends_at).unit == unit
