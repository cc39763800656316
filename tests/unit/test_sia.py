"""Sia's workloads and profiles, in a small copy of their layout."""

from pathlib import Path

import pytest

from hadar_cli.errors import InputError
from hadar_cli.simulation.sia import Profiles, read_workload

WORKLOAD = """name,time,application,num_replicas,batch_size
toy-0,0,toy,2,8
toy-1,30,toy,1,4
gone-2,40,gone,1,4
toy-3,50,toy,x,4
"""


@pytest.fixture
def profiles(tmp_path: Path) -> Path:
    """Steps of 1 s with 4 samples on a replica and 2 s with 8; half a second more between two."""
    folder = tmp_path / "traces" / "toy"
    folder.mkdir(parents=True)
    (folder / "placements-rtx.csv").write_text(
        "placement,local_bsz,step_time,sync_time\n"
        "1,4,1.0,0.0\n1,8,2.0,0.0\n2,4,1.5,0.5\n2,8,2.5,0.5\n"
    )
    (folder / "scalability-rtx.csv").write_text(
        "local_bsz,step_time,sync_time,num_nodes,num_replicas\n"
    )
    for batch, variance in ((4, 3.0), (16, 3.0)):
        # Of equal gradients in both epochs: a batch of four times is worth (3 + 1) / (3/4 + 1).
        (folder / f"validation-{batch}.csv").write_text(
            "progress,iteration,metric,grad_sqr,grad_var\n"
            f"120.0,100,0.5,1.0,{variance}\n240.0,200,0.6,1.0,{variance}\n"
        )
    return tmp_path / "traces"


def test_a_step_of_a_larger_batch_is_worth_its_gain(profiles: Path) -> None:
    toy = Profiles(profiles).of("toy", "rtx")
    assert toy is not None and toy.steps == 240.0
    assert toy.rate(1, 4) == pytest.approx(1 / 1.0 / 1.2)  # Sia's own slowdown of 1.2
    gain = (3 + 1) / (3 / 2 + 1)  # of twice the batch
    assert toy.rate(2, 8) == pytest.approx(gain / 1.5 / 1.2)
    # One replica does eight samples in two passes, for the noise cannot be told from one.
    assert toy.rate(1, 8) == pytest.approx(gain / 2.0 / 1.2)
    assert toy.rate(2) >= max(toy.rate(2, batch) for batch in (8, 12, 16)) - 1e-12


def test_jobs_are_rigid_or_free_and_bad_lines_are_told(profiles: Path, tmp_path: Path) -> None:
    path = tmp_path / "workload-1.csv"
    path.write_text(WORKLOAD)
    rigid = read_workload(path, Profiles(profiles), {"rtx": 4})
    assert [(job.name, job.gpus, job.sizes) for job in rigid.jobs] == [
        ("toy-0", 2, None),
        ("toy-1", 1, None),
    ]
    assert [problem.line for problem in rigid.problems] == [4, 5]
    assert "unknown application 'gone'" in str(rigid.problems[0])
    assert rigid.rates is not None and rigid.rates.problem(rigid.jobs[0], ["rtx"]) is None
    free = read_workload(path, Profiles(profiles), {"rtx": 4}, free=True)
    assert [job.sizes for job in free.jobs] == [(1, 4), (1, 4)]
    assert free.rates.device_rate("toy", 1, "rtx") >= rigid.rates.device_rate(
        rigid.jobs[1].workload, 1, "rtx"
    )


def test_the_category_of_a_job_goes_before_the_option(profiles: Path, tmp_path: Path) -> None:
    path = tmp_path / "w.csv"
    lines = WORKLOAD.splitlines()
    path.write_text(
        "\n".join([f"{lines[0]},category", f"{lines[1]},rigid", f"{lines[2]},adaptive"])
    )
    trace = read_workload(path, Profiles(profiles), {"rtx": 4}, free=True)
    assert [job.sizes for job in trace.jobs] == [None, (1, 4)]


def test_other_folders_and_files_are_refused(profiles: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no profiles"):
        Profiles(tmp_path / "toy")
    path = tmp_path / "w.csv"
    path.write_text("job_id,arrival_s\n1,2\n")
    with pytest.raises(InputError, match="missing column name"):
        read_workload(path, Profiles(profiles), {"rtx": 4})
    (profiles / "toy" / "placements-rtx.csv").write_text("placement,local_bsz\none,2\n")
    with pytest.raises(InputError, match="not one of Sia's tables"):
        Profiles(profiles).of("toy", "rtx")
