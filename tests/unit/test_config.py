"""The strict readers of nodes.toml and mixes: what they give, and how they refuse."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from hadar_cli.config import mixes as config
from hadar_cli.config import sweeps
from hadar_cli.config.inventory import read_nodes
from hadar_cli.config.mixes import read_mix
from hadar_cli.core.model import PAPER_MERGE, Gpu, Job, MergeRules, OuterStep, PolicyChoice
from hadar_cli.errors import InputError
from hadar_cli.workloads import CATALOG

ROOT = Path(__file__).parents[2]

NODES = """\
[defaults]
host = "local"
env = { A = "1", B = "1" }

[[node]]
name = "fast"
gpus = [{ model = "rtx3090" }, { model = "Quark 9", tflops = 10, vram_gb = 4 }]
emulate = { speed = 0.5 }

[[node]]
name = "far"
host = "ada@far.example.org"
port = 2222
enabled = false
price_per_hour = 3
hours = "19:00-07:00"
[node.env]
B = "2"
"""

MIX = """\
name: lab
slot_s: 10
policy: {name: hadar, reserve: 0.8}
merge: paper
seed: 7
jobs:
  - workload: weather
    count: 2
    epochs: 3
  - script: train.py
    name: mine
    epochs: 2
    samples: 1001
    batch_size: 10
    args: [--lr, "0.1"]
    max_duration: 1h30m
