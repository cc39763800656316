"""Shockwave's workloads: batches that grow on the way, and how long jobs are with them."""

import json
from pathlib import Path

import pytest

from hadar_cli.simulation.shockwave import batches, is_workload, read_workload
from hadar_cli.simulation.traces import Throughputs, read_throughputs


def line(steps: int, mode: str, model: str = "LM (batch size 10)", gpus: int = 1) -> str:
    fields = (model, "main.py", "lm", "--steps", 1, steps, gpus, mode, 1, "-1.000000", 9, 55)
    return "\t".join(map(str, fields)) + "\n"


@pytest.fixture
def table(tmp_path: Path) -> Throughputs:
    """An update takes a tenth of a second whatever its batch, on a K80 twice that."""
    sizes = (10, 20, 40, 80)
    rates = {
        kind: {f"('LM (batch size {n})', 1)": {"null": rate} for n in sizes}
        for kind, rate in (("v100", 10.0), ("k80", 5.0))
    }
    path = tmp_path / "rates.json"
    path.write_text(json.dumps(rates))
    return read_throughputs(path)


def test_batches_grow_as_the_mode_says() -> None:
    epoch = 5968  # steps of an LM's at a batch of 10

    def of(mode: str, epochs: int) -> list[int]:
        return list(batches("LM", 10, 1, mode, epochs * epoch))

    assert of("static", 3) == [10, 10, 10]
    assert of("gns", 45) == [10] * 11 + [20] * 10 + [40] * 20 + [80] * 3 + [10]
    assert of("gns", 15) == [10] * 11 + [20] * 4
    assert of("accordion", 20) == [10] * 10 + [80] * 10
    assert of("accordion", 50) == [10] * 16 + [80] * 34
    resnet = list(batches("ResNet-18", 32, 1, "accordion", 200 * 1563))
    assert [resnet[e] for e in (60, 61, 149, 150, 159, 160)] == [32, 256, 256, 32, 32, 256]


def test_a_job_is_as_long_as_its_epochs(tmp_path: Path, table: Throughputs) -> None:
    path = tmp_path / "jobs.trace"
    path.write_text(line(20 * 5968, "static") + line(20 * 5968, "accordion") + line(1, "odd"))
    assert is_workload(path)
    trace = read_workload(path, table)
    assert trace.rates is not None
    epoch_s = 59675 / 10 / 10
    for job, epochs in zip(trace.jobs, (20, 10 + 10 / 8), strict=True):
        for kind, slower in (("v100", 1), ("k80", 2)):
            rate = trace.rates.device_rate(job.workload, 1, kind)
            assert job.target_steps / rate == pytest.approx(slower * epochs * epoch_s)
    assert [(p.line, "'odd'" in str(p)) for p in trace.problems] == [(3, True)]


def test_a_model_that_the_table_lacks_is_named(tmp_path: Path, table: Throughputs) -> None:
    path = tmp_path / "jobs.trace"
    path.write_text(line(10, "static", model="LN (batch size 10)"))
    (job,) = read_workload(path, table).jobs
    assert "unknown model 'LN (batch size 10)'" in str(table.problem(job, ["v100"]))
