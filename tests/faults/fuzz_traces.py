"""Fuzz targets: other people's job traces and tables of throughputs."""

from __future__ import annotations

import math
from pathlib import Path
from random import Random

from hadar_cli.core.model import Job
from hadar_cli.errors import HadarError, InputError
from hadar_cli.simulation.traces import read_throughputs, read_trace
from tests.faults.fuzz import REFUSED, TAKEN, Target
from tests.faults.fuzz_files import survives_json
from tests.faults.fuzz_mutation import Mutator, break_bytes, to_json


def targets(folder: Path) -> list[Target]:
    return [
        Target("traces", 100, make_trace, Traces(folder).examine),
        Target("throughputs", 50, make_table, Tables(folder).examine),
    ]


GAVEL_10 = ["ResNet-18 (batch size 64)", "cmd", "dir", "--steps", "1", "9000", "1", "", "-1", "0.0"]
GAVEL_7 = ["LM (batch size 5)", "cmd", "--steps", "0", "1200", "3600.5", "4"]
HEADER = ["job_id", "arrival_s", "model", "num_gpus", "total_steps", "batch_size", "tput_v100"]
ROW = ["0", "0.0", "ResNet-18", "1", "1000", "64", "3.5"]
TRACES = Mutator(
    [
        [GAVEL_10, GAVEL_10, GAVEL_10],
        [GAVEL_7, GAVEL_7],
        [HEADER, ROW, ["1", *ROW[1:]], ["2", *ROW[1:]]],
        [HEADER, ROW],
    ]
)


def make_trace(dice: Random) -> bytes:
    rows = TRACES.make(dice)
    rows = rows if isinstance(rows, list) else [rows]
    between = "\t" if dice.random() < 0.5 else ","
    if rows and rows[0] == HEADER:
        between = ","
    lines = [between.join(map(str, row)) if isinstance(row, list) else str(row) for row in rows]
    content = "\n".join(lines).encode(errors="surrogatepass")
    return break_bytes(content, dice) if dice.random() < 0.1 else content


class Traces:
    def __init__(self, folder: Path) -> None:
        self._path = folder / "trace.csv"

    def examine(self, content: bytes) -> str:
        self._path.write_bytes(content)
        lines = content.count(b"\n") + content.count(b"\r") + 1
        try:
            trace = read_trace(self._path)
        except InputError as error:
            assert error.file == str(self._path)
            assert error.line is None or error.line >= 1
            return REFUSED
        assert len({job.id for job in trace.jobs}) == len(trace.jobs)
        for job in trace.jobs:
            assert job.target_steps > 0 and job.gpus > 0 and 0 <= job.arrives_s < math.inf
            assert job.batch_size > 0 and job.name
            assert survives_json(job, Job)
        for problem in trace.problems:
            assert problem.line and problem.file and problem.field and str(problem)
        assert len(trace.jobs) + len(trace.problems) <= lines + content.count(b"\xc2\x85") + 999
        if trace.rates:
            packed, spread = trace.rates.matrices(trace.jobs, trace.rates.kinds)
            assert (packed >= 0).all() and (spread >= 0).all()
        return TAKEN if trace.jobs else REFUSED


TABLE = {
    kind: {
        "('ResNet-18 (batch size 64)', 1)": {"null": 3.5, "('LM', 1)": [1.0, 2.0]},
        "('LM (batch size 5)', 2)": {"null": 7},
    }
    for kind in ("v100", "v100_unconsolidated", "k80")
}
TABLES = Mutator([TABLE])
RATES_CSV = "model,batch_size,num_gpus,gpu_type,steps_per_s\nLM,5,1,v100,3.5\nLM,5,2,v100,6\n"


def make_table(dice: Random) -> tuple[str, bytes]:
    if dice.random() < 0.3:
        return ".csv", break_bytes(RATES_CSV.encode(), dice)
    return ".json", to_json(TABLES.make(dice))


class Tables:
    def __init__(self, folder: Path) -> None:
        self._path = folder / "table"

    def examine(self, made: tuple[str, bytes]) -> str:
        suffix, content = made
        path = self._path.with_suffix(suffix)
        path.write_bytes(content)
        try:
            table = read_throughputs(path)
        except HadarError as error:
            assert isinstance(error, InputError) and error.file == str(path)
            return REFUSED
        for model, gang, _ in table.gang_rates:
            for kind in table.kinds:
                assert 0 <= table.device_rate(model, gang, kind) < math.inf
        return TAKEN