"""


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


@pytest.fixture
def mix_file(tmp_path: Path) -> Path:
    write(tmp_path / "train.py", "")
    return write(tmp_path / "lab.yaml", MIX)


def refusal(read: object, path: Path) -> InputError:
    with pytest.raises(InputError) as caught:
        read(path)  # type: ignore[operator]
    assert caught.value.file == str(path)
    assert caught.value.fix
    return caught.value


def test_nodes_take_what_they_do_not_say_from_the_defaults(tmp_path: Path) -> None:
    fast, far = read_nodes(write(tmp_path / "nodes.toml", NODES))
    assert (fast.name, fast.host, fast.emulated_speed, fast.enabled) == ("fast", "local", 0.5, True)
    assert fast.gpus == (Gpu("RTX 3090", 142, 24, 4), Gpu("Quark 9", 10.0, 4.0, 3))
    assert fast.env == {"A": "1", "B": "1"}
    assert (far.host, far.port, far.enabled) == ("ada@far.example.org", 2222, False)
    assert (far.price_per_hour, far.hours, far.env) == (3.0, "19:00-07:00", {"A": "1", "B": "2"})


def test_a_policys_fields_have_plain_names(mix_file: Path) -> None:
    odd = MIX.replace("reserve: 0.8", '"\\ud800": 1')
    with pytest.raises(InputError, match=r"control characters|does not fit") as refused:
        read_mix(write(mix_file, odd))
    assert refused.value.line == 3


@pytest.mark.parametrize("line", ["slot_s: auto\n", ""])
def test_a_mix_may_leave_the_slot_to_hadar(mix_file: Path, line: str) -> None:
    assert not read_mix(mix_file).chooses_slot
    assert read_mix(write(mix_file, MIX.replace("slot_s: 10\n", line))).chooses_slot


@pytest.mark.parametrize(
    ("gpus", "asked", "sizes"),
    [("4", 4, None), ("2..8", 8, (2, 8)), ("3..3", 3, (3, 3)), ("auto", 1, (1, 1024))],
)
def test_a_job_may_leave_its_size_open(
    mix_file: Path, gpus: str, asked: int, sizes: tuple[int, int] | None
) -> None:
    text = MIX.replace("script: train.py", f"script: train.py\n    gpus: {gpus}")
    job = read_mix(write(mix_file, text)).jobs[-1]
    assert (job.gpus, job.sizes) == (asked, sizes)


@pytest.mark.parametrize("gpus", ["8..2", "0..3", "1..2000", "1..", "a..b", "1.5", "many"])
def test_other_sizes_are_refused(mix_file: Path, gpus: str) -> None:
    text = MIX.replace("script: train.py", f"script: train.py\n    gpus: {gpus}")
    with pytest.raises(InputError) as caught:
        read_mix(write(mix_file, text))
    assert (caught.value.field or "").endswith("gpus") and caught.value.fix


def test_mixes_are_read_with_counts_expanded_and_gaps_filled(mix_file: Path) -> None:
    mix = read_mix(mix_file)
    weather = CATALOG["weather"]
    samples = weather.train_samples["tiny"]
    assert samples is not None
    assert (mix.name, mix.slot_s, mix.seed, mix.merge) == ("lab", 10.0, 7, PAPER_MERGE)
    assert mix.policy == PolicyChoice("hadar", {"reserve": 0.8})
    assert (mix.policy.line, mix.source) == (3, str(mix_file))
    assert [(job.id, job.name) for job in mix.jobs] == [
        (0, "weather-1"),
        (1, "weather-2"),
        (2, "mine"),
    ]
    first, _, mine = mix.jobs
    assert first.target_steps == 3 * -(-samples // weather.batch_size["tiny"])
    assert (first.workload, first.launch.workload, first.launch.preset) == (
        "weather",
        "weather",
        "tiny",
    )
    sizes = weather.model_size["tiny"], weather.batch_size["tiny"]
    assert (first.model_size, first.batch_size) == sizes
    assert (mine.target_steps, mine.batch_size, mine.max_duration_s) == (202, 10, 5400.0)
    assert (mine.workload, mine.launch.args) == ("script", ("--lr", "0.1"))
    assert mine.launch.script == str(mix_file.parent / "train.py")


def test_preset_auto_follows_the_devices(tmp_path: Path) -> None:
    text = "jobs:\n- {workload: IC, epochs: 1}\n- {workload: LM, preset: tiny, epochs: 1}\n"
    path = write(tmp_path / "a mix.yaml", text)
    mix = read_mix(path, accelerators=True, data_dir="/data")
    assert [job.launch.preset for job in mix.jobs] == ["paper", "tiny"]
    assert mix.jobs[0].batch_size == CATALOG["image_classification"].batch_size["paper"]
    assert mix.jobs[0].launch.data_dir == "/data"
    assert mix.name == "a-mix"
    assert read_mix(path).jobs[0].launch.preset == "tiny"


def test_paths_are_sought_beside_the_mix_then_in_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in ("mixes", "work"):
        (tmp_path / place).mkdir()
        write(tmp_path / place / "both.py", "")
    write(tmp_path / "work" / "only_here.py", "")
    monkeypatch.chdir(tmp_path / "work")
    jobs = "jobs:\n- {script: both.py, steps: 1, sync: .}\n"
    jobs += "- {script: only_here.py, steps: 1, data_dir: on/the/node}\n"
    both, here = read_mix(write(tmp_path / "mixes" / "m.yaml", jobs)).jobs
    assert both.launch.script == str(tmp_path / "mixes" / "both.py")
    assert both.launch.sync == str(tmp_path / "mixes")
    assert here.launch.script == str(tmp_path / "work" / "only_here.py")
    assert here.launch.data_dir == "on/the/node"


NODE_MISTAKES = {
    "misspelt field": (
        NODES.replace("port =", "prot ="),
        (13, "node[1].prot", "there is no such field", "Did you mean 'port'?"),
    ),
    "misspelt table": (
        NODES.replace("[[node]]", "[[nodes]]"),
        (5, "nodes", "there is no such field", "Did you mean 'node'?"),
    ),
    "single brackets": (
        '[node]\nname = "a"\n',
        (1, "node", "should be a list of tables", "Write [[node]], with two brackets."),
    ),
    "wrong type": (
        NODES.replace("2222", '"2222"'),
        (13, "node[1].port", "should be a whole number, not the text '2222'", None),
    ),
    "out of range": (
        NODES.replace("0.5", "0"),
        (8, "node[0].emulate.speed", "is out of range", "Give a number above 0 to 100."),
    ),
    "not a number": (
        NODES.replace("price_per_hour = 3", "price_per_hour = nan"),
        (15, "node[1].price_per_hour", "is out of range", None),
    ),
    "unknown GPU": (
        NODES.replace("rtx3090", "RTX 3909"),
        (
            7,
            "node[0].gpus[0].model",
            "'RTX 3909' is not in the table of known GPUs",
            "Did you mean 'RTX 3090'? If not, give its tflops and vram_gb as well.",
        ),
    ),
    "GPU as text": (
        'node = [{ name = "a", host = "local", gpus = ["T4"] }]',
        (1, "node[0].gpus[0]", "should be a table", 'Write { model = "T4" }.'),
    ),
    "duplicate name": (
        NODES.replace('"far"', '"fast"'),
        (11, "node[1].name", "'fast' is already taken", "Rename one node."),
    ),
    "mistake in a subtable": (
        NODES.replace('B = "2"', "B = 2"),
        (
            18,
            "node[1].env.B",
            "should be text, not 2",
            'If it is meant as text, put it in quotes: "2".',
        ),
    ),
    "name in defaults": (
        NODES.replace("[defaults]\n", '[defaults]\nname = "x"\n'),
        (2, "defaults.name", "there is no such field", None),
    ),
    "no host": (
        '[[node]]\nname = "a"\n',
        (1, "node[0]", "'host' is missing", "Add 'host'."),
    ),
    "host that ssh would take for an option": (
        NODES.replace("ada@far.example.org", "-oProxyCommand=x"),
        (
            12,
            "node[1].host",
            "'-oProxyCommand=x' does not fit",
            "Give it without spaces or a leading dash.",
        ),
    ),
    "syntax": (NODES.replace("2222", "22 22"), (13, None, "Expected newline", None)),
    "duplicate key": (
        NODES.replace("port = 2222", 'port = 2222\nhost = "b"'),
        (14, None, "Cannot overwrite a value", None),
    ),
    "nothing enabled": (
        '[[node]]\nname = "a"\nhost = "local"\nenabled = false\n',
        (None, None, "no node is enabled", "Set enabled = true for one of them."),
    ),
    "no nodes": ('[defaults]\nhost = "local"\n', (None, None, "lists no nodes", None)),
    "too deep": ("x = " + "[" * 50 + "]" * 50, (None, None, "is nested too deeply", None)),
    "number of many digits": ("x = " + "9" * 5000, (None, None, "a number that is too long", None)),
}


def job_of(folder: Path, fields: str) -> Job:
    path = folder / "m.yaml"
    path.write_text(f"jobs:\n- {{{fields}, steps: 1}}\n")
    return read_mix(path).jobs[0]


def test_the_scripts_project_folder_travels_unless_sync_names_another(tmp_path):
    (tmp_path / ".git").mkdir()
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "train.py").touch()
    assert job_of(tmp_path, "script: scripts/train.py").launch.sync == str(tmp_path)
    launch = job_of(tmp_path, "script: scripts/train.py, sync: scripts").launch
    assert launch.sync == str(tmp_path / "scripts")


def test_a_module_is_run_from_its_project(tmp_path):
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "train.py").touch()
    job = job_of(tmp_path, "module: pack.train")
    assert (job.name, job.launch.module, job.launch.script) == ("pack.train", "pack.train", None)
    assert job.launch.sync == str(tmp_path)
    with pytest.raises(InputError, match=r"no module 'pack.tran'") as caught:
        job_of(tmp_path, "module: pack.tran")
    assert (caught.value.line, caught.value.field) == (2, "jobs[0].module")
    with pytest.raises(InputError, match="cannot stand beside 'script'"):
        job_of(tmp_path, "script: pack/train.py, module: pack.train")


def test_data_is_of_the_job_or_of_the_mix(tmp_path):
    for name in ("t.py", "a.bin", "b.bin"):
        (tmp_path / name).touch()
    path = tmp_path / "m.yaml"
    jobs = "[{script: t.py, steps: 1}, {script: t.py, steps: 1, name: o, data: [b.bin]}]"
    path.write_text(f"data: a.bin\njobs: {jobs}\n")
    first, second = read_mix(path, data_dir="/on/nodes").jobs
    assert first.launch.data == (str(tmp_path / "a.bin"),)
    assert second.launch.data == (str(tmp_path / "b.bin"),)
    assert first.launch.data_dir is None


@pytest.mark.parametrize(
    ("written", "problem"),
    [
        ("data: [nowhere.bin]", "there is no file 'nowhere.bin'"),
        ("data: [a], data_dir: /there", "cannot stand beside 'data'"),
        ("data: [a, a/b]", "no place of its own"),
        ("data: [a, ../far/a]", "no place of its own"),
        ("data: [../far/t.py]", "no place of its own"),
        ("data: [..]", "holds the project folder"),
        ("data: 3", "should be a list"),
    ],
)
def test_data_that_is_not_there_or_in_the_way_is_refused(tmp_path, written, problem):
    folder = tmp_path / "project"
    for name in ("project/t.py", "project/a/b", "far/a/b", "far/t.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    with pytest.raises(InputError, match=problem) as caught:
        job_of(folder, f"script: t.py, {written}")
    assert (caught.value.line, bool(caught.value.fix)) == (2, True)


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("[--epochs, 8, --lr, 0.1]", ("--epochs", "8", "--lr", "0.1")),
        ("\"--lr 0.1 --name 'a b'\"", ("--lr", "0.1", "--name", "a b")),
        ("--lr", ("--lr",)),
        ("[]", ()),
    ],
)
def test_arguments_are_words_numbers_or_one_line(tmp_path, written, read):
    (tmp_path / "t.py").touch()
    assert job_of(tmp_path, f"script: t.py, args: {written}").launch.args == read


@pytest.mark.parametrize("written", ["[true]", "[[1]]", '"--name \'a"', "3"])
def test_other_arguments_are_refused(tmp_path, written):
    (tmp_path / "t.py").touch()
    with pytest.raises(InputError) as caught:
        job_of(tmp_path, f"script: t.py, args: {written}")
    assert caught.value.field.startswith("jobs[0].args")
    assert caught.value.fix


@pytest.mark.parametrize("mistake", NODE_MISTAKES)
def test_mistakes_in_nodes_are_named_with_their_place_and_a_fix(
    mistake: str, tmp_path: Path
) -> None:
    text, (line, field, message, fix) = NODE_MISTAKES[mistake]
    error = refusal(read_nodes, write(tmp_path / "nodes.toml", text))
    assert (error.line, error.field) == (line, field)
    assert message in error.message
    assert fix is None or error.fix == fix


MIX_MISTAKES = {
    "misspelt field": (
        MIX.replace("batch_size", "bach_size"),
        (14, "jobs[1].bach_size", "there is no such field", "Did you mean 'batch_size'?"),
    ),
    "misspelt workload": (
        MIX.replace("workload: weather", "workload: wether"),
        (7, "jobs[0].workload", "there is no workload 'wether'", "Did you mean 'weather'?"),
    ),
    "duplicate key": (
        MIX.replace("seed: 7", "slot_s: 7"),
        (5, "slot_s", "is given twice, first on line 2", "Keep one of them."),
    ),
    "NO": (
        MIX.replace("name: mine", "name: NO"),
        (
            11,
            "jobs[1].name",
            "'NO' means different things to different readers of YAML",
            'Write true or false, or for text put it in quotes: "NO".',
        ),
    ),
    "octal": (
        MIX.replace("seed: 7", "seed: 010"),
        (
            5,
            "seed",
            "'010' means different things to different readers of YAML",
            'Write a plain number like 1000 or 0.5, or for text put it in quotes: "010".',
        ),
    ),
    "exponent": (
        MIX.replace("samples: 1001", "samples: 1e3"),
        (13, "jobs[1].samples", "'1e3' means different things to different readers of YAML", None),
    ),
    "nan": (
        MIX.replace("slot_s: 10", "slot_s: .nan"),
        (2, "slot_s", "'.nan' is not a usable number", "Give a finite number."),
    ),
    "negative": (
        MIX.replace("epochs: 3", "epochs: -3"),
        (9, "jobs[0].epochs", "is out of range", "Give a whole number from 1 to 1000000."),
    ),
    "no time": (
        MIX.replace("slot_s: 10", "slot_s: 0"),
        (2, "slot_s", "is out of range", "Give a number above 0 to 1e+06."),
    ),
    "fraction": (
        MIX.replace("epochs: 3", "epochs: 1.5"),
        (9, "jobs[0].epochs", "should be a whole number, not 1.5", "Give a whole number."),
    ),
    "truth for a number": (
        MIX.replace("epochs: 3", "epochs: true"),
        (9, "jobs[0].epochs", "should be a whole number, not true", None),
    ),
    "no value": (
        MIX.replace("epochs: 3", "epochs:"),
        (9, "jobs[0].epochs", "has no value", "Give it one, or remove the line."),
    ),
    "argument that is a truth value": (
        MIX.replace('"0.1"', "true"),
        (
            15,
            "jobs[1].args[1]",
            "should be text, not true",
            'If it is meant as text, put it in quotes: "true".',
        ),
    ),
    "both epochs and steps": (
        MIX.replace("samples: 1001", "steps: 5"),
        (13, "jobs[1].steps", "cannot stand beside 'epochs'", "Keep one of the two."),
    ),
    "neither workload nor script": (
        MIX.replace("script: train.py", "gpus: 1"),
        (
            10,
            "jobs[1]",
            "'workload' or 'script' or 'module' is missing",
            "Add 'workload' or 'script' or 'module'.",
        ),
    ),
    "epochs of unknown length": (
        MIX.replace("samples: 1001", "retry: 1"),
        (10, "jobs[1]", "'epochs' needs 'samples' here", "Add 'samples', or give 'steps'."),
    ),
    "duplicate name": (
        MIX.replace("name: mine", "name: weather-2"),
        (
            11,
            "jobs[1].name",
            "the name 'weather-2' is already taken",
            "Give this job another 'name'.",
        ),
    ),
    "missing script": (
        MIX.replace("train.py", "trian.py"),
        (10, "jobs[1].script", "there is no file 'trian.py'", None),
    ),
    "misspelt choice": (
        MIX.replace("merge: paper", "merge: {rule: progres}"),
        (4, "merge.rule", "'progres' is not one of its values", "Did you mean 'progress'?"),
    ),
    "misspelt scale": (
        MIX.replace("merge: paper", "merge: {lr_scale: liner}"),
        (4, "merge.lr_scale", "'liner' is not one of its values", "Did you mean 'linear'?"),
    ),
    "merge field of an earlier version": (
        MIX.replace("merge: paper", "merge: {keep: better}"),
        (4, "merge.keep", "there is no such field", None),
    ),
    "policy field that is a list": (
        MIX.replace("reserve: 0.8", "reserve: [1]"),
        (3, "policy.reserve", "should be a single value, not a list", None),
    ),
    "not a duration": (
        MIX.replace("1h30m", "soon"),
        (16, "jobs[1].max_duration", "'soon' is not a duration", None),
    ),
    "alias": (
        MIX.replace("seed: 7", "seed: &s 7"),
        (5, None, "anchors and aliases (&, *) are not supported", "Write the value out."),
    ),
    "tag": (
        MIX.replace("seed: 7", "seed: !!python/object:os.system 7"),
        (5, None, "tags (!) are not supported", "Remove the tag."),
    ),
    "too deep": ("jobs: " + "[" * 500, (1, None, "is nested too deeply", None)),
    "syntax": (MIX.replace("seed: 7", "seed: ]7"), (5, None, "expected the node content", None)),
    "two documents": (MIX + "---\n" + MIX, (17, None, "but found another document", None)),
    "only comments": ("# nothing\n", (None, None, "is empty", None)),
    "no jobs": ("name: a\n", (None, None, "'jobs' is missing", "Add 'jobs'.")),
    "empty jobs": ("name: a\njobs: []\n", (2, "jobs", "lists no jobs", None)),
    "not a table": ("- a\n", (None, None, "should be a table of fields, not a list", None)),
    "escape beyond Unicode": ('name: "\\UFFFFFFFF"\n', (None, None, "does not allow", None)),
    "control character": ("seed: 7\nname: \x07\n", (2, None, "does not allow", None)),
    "escaped control character": (
        MIX.replace("name: lab", 'name: "a\\a"'),
        (1, "name", "contains control characters", "Remove them."),
    ),
}


@pytest.mark.parametrize("mistake", MIX_MISTAKES)
def test_mistakes_in_mixes_are_named_with_their_place_and_a_fix(
    mistake: str, mix_file: Path
) -> None:
    text, (line, field, message, fix) = MIX_MISTAKES[mistake]
    error = refusal(read_mix, write(mix_file, text))
    assert (error.line, error.field) == (line, field)
    assert message in error.message
    assert fix is None or error.fix == fix


@pytest.mark.parametrize("read", [read_nodes, read_mix])
def test_files_that_are_no_configuration_are_refused(read: object, tmp_path: Path) -> None:
    file = tmp_path / "file"
    assert refusal(read, file).message == "there is no such file"
    assert "cannot be read" in refusal(read, tmp_path).message
    file.write_bytes(b"")
    assert refusal(read, file).message == "is empty"
    file.write_bytes(b"#" * (1 << 20) + b"\n")
    assert refusal(read, file).message == "is larger than 1 MiB"
    file.write_bytes(b"# fine\n# caf\xe9\n")
    error = refusal(read, file)
    assert (error.message, error.line) == ("is not UTF-8 text", 2)


def test_the_message_reads_as_one_line_with_its_place(mix_file: Path) -> None:
    error = refusal(read_mix, write(mix_file, MIX.replace("slot_s", "slot")))
    assert str(error) == f"{mix_file}:2: slot: there is no such field"
    assert error.fix == "Did you mean 'slot_s'?"


def test_an_outer_step_may_name_one_of_its_two_numbers(mix_file: Path) -> None:
    text = MIX.replace("merge: paper", "merge: {outer: {momentum: 0.5}}")
    assert read_mix(write(mix_file, text)).merge.outer == OuterStep(lr=0.7, momentum=0.5)


def test_every_merge_rule_can_be_set() -> None:
    assert set(config._MERGE_FIELDS) == {field.name for field in fields(MergeRules)}


def test_the_shipped_inventory_and_mixes_are_the_papers() -> None:
    nodes = read_nodes(ROOT / "nodes.toml")
    assert [node.gpus[0].model for node in nodes] == [
        "TITAN RTX",
        "T4",
        "T400",
        "RTX 3090",
        "RTX A2000",
    ]
    assert all(node.is_local and node.emulated_speed for node in nodes)
    shipped = {
        name: [job.workload for job in read_mix(ROOT / "mixes" / f"{name}.yaml").jobs]
        for name in ("m1", "m3", "m4", "m5", "m8", "m10", "m12")
    }
    others = ["image_classification", "language_model", "translation", "recommender"]
    assert shipped == {
        "m1": ["weather"],
        "m3": ["translation", "weather", "weather"],
        "m4": [*others[:3], "weather"],
        "m5": [*others, "weather"],
        "m8": others + ["weather"] * 4,
        "m10": others + ["weather"] * 6,
        "m12": others + ["weather"] * 8,
    }
    assert len(read_mix(ROOT / "mixes" / "quickstart.yaml").jobs) == 3


@pytest.mark.parametrize("name", config._JOB_FIELDS)
def test_no_field_of_a_job_is_read_and_then_dropped(name: str) -> None:
    """It is a field of ``Job`` by that name, or something is made of it."""
    source = "".join(Path(module.__file__).read_text() for module in (config, sweeps))
    assert name in config._TAKEN_AS_GIVEN or source.count(f'"{name}"') > 1
