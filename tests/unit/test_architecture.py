"""The house rules that a machine can hold: where arrows point, what the head never does."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import hadar_cli

ROOT = Path(hadar_cli.__file__).parent
_POLICIES = {"core.policies", "core.policies.gangs", "core.policies.baselines"}
_CORE = {"core", "core.estimates", "core.measures", "core.policies", "core.policies.gangs"}
_REPORT = {"report", "report.live", "report.page", "report.terminal", "report.web"}
# What each room, a folder or a module of its own, may import beside itself and `errors`. Every
# `__init__` tells the same to whoever reads it.
ALLOWED: dict[str, set[str]] = {
    "typed": set(),
    "core": set(),
    "core.estimates": {"core"},
    "core.measures": {"core", "core.estimates"},
    "core.policies": {"core", "core.estimates"},
    "core.policies.gangs": {"core", "core.estimates", "core.policies"},
    "core.policies.baselines": {"core", "core.estimates", "core.policies", "core.policies.gangs"},
    "engine": {"core", "core.estimates", "core.policies"},
    "project": {"core", "node", "node.agent"},
    "suggestions": {"core"},
    "config": {"core", "core.estimates", "project", "suggestions", "workloads"},
    "search": {"config", "core", "engine", "runs", "suggestions"},
    "weights": {"core", "core.estimates"},
    "runs": {
        *("core", "core.estimates", "core.measures", "engine", "weights"),
        *("node", "node.agent", "typed"),
    },
    "nodes": {
        *("core", "engine", "project", "runs", "nodes.session", "nodes.supply"),
        *("node", "node.agent", "node.files", "typed"),
    },
    "nodes.session": {"core", "engine", "node", "nodes"},
    "nodes.supply": {"core", "engine", "project", "nodes", "runs"},
    "ssh": {"core", "nodes", "node", "node.agent"},
    "slurm": {"core", "nodes", "node", "node.agent"},
    "ray_cluster": {"core", "nodes"},
    "pipes": {"core", "nodes"},
    "aws": {"core", "core.measures", "nodes", "node", "runs"},
    "transports": {"core", "nodes", "runs", "ssh", "slurm", "ray_cluster", "aws", "pipes"},
    "visits": {"core", "nodes", "node", "runs", "transports", "typed"},
    "policies": {"core", *_POLICIES},
    "simulation": {*_CORE, "engine", "policies", "runs"},
    "assembly": {
        *(_CORE | {"engine", "nodes", "nodes.supply", "policies", "project", "runs"}),
        *("search", "transports", "visits"),
    },
    "api": {
        *("assembly", "config", "core", "core.estimates", "engine", "policies", "report", "runs"),
        *("simulation", "visits"),
    },
    "trial": {"core", "core.policies", "engine", "node", "project", "runs", "weights", "assembly"},
    "selftest": {"core", "runs", "visits", "trial", "assembly", "workloads"},
    "observers": {"core", "core.measures", "engine", "report", "runs"},
    "report": {"core", "core.measures", "runs"},
    "report.terminal": {"core", "core.measures", "report", "simulation"},
    "report.live": {"core", "core.estimates", "engine", "report", "report.terminal", "runs"},
    "report.page": {"core", "core.measures", "report", "report.terminal", "simulation"},
    "report.web": {"report", "report.live", "report.page", "runs"},
    "node": set(),
    "node.gpus": {"node"},
    "node.training": {
        *("node", "node.training.checkpoints", "node.training.gangs", "node.training.misuse"),
    },
    "node.training.misuse": {"node", "node.training"},
    "node.training.checkpoints": {"node"},
    "node.training.gangs": {"node"},
    "node.training.frameworks": {
        *("node", "node.training", "node.training.checkpoints", "node.training.misuse"),
    },
    "node.files": set(),
    "node.agent": {"node", "node.files", "node.gpus", "node.training"},
    "workloads": {"node"},
}
_COMMANDS = {"cli.runs", "cli.machines", "cli.study"}
_BEHIND_COMMANDS = {
    *(_CORE | _REPORT),
    *(
        "config",
        "runs",
        "nodes",
        "ssh",
        "aws",
        "policies",
        "simulation",
        "visits",
        "trial",
        "assembly",
        "api",
    ),
    *("project", "selftest", "workloads", "observers"),
}
# A command does not import its own room: none imports another. Only `main` knows them all.
ALLOWED["cli"] = _BEHIND_COMMANDS | {"cli"}
ALLOWED |= {room: _BEHIND_COMMANDS | {"cli"} for room in _COMMANDS}
# The parts of a run, and the modules that may put them together: what really trains, and what only
# plays on paper and must load without nodes and SSH.
_PARTS = {"engine.tracker", "engine.rounds", "nodes.executor", "simulation.executor"}
_ASSEMBLIES = {"assembly", "simulation.scenario"}
_MOST_MODULES, _MOST_LINES = 12, 400
_ENGINES, _MOST_LINES_OF_AN_ENGINE = ("ssh", "slurm", "ray_cluster", "aws", "pipes"), 250
HEAD = sorted(room for room in ALLOWED if not room.startswith(("node.", "workloads")))
HEAD.remove("node")


def module_of(path: Path) -> str:
    """``core.state`` for its file, ``core`` for its folder's ``__init__``, nothing for ours."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


