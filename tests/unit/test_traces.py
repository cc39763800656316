"""Reading other people's traces, good and bad."""

import json

import pytest

from hadar_cli.errors import InputError
from hadar_cli.simulation.traces import read_throughputs, read_trace, why_not

NEW = (
    "ResNet-18 (batch size 64)\tpython3 main.py\tcifar10\t--num_steps\t1"
    "\t{steps}\t{gpus}\t1\t-1.000000\t{at}"
)
OLD = "CycleGAN\tpython3 cyclegan.py\t--n_steps\t1\t{steps}\t{at}\t{gpus}"
TABLE = {
    "v100": {
        "('ResNet-18 (batch size 64)', 1)": {"null": 24.0, "('A3C', 1)": [1.0, 2.0]},
        "('ResNet-18 (batch size 64)', 2)": {"null": 40.0},
        "('CycleGAN', 1)": {"null": 4.0},
    },
    "k80": {
        "('ResNet-18 (batch size 64)', 1)": {"null": 7.0},
        "('ResNet-18 (batch size 64)', 2)": {"null": 0.0},
    },
    "v100_unconsolidated": {"('ResNet-18 (batch size 64)', 2)": {"null": 30.0}},
}
KINDS = ("v100", "k80")


def written(tmp_path, text, name="jobs.trace"):
    path = tmp_path / name
    path.write_text(text)
    return path


def table(tmp_path):
    return read_throughputs(written(tmp_path, json.dumps(TABLE), "rates.json"))


def test_both_layouts_of_gavel(tmp_path):
    text = (
        NEW.format(steps=100, gpus=2, at=0) + "\n" + OLD.format(steps=70, gpus=1, at="6.5") + "\n"
    )
    first, second = read_trace(written(tmp_path, text)).jobs
    assert (first.workload, first.batch_size) == ("ResNet-18 (batch size 64)", 64)
    assert (first.id, first.target_steps, first.gpus, first.arrives_s) == (0, 100, 2, 0.0)
    assert (second.workload, second.target_steps, second.gpus) == ("CycleGAN", 70, 1)
    assert second.arrives_s == 6.5


def test_shockwaves_layout(tmp_path):
    fields = ("LM (batch size 10)", "python3 main.py", "lm", "--steps", 1, 1345, 2, "gns", 1)
    line = "\t".join(map(str, (*fields, "-1.000000", 1418, 55)))
    (job,) = read_trace(written(tmp_path, line + "\n")).jobs
    assert (job.workload, job.target_steps, job.gpus) == ("LM (batch size 10)", 1345, 2)
    assert job.arrives_s == 55.0


def test_a_plain_csv_may_bring_its_own_rates(tmp_path):
    text = (
        "job_id,arrival_s,model,batch_size,num_gpus,total_steps,tput_v100,tput_k80\n"
        "7,12.5,ResNet-18,64,2,900,40,5\n8,0,CycleGAN,,1,10,4,\n"
    )
    trace = read_trace(written(tmp_path, text, "jobs.csv"))
    assert [(job.id, job.workload) for job in trace.jobs] == [
        (7, "ResNet-18 (batch size 64)"),
        (8, "CycleGAN"),
    ]
    packed, _ = trace.rates.matrices(trace.jobs, KINDS)
    assert packed.tolist() == [[20.0, 2.5], [4.0, 0.0]]


def test_rates_are_of_one_device_and_spread_where_measured(tmp_path):
    trace = read_trace(written(tmp_path, NEW.format(steps=1, gpus=2, at=0)))
    packed, spread = table(tmp_path).matrices(trace.jobs, KINDS)
    assert packed.tolist() == [[20.0, 0.0]]  # it does not run on two K80s
    assert spread.tolist() == [[15.0, 0.0]]


def test_a_gang_size_never_measured_scales_from_the_next_smaller(tmp_path):
    rates = table(tmp_path)
    assert rates.device_rate("CycleGAN", 4, "v100") == 4.0
    assert rates.device_rate("ResNet-18 (batch size 64)", 8, "v100") == 20.0


