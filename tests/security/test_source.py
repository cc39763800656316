"""What the head's source must never do, whoever writes the next line of it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import hadar_cli

ROOT = Path(hadar_cli.__file__).parent
HEAD = [
    path
    for layer in sorted({p.name for p in ROOT.iterdir() if p.is_dir()} - {"node", "workloads"})
    for path in (ROOT / layer).rglob("*.py")
]
LOADERS = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "torch"}
RUNNERS = {"eval", "exec", "__import__", "compile"}
SHELLS = {"os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput"}


def complaints(tree: ast.AST) -> list[str]:
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names]
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            found += [f"imports {name}" for name in names if name.partition(".")[0] in LOADERS]
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called in RUNNERS or called in SHELLS:
                found.append(f"calls {called}")
            for keyword in node.keywords:
                on = isinstance(keyword.value, ast.Constant) and keyword.value.value
                if keyword.arg in ("shell", "allow_pickle") and on:
                    found.append(f"passes {keyword.arg}")
    return found


@pytest.mark.parametrize("path", HEAD, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_head_runs_nothing_that_it_reads(path: Path) -> None:
    assert complaints(ast.parse(path.read_text())) == []


def test_the_test_bites() -> None:
    bad = "import torch.nn\nfrom pickle import loads\neval('1')\nsubprocess.run('x', shell=True)"
    assert len(complaints(ast.parse(bad))) == 4


def test_every_exception_from_the_security_rules_says_why() -> None:
    """ruff's S rules run in scripts/check; whoever silences one has to give a reason."""
    silenced = re.compile(r"noqa: S\d+(?P<why>.*)")
    for path in (*ROOT.rglob("*.py"), *(ROOT.parent / "scripts").glob("*.py")):
        for line in path.read_text().splitlines():
            if found := silenced.search(line):
                assert found["why"].strip(" -"), f"{path}: {line}"
    rules = (ROOT.parent / "pyproject.toml").read_text()
    for line in rules.splitlines():
        if re.match(r'\s*"S\d+",', line):
            assert "#" in line, line