MODULES = {module_of(path): path for path in sorted(ROOT.rglob("*.py"))}
FOLDERS = sorted(name for name, path in MODULES.items() if name and path.name == "__init__.py")


def room_of(module: str) -> str:
    is_folder = MODULES[module].name == "__init__.py"
    return module if is_folder or "." not in module else module.rpartition(".")[0]


def imports_of(module: str) -> set[str]:
    """Modules of ours that it imports, wherever in the file; the package itself is left out."""
    found = set()
    for node in ast.walk(ast.parse(MODULES[module].read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            if name.startswith("hadar_cli."):
                name = name.removeprefix("hadar_cli.")
                while name not in MODULES:
                    name = name.rpartition(".")[0]
                found.add(name)
    return found - {"", module}


IMPORTS = {module: imports_of(module) for module in MODULES}


@pytest.mark.parametrize("module", sorted(set(MODULES) - {"", "errors", "cli.main"}))
def test_a_room_imports_only_what_it_may(module):
    room = room_of(module)
    assert room in ALLOWED, "a new room: say in ALLOWED, and in its __init__, what it may import"
    allowed = ALLOWED[room] | {"errors"} | (set() if room in _COMMANDS else {room})
    beyond = {name for name in IMPORTS[module] if room_of(name) not in allowed}
    assert not beyond


def test_no_module_imports_itself_by_a_detour():
    """Imports inside functions count: they only hide a cycle."""
    left, before = dict(IMPORTS), 0
    while len(left) != before:
        before = len(left)
        left = {module: named for module, named in left.items() if named & left.keys()}
    assert not left, f"a cycle among {sorted(left)}"


def test_a_run_is_put_together_in_one_place():
    for module in set(MODULES) - _ASSEMBLIES:
        if room_of(module) not in ("engine", "nodes", "simulation"):
            assert len(IMPORTS[module] & _PARTS) < 2, module
    assert {module for module in MODULES if IMPORTS[module] & {"engine.rounds"}} == _ASSEMBLIES


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_folder_is_small_enough_to_take_in(folder):
    modules = [name for name in MODULES if name.rpartition(".")[0] == folder]
    assert len(set(modules) - set(FOLDERS)) <= _MOST_MODULES


def test_a_file_is_short_enough_to_read():
    lines = {module: path.read_text().count("\n") for module, path in MODULES.items()}
    long = {module for module, count in lines.items() if count > _MOST_LINES}
    assert not long


@pytest.mark.parametrize("engine", _ENGINES)
def test_an_engine_is_a_few_short_files_and_knows_no_other(engine):
    modules = [module for module in MODULES if room_of(module) == engine]
    lines = {module: MODULES[module].read_text().count("\n") for module in modules}
    assert not {one for one, count in lines.items() if count >= _MOST_LINES_OF_AN_ENGINE}
    known = {room_of(name) for module in modules for name in IMPORTS[module]}
    assert not known & (set(_ENGINES) - {engine})


@pytest.mark.parametrize("folder", sorted(set(FOLDERS) - {"workloads"}))
def test_a_folder_says_what_lives_there_and_what_it_may_import(folder):
    told = ast.get_docstring(ast.parse(MODULES[folder].read_text())) or ""
    what, _, rules = " ".join(told.split()).partition(". Imports ")
    assert what and rules.count(". ") >= 1, "what lives there, what it imports, what never enters"
    named = set(re.findall(r"``([a-z.]+)``", rules.partition(". ")[0]))
    if not folder.startswith("cli"):  # commands may import nearly everything
        assert named == ALLOWED[folder]


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
    for module, path in MODULES.items():
        if module and room_of(module) in HEAD:
            assert not forbidden.search(path.read_text()), path


@pytest.mark.parametrize(
    "module",
    ["hadar_cli.cli.main", "hadar_cli.assembly", "hadar_cli.weights.merging"],
)
def test_the_head_starts_without_torch(module):
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


PROSE = {"why", "reason", "objection", "log", "last_words"}
LAST_WORDS = ROOT / "nodes" / "endings.py"  # what scripts print at their end becomes a reason here


def _is_prose(node: ast.AST) -> bool:
    """A value for people's eyes: ``why``, ``event.why``, ``str(error)``."""
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id == "str"
    name = getattr(node, "attr", getattr(node, "id", ""))
    return name in PROSE


def _is_literal(node: ast.AST) -> bool:
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        return any(_is_literal(element) for element in node.elts)
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value != ""


def prose_compared(code: str) -> list[str]:
    """Places where a program decides by a sentence that was written for people."""
    found: list[ast.AST] = []
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            if any(map(_is_prose, sides)) and any(map(_is_literal, sides)):
                found.append(node)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            asks = node.func.attr in ("startswith", "endswith", "find", "index")
            if asks and _is_prose(node.func.value):
                found.append(node)
        elif isinstance(node, ast.Match) and _is_prose(node.subject):
            patterns = [p for case in node.cases for p in ast.walk(case.pattern)]
            if any(isinstance(p, ast.MatchValue) and _is_literal(p.value) for p in patterns):
                found.append(node)
    return [ast.unparse(node) for node in found]


@pytest.mark.parametrize(
    "code",
    [
        "'released' in why",
        "event.why == 'it exited with code 0'",
        "why in ('released', 'gone')",
        "lost.why.startswith('NaN')",
        "'lease' in str(error)",
        "match why:\n    case 'exited':\n        pass",
    ],
)
def test_a_comparison_of_prose_is_seen(code):
    assert prose_compared(code)


def test_reasons_are_data_and_nobody_compares_prose():
    compared = {
        str(path.relative_to(ROOT)): found
        for path in ROOT.rglob("*.py")
        if path != LAST_WORDS and (found := prose_compared(path.read_text()))
    }
    assert not compared


def test_no_test_skips_itself():
    """A skipped test is an untested promise; what tests need, ``scripts/check`` installs."""
    needs_root = "security/test_secrets.py"  # to become another user
    tests = Path(__file__).parents[1]
    skips = re.compile(r"\b(importorskip|skipif|xfail|pytest\.skip|mark\.skip)\(")
    found = {
        path.relative_to(tests).as_posix()
        for path in tests.rglob("*.py")
        if path != Path(__file__) and skips.search(path.read_text())
    }
    assert found == {needs_root}