def test_throughputs_as_csv(tmp_path):
    text = "model,batch_size,num_gpus,gpu_type,steps_per_s\nLM,5,2,v100,180\nA3C,,1,v100,7\n"
    rates = read_throughputs(written(tmp_path, text, "rates.csv"))
    assert rates.device_rate("LM (batch size 5)", 2, "v100") == 90.0
    assert rates.kinds == ("v100",)


@pytest.mark.parametrize(
    ("steps", "gpus", "at", "field", "why"),
    [
        (-5, 1, 0, "total_steps", "is -5"),
        (0, 1, 0, "total_steps", "is 0"),
        ("many", 1, 0, "total_steps", "not a whole number"),
        ("nan", 1, 0, "total_steps", "not a whole number"),
        (5, 0, 0, "num_gpus", "is 0"),
        (5, 1.5, 0, "num_gpus", "not a whole number"),
        (5, 1, -3, "arrival_s", "not a time"),
    ],
)
def test_bad_lines_are_told_one_by_one(tmp_path, steps, gpus, at, field, why):
    good = NEW.format(steps=10, gpus=1, at=0)
    path = written(tmp_path, "\n".join([good, NEW.format(steps=steps, gpus=gpus, at=at), good]))
    trace = read_trace(path)
    (problem,) = trace.problems
    assert [job.id for job in trace.jobs] == [0, 2]
    assert (problem.file, problem.line, problem.field) == (str(path), 2, field)
    assert why in problem.message


def test_jobs_that_cannot_run_are_told_with_the_reason(tmp_path):
    lines = [
        NEW.format(steps=10, gpus=1, at=0),
        NEW.format(steps=10, gpus=99, at=0),
        NEW.format(steps=10, gpus=1, at=0).replace("ResNet-18", "ResNet-81"),
        OLD.format(steps=10, gpus=1, at=0),
    ]
    trace = read_trace(written(tmp_path, "\n".join(lines)))
    good, *bad = [why_not(job, table(tmp_path), ("k80",), devices=8) for job in trace.jobs]
    assert good is None
    assert [trace.lines[job.id] for job in trace.jobs] == [1, 2, 3, 4]
    too_wide, unknown, nowhere = map(str, bad)
    assert too_wide.endswith("asks for 99 GPUs; the cluster has 8")
    assert "did you mean 'ResNet-18 (batch size 64)'?" in unknown
    assert "runs on none of k80" in nowhere


def test_a_job_id_stands_once(tmp_path):
    text = "job_id,arrival_s,model,num_gpus,total_steps\n1,0,A3C,1,5\n1,0,A3C,1,5\n"
    (problem,) = read_trace(written(tmp_path, text, "jobs.csv")).problems
    assert (problem.line, problem.field) == (3, "job_id")


@pytest.mark.parametrize(
    ("text", "why", "line"),
    [
        ("job_id,model\n1,A3C\n", "missing columns arrival_s, num_gpus, total_steps", 1),
        ("a\tb\tc\n", "3 tab-separated fields", 1),
        (NEW.format(steps=1, gpus=1, at=0) + "\na\tb\n", "2 tab-separated fields", 2),
        ("job_id,arrival_s,model,num_gpus,total_steps\n", "no jobs", None),
        ("", "missing columns", 1),
    ],
)
def test_what_is_no_trace_is_refused(tmp_path, text, why, line):
    with pytest.raises(InputError) as caught:
        read_trace(written(tmp_path, text))
    assert why in caught.value.message and caught.value.line == line


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("rates.json", "{", "not JSON"),
        ("rates.json", "[]", "not a table"),
        ("rates.json", '{"v100": {"oops": {"null": 1}}}', "not a table"),
        ("rates.json", "{}", "no throughputs"),
        ("rates.csv", "model,num_gpus\n", "missing column gpu_type"),
    ],
)
def test_what_is_no_table_is_refused(tmp_path, name, text, why):
    with pytest.raises(InputError, match=why):
        read_throughputs(written(tmp_path, text, name))


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        read_trace(tmp_path / "nowhere.trace")
