"""Whatever bytes a configuration file holds, reading it succeeds or says what to mend."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hadar_cli.config.inventory import read_nodes
from hadar_cli.config.mixes import read_mix
from hadar_cli.errors import InputError

ROOT = Path(__file__).parents[2]
NODES = (ROOT / "nodes.toml").read_bytes()
MIX = (
    (ROOT / "mixes" / "m5.yaml").read_bytes()
    + b"""
  - {script: x.py, steps: 5, args: [a, "b"], env: {A: "1"}, max_duration: 2h, sync: .}
merge: {rule: mean, solo: 0.1}
"""
)

READERS: dict[str, tuple[Callable[[Path], object], bytes]] = {
    "nodes": (read_nodes, NODES),
    "mix": (read_mix, MIX),
}

# Where files break: punctuation of both languages, hostile numbers, escapes, odd characters.
PUNCTUATION = ["[", "]", "{", "}", ":", "=", "-", "&a", "*a", "!!x", "<<", "? ", "|", ">", "#", "~"]
CHARACTERS = ['"', "'", '"""', "\\", '"\\ud800"', '"\\UFFFFFFFF"', "\t", "\n", "\r", "\0", "\ufeff"]
NUMBERS = [".nan", ".inf", "nan", "1e999", "9" * 400, "0x10", "1_0", "-1", "1:30", "1979-05-27"]
WORDS = ["x" * 300, "~/x", "../..", "\u202e", "count: 10001", "\nname = 1\n", "[" * 60, "%YAML 2\n"]
FRAGMENTS = st.sampled_from(PUNCTUATION + CHARACTERS + NUMBERS + WORDS).map(str.encode)


def assert_reads_or_refuses(name: str, content: bytes, folder: Path) -> None:
    read, _ = READERS[name]
    path = folder / "file"
    path.write_bytes(content)
    try:
        read(path)
    except InputError as error:
        assert error.file == str(path)
        assert error.fix
        str(error)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fuzz")
    (folder / "x.py").touch()
    return folder


@pytest.mark.parametrize("name", READERS)
def test_the_seeds_of_the_fuzz_are_valid(name: str, folder: Path) -> None:
    read, valid = READERS[name]
    (folder / "file").write_bytes(valid)
    assert read(folder / "file")


@pytest.mark.parametrize("name", READERS)
@settings(max_examples=150, deadline=None)
@given(content=st.one_of(st.binary(max_size=200), st.text(max_size=200).map(str.encode)))
@example(content=b"a: " + b"{a: " * 300)
@example(content=b"a." * 2000 + b"a = 1")
def test_any_bytes(name: str, content: bytes, folder: Path) -> None:
    assert_reads_or_refuses(name, content, folder)


@pytest.mark.parametrize("name", READERS)
@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_mutated_files(name: str, data: st.DataObject, folder: Path) -> None:
    content = READERS[name][1]
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(content)))
        end = start + data.draw(st.integers(0, 30))
        insert = data.draw(st.one_of(FRAGMENTS, st.binary(max_size=8)))
        content = content[:start] + insert + content[end:]
    assert_reads_or_refuses(name, content, folder)


VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(), inner)),
    max_leaves=6,
)


@settings(max_examples=200, deadline=None)
@given(
    key=st.sampled_from(["name", "slot_s", "policy", "merge", "seed", "jobs"]),
    job_key=st.sampled_from(
        ["name", "count", "epochs", "samples", "args", "env", "preset", "sync"]
    ),
    value=VALUES,
    in_job=st.booleans(),
)
def test_any_value_in_any_field(
    key: str, job_key: str, value: object, in_job: bool, folder: Path
) -> None:
    job: dict[str, object] = {"workload": "weather", "epochs": 1}
    mix: dict[str, object] = {"jobs": [job]}
    (job if in_job else mix)[job_key if in_job else key] = value
    assert_reads_or_refuses("mix", yaml.safe_dump(mix).encode(), folder)
