"""The documentation says what the program says."""

from __future__ import annotations

import ast
import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest
import typer

from hadar_cli import __version__, errors, policies
from hadar_cli.cli.main import app
from hadar_cli.config import mixes as config

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs/guide"


def load_reference() -> ModuleType:
    spec = importlib.util.spec_from_file_location("reference", ROOT / "scripts/reference.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def all_words() -> str:
    """Every text constant of the program, with the gaps of f-strings closed by an ellipsis."""
    found = []
    for path in (ROOT / "hadar_cli").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                parts = (p.value if isinstance(p, ast.Constant) else "…" for p in node.values)
                found.append("".join(map(str, parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return "\n".join(found)


def test_every_message_in_the_guide_is_one_of_the_programs() -> None:
    page = (GUIDE / "troubleshooting.md").read_text(encoding="utf-8")
    quoted = re.findall(r"^### `([^`\n]+)`", page, flags=re.MULTILINE)
    assert len(quoted) > 15
    words = all_words()
    assert [message for message in quoted if message not in words] == []


def test_every_command_in_the_guide_exists() -> None:
    known = {path for path, _ in load_reference()._walk(typer.main.get_command(app), "hadar")}
    known |= {path.rpartition(" ")[0] for path in known}
    for page in (ROOT / "docs").rglob("*.md"):
        for match in re.findall(r"[`/ ]hadar ([a-z]+)\b", _code(page.read_text(encoding="utf-8"))):
            assert f"hadar {match}" in known, f"{page.name}: hadar {match}"


def _code(page: str) -> str:
    """What stands in backticks and blocks."""
    blocks = re.findall(r"```\w*\n(.*?)```", page, flags=re.DOTALL)
    commands = [line for block in blocks for line in block.splitlines() if "hadar " in line[:14]]
    return "\n".join([*(f" {line}" for line in commands), *re.findall(r"`hadar [^`]+`", page)])


def test_the_reference_knows_every_command_policy_and_code() -> None:
    reference = load_reference()
    pages = {name: make() for name, make in reference.PAGES.items()}
    for path, _ in reference._walk(typer.main.get_command(app), "hadar"):
        assert f"## {path}\n" in pages["commands"]
    for name in policies.names():
        assert f"## {name}\n" in pages["policies"]
    for error in (errors.InputError, errors.UnfinishedError, errors.StorageError):
        assert f"| {error.exit_code} |" in pages["exit-codes"]
    assert "| `port` | a whole number, from 1 to 65535 |" in pages["nodes"]
    assert "`average` · `leader` · `reset`" in pages["mixes"]


@pytest.mark.parametrize("name", load_reference().WRITTEN)
def test_the_reference_in_the_repository_is_of_this_build(name: str) -> None:
    written = (ROOT / "docs" / "reference" / f"{name}.md").read_text(encoding="utf-8")
    assert written == load_reference().PAGES[name](), "run scripts/schemas"


def test_a_field_without_a_meaning_stops_the_build(monkeypatch: pytest.MonkeyPatch) -> None:
    reference = load_reference()
    monkeypatch.setitem(config._JOB_FIELDS, "novel", config.NAME)
    with pytest.raises(SystemExit, match="novel"):
        reference.mixes()


def test_every_page_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    pages = [page.relative_to(ROOT / "docs") for page in (ROOT / "docs").rglob("*.md")]
    assert [str(page) for page in pages if f": {page}\n" not in navigation] == []


def test_the_version_is_the_newest_release_of_the_changelog():
    titles = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert titles[0] == "Unreleased"
    assert re.fullmatch(rf"{re.escape(__version__)} - \d{{4}}-\d\d-\d\d", titles[1])
