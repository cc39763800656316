"""Every ``--json`` that a command prints has the shape that docs/schemas publishes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from hadar_cli.cli import schemas
from tests.e2e.test_commands import MIX, NODES, SCRIPT, hadar
from tests.support.runs import stored, trained_sweep, trained_world

PUBLISHED = Path(__file__).parents[2] / "docs/schemas"
# The commands by the name of their schema, in an order in which each finds what it needs.
COMMANDS = [
    ("report", ["run", "mix.yaml", "--name", "one"]),
    ("report", ["report", "two"]),
    ("status", ["status"]),
    ("explain", ["explain", "three"]),
    ("logs", ["logs", "one", "two"]),
    ("request", ["priority", "three", "job-0", "-2"]),
    ("cancel", ["cancel", "one"]),
    ("report-sweep", ["report", "four", "--sweep"]),
    ("report-list", ["report", "--list"]),
    ("report-compare", ["report", "one", "two"]),
    ("run-dry-run", ["run", "mix.yaml", "--dry-run"]),
    ("check", ["check"]),
    ("profile-nodes", ["profile", "nodes", "--workload", "weather"]),
    ("nodes-list", ["nodes", "list"]),
    ("policies", ["policies"]),
    ("simulate", ["simulate", "mix.yaml", "--policy", "hadare,gavel"]),
    ("replay", ["replay", "one", "--policy", "gavel"]),
    ("try", ["try", "plain_script.py"]),
    ("selftest", ["selftest", "-n", "broken.toml"]),  # a good one takes a minute
    ("clean", ["clean", "--yes"]),
]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with two local devices, a mix of two short jobs, and another mix's run."""
    folder = tmp_path_factory.mktemp("schemas")
    (folder / "nodes.toml").write_text(NODES)
    broken = '[[node]]\nname = "broken"\nhost = "local"\npython = "/no/such/python"\n'
    (folder / "broken.toml").write_text(broken)
    (folder / "mix.yaml").write_text(MIX)
    shutil.copy(SCRIPT, folder)
    begun = trained_world()
    del begun.journal.events[2:]
    stored(begun, folder / "runs", "three")
    stored(trained_sweep(), folder / "runs", "four")
    stored(trained_world(), folder / "runs", "two")
    return folder


def strictly(schema: Any) -> Any:
    """The schema with no room for fields it does not name, so that none goes unpublished."""
    if isinstance(schema, list):
        return [strictly(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    tight = {key: strictly(value) for key, value in schema.items()}
    if "properties" in schema:
        tight["additionalProperties"] = False
    return tight


def _words(part: str | list[str]) -> str:
    return part if isinstance(part, str) else " ".join(part)


@pytest.mark.parametrize(("name", "command"), COMMANDS, ids=_words)
def test_what_a_command_prints_fits_its_schema(lab: Path, name: str, command: list[str]) -> None:
    answer = hadar(*command, "--json", cwd=lab)
    assert answer.stdout, answer.stderr  # an answer can also be that something is wrong
    published = json.loads((PUBLISHED / f"{name}.json").read_text())
    errors = Draft202012Validator(strictly(published)).iter_errors(json.loads(answer.stdout))
    assert not [f"{error.json_path}: {error.message}" for error in errors]


def test_every_schema_belongs_to_a_command_here() -> None:
    assert {name for name, _ in COMMANDS} == set(schemas.outputs())


def test_published_schemas_are_up_to_date() -> None:
    wanted = schemas.published()
    found = {path.name: path.read_text() for path in PUBLISHED.glob("*.json")}
    old = {name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name)}
    assert not old, "publish them anew: scripts/schemas"


@pytest.mark.parametrize("name", schemas.outputs())
def test_a_schema_refuses_other_things(name: str) -> None:
    schema = schemas.schema(name)
    Draft202012Validator.check_schema(schema)
    assert not Draft202012Validator(schema).is_valid(7)
