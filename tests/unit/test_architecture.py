"""The house rules that a machine can hold: where arrows point, what the head never does."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import hadar_cli

ROOT = Path(hadar_cli.__file__).parent
ALLOWED = {
    "core": {"core", "errors"},
    "app": {"core", "app", "errors"},
    "adapters": {"core", "app", "adapters", "errors", "node", "workloads"},
    "report": {"core", "app", "adapters", "report", "errors", "workloads"},
    "cli": {"core", "app", "adapters", "report", "cli", "errors", "node", "workloads"},
    "node": {"node"},
    "workloads": {"node", "workloads", ""},
}
FILES = sorted(path for layer in ALLOWED for path in (ROOT / layer).rglob("*.py"))


def imported_layers(path: Path) -> set[str]:
    layers = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            if name.startswith("hadar_cli.") and name != "hadar_cli.__version__":
                layers.add("" if name == "hadar_cli.training" else name.split(".")[1])
    return layers


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_arrows_point_one_way(path):
    layer = path.relative_to(ROOT).parts[0]
    assert imported_layers(path) <= ALLOWED[layer]


def test_the_core_is_pure():
    impure = {"os", "time", "random", "pathlib", "subprocess", "socket", "torch", "datetime"}
    for path in (ROOT / "core").rglob("*.py"):
        tree = ast.parse(path.read_text())
        imports = {
            name.split(".")[0]
            for node in ast.walk(tree)
            if isinstance(node, (ast.Import, ast.ImportFrom))
            for name in (
                [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else [node.module or ""]
            )
        }
        assert not imports & impure, path


def test_the_head_never_unpickles_trusts_or_shells():
    forbidden = re.compile(
        r"AutoAddPolicy|WarningPolicy|torch\.load\(|\bpickle\b|yaml\.load\(|shell=True"
    )
    for layer in ("core", "app", "adapters", "report", "cli"):
        for path in (ROOT / layer).rglob("*.py"):
            assert not forbidden.search(path.read_text()), path


@pytest.mark.parametrize(
    "module",
    ["hadar_cli.cli.main", "hadar_cli.adapters.head", "hadar_cli.adapters.tensors"],
)
def test_the_head_starts_without_torch(module):
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
