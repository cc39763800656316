"""The schemas for editors take what the strict readers take, and refuse what these refuse."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import pytest
import tomli
import yaml
from jsonschema import Draft7Validator

from hadar_cli.config import inventory
from hadar_cli.config.fields import Document
from hadar_cli.config.inventory import nodes_of
from hadar_cli.config.mixes import _JOB_FIELDS, Setting, mix_of
from hadar_cli.config.schemas import SCHEMAS, mix_schema, nodes_schema, of, text
from hadar_cli.errors import InputError
from tests.e2e.test_commands import hadar

ROOT = Path(__file__).parents[2]
MIX, NODES = Draft7Validator(mix_schema()), Draft7Validator(nodes_schema())
NODE = {"name": "a", "host": "local"}
JOB = {"workload": "weather"}
SWEEP = {**JOB, "sample": {"lr": {"log": [0.1, 1]}}, "trials": 3}
BAD_MIXES: list[Any] = [
    {},
    {"jobs": []},
    {"jobs": {}},
    {"jobs": [{}]},
    {"jobs": [{**JOB, "epoch": 3}]},
    {"jobs": [{**JOB, "epochs": 0}]},
    {"jobs": [{**JOB, "epochs": "3"}]},
    {"jobs": [{**JOB, "epochs": 1.5}]},
    {"jobs": [{**JOB, "epochs": 2, "steps": 3}]},
    {"jobs": [{**JOB, "script": "train.py"}]},
    {"jobs": [{"script": "train.py"}]},
    {"jobs": [{"workload": "wether"}]},
    {"jobs": [{**JOB, "name": "-x"}]},
    {"jobs": [{**JOB, "gpus": "1-8"}]},
    {"jobs": [{**JOB, "fork": "always"}]},
    {"jobs": [{**JOB, "max_duration": "soon"}]},
    {"jobs": [{**JOB, "env": {"A B": "x"}}]},
    {"jobs": [{**JOB, "env": {"A": 1}}]},
    {"jobs": [{**JOB, "trials": 3}]},
    {"jobs": [{**JOB, "sample": {"lr": [1, 2]}}]},
    {"jobs": [{**JOB, "grid": {"lr": []}}]},
    {"jobs": [{**JOB, "grid": {"norm": [True]}}]},
    {"jobs": [{**JOB, "promote": {}}]},
    {"jobs": [{**SWEEP, "count": 2}]},
    {"jobs": [{**SWEEP, "grid": {}}]},
    {"jobs": [{**SWEEP, "grid": {"width": [1]}, "optuna": {"metric": "loss"}}]},
    {"jobs": [{**SWEEP, "sample": {"lr": {"lg": [0.1, 1]}}}]},
    {"jobs": [{**SWEEP, "promote": {"keep": 1}}]},
    {"jobs": [{**JOB, "stop": {}}]},
    {"jobs": [JOB], "slot_s": 0},
    {"jobs": [JOB], "slot_s": "soon"},
    {"jobs": [JOB], "merge": {"rule": "median"}},
    {"jobs": [JOB], "merge": "papers"},
    {"jobs": [JOB], "policy": {"reserve": 1}},
    {"jobs": [JOB], "seed": -1},
    {"jobs": [JOB], "job": []},
]
BAD_INVENTORIES: list[Any] = [
    {},
    {"node": []},
    {"node": NODE},
    {"nodes": [NODE]},
    {"node": [{**NODE, "gpus": ["RTX 3090"]}]},
    {"node": [{**NODE, "gpus": [{"tflops": 3}]}]},
    {"node": [{**NODE, "port": 0}]},
    {"node": [{**NODE, "port": "22"}]},
    {"node": [{**NODE, "hours": "7pm-7am"}]},
    {"node": [{**NODE, "max_gpu_mem": 0}]},
    {"node": [{**NODE, "max_gpu_mem": 20}]},
    {"node": [{**NODE, "emulate": {}}]},
    {"node": [{**NODE, "emulate": 0.5}]},
    {"node": [{**NODE, "turn_s": 0}]},
    {"node": [{**NODE, "enabled": "yes"}]},
    {"node": [{**NODE, "name": "a b"}]},
    {"node": [{**NODE, "host": "-oProxyCommand=x"}]},
    {"node": [{**NODE, "slurm": {}}]},
    {"node": [NODE], "defaults": {"name": "b"}},
    {"slurm": {"name": "s"}},
]


def read(kind: str, fields: Any) -> None:
    document = Document("x", fields, {})
    mix_of(document, Setting(ROOT, False, None)) if kind == "mix" else nodes_of(document)


@pytest.mark.parametrize(
    "path", sorted([*ROOT.glob("mixes/*.yaml"), *ROOT.glob("examples/*.yaml")])
)
def test_every_mix_that_is_shipped_is_taken(path):
    assert list(MIX.iter_errors(yaml.safe_load(path.read_text()))) == []


def test_the_inventory_that_is_shipped_is_taken():
    assert list(NODES.iter_errors(tomli.loads((ROOT / "nodes.toml").read_text()))) == []


@pytest.mark.parametrize("fields", BAD_MIXES, ids=json.dumps)
def test_a_mix_that_the_reader_refuses_is_refused(fields):
    with pytest.raises(InputError):
        read("mix", fields)
    assert list(MIX.iter_errors(fields))


@pytest.mark.parametrize("fields", BAD_INVENTORIES, ids=json.dumps)
def test_an_inventory_that_the_reader_refuses_is_refused(fields):
    with pytest.raises(InputError):
        read("nodes", fields)
    assert list(NODES.iter_errors(fields))


@pytest.mark.parametrize(
    "job",
    [
        {**JOB, "epochs": 3, "gpus": "1..8", "fork": "never", "max_duration": "1h30m"},
        {**JOB, "gpus": "auto", "args": ["--lr", 0.1], "env": {"A": ""}, "data_dir": "/data"},
        {**JOB, "args": "--lr 0.1 'a b'", "priority": -3, "stop": {"patience": 3}},
        {**SWEEP, "grid": {"env.DEPTH": [1, "two", 0.5]}, "promote": {"rungs": [1, 2]}},
        {"script": "examples/image.py", "steps": 9, "shares": "equal", "mode": "share"},
    ],
    ids=json.dumps,
)
def test_a_job_that_the_reader_takes_is_taken(job):
    fields = {"jobs": [job], "slot_s": "auto", "merge": {"every_s": "slot", "outer": {"lr": 1}}}
    read("mix", fields)
    assert list(MIX.iter_errors(fields)) == []


def test_the_inventory_s_schema_has_every_place_that_the_reader_has():
    places = inspect.getclosurevars(inventory._INVENTORY).nonlocals["fields"]
    assert nodes_schema()["properties"].keys() == places.keys()
    fields = {
        "slurm": {"name": "s", "count": 2, "time": "1:00", "cpus": 2},
        "ray": [{"name": "r", "num_cpus": 2, "resources": {"disk": 1}}],
        "aws": {"budget": 3, "instances": [{"name": "i", "type": "g5.xlarge", "template": "t"}]},
    }
    read("nodes", fields)
    assert list(NODES.iter_errors(fields)) == []


def test_schemas_are_schemas_and_know_what_fields_mean():
    for make in SCHEMAS.values():
        Draft7Validator.check_schema(make())
    assert all(
        "description" in f
        for f in mix_schema()["properties"]["jobs"]["items"]["properties"].values()
    )
    assert of(_JOB_FIELDS["priority"]) == {"type": "integer", "minimum": -1000, "maximum": 1000}


@pytest.mark.parametrize("kind", SCHEMAS)
def test_the_published_schemas_are_those_of_the_readers(kind):
    published = (ROOT / "docs" / "schemas" / f"{kind}.schema.json").read_text()
    assert published == text(kind), "scripts/schemas writes them"


def test_init_writes_files_that_name_their_schemas_and_fit_them(tmp_path):
    assert hadar("init", cwd=tmp_path).returncode == 0
    nodes, mix = tmp_path / "nodes.toml", tmp_path / "mixes" / "quickstart.yaml"
    for path, mark, fields in (
        (nodes, "#:schema ", tomli.loads(nodes.read_text())),
        (mix, "# yaml-language-server: $schema=", yaml.safe_load(mix.read_text())),
    ):
        first = path.read_text().splitlines()[0]
        assert first.startswith(mark)
        schema = json.loads((path.parent / first.removeprefix(mark)).read_text())
        assert list(Draft7Validator(schema).iter_errors(fields)) == []
    told = hadar("schema", "mix", cwd=tmp_path)
    assert told.stdout == (tmp_path / "mixes" / "mix.schema.json").read_text()
    refused = hadar("schema", "mixes", cwd=tmp_path)
    assert refused.returncode == 2 and "did you mean 'mix'" in refused.stderr
